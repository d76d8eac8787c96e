"""Programs under construction: nodes with shapes and operands, and their official features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.data.graph import NODE_FEATURES, Graph

Shape = tuple[int, ...]
Columns = dict[int, int]

OPCODES = {
    "add": 2, "broadcast": 13, "call": 14, "compare": 20, "constant": 24, "convert": 25, "convolution": 26, "copy": 27,
    "divide": 32, "dot": 34, "exponential": 37, "get-tuple-element": 45, "log": 50, "maximum": 57, "minimum": 58,
    "multiply": 59, "negate": 60, "parameter": 63, "reduce": 70, "reshape": 75, "rsqrt": 81, "select": 83, "sqrt": 94,
    "subtract": 95, "tanh": 96, "tuple": 100, "while": 102,
}  # fmt: skip
CONFIGURABLE = ("convolution", "dot", "reshape")
UNARY = ("exponential", "log", "negate", "rsqrt", "sqrt", "tanh")
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract")
ELEMENTWISE = (*UNARY, *BINARY, "compare", "convert", "copy", "select")

# The official order of the element types, from column 2 on.
_ELEMENTS = ("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bf16",
             "c64", "c128", "tuple", "opaque", "token")  # fmt: skip
# Bytes of one element, in the order of the columns; a tuple holds no elements of its own.
ELEMENT_BYTES = np.array([0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0], dtype=np.float64)

ROOT, ELEMENT, DIMS, TUPLE_SIZE, PARAMETER, DIMENSIONS, MINOR_TO_MAJOR = 0, 2, 21, 29, 30, 31, 134
WINDOW_SIZE, WINDOW_REVERSAL, INPUT_FEATURE, OUTPUT_FEATURE = 37, 85, 94, 106
_EMPTY_PRODUCTS = [28, 44, 52, 60, 68, 76, 84, 112, 116, 120, 124, 128, 132]


def row_major(rank: int) -> Shape:
    """Return the minor-to-major order of a row-major tensor."""
    return tuple(reversed(range(rank)))


def convolution_columns(window: Sequence[int], stride: int, rank: int) -> Columns:
    """Return the window and convolution columns of a batch-first, feature-last convolution with "same" padding.

    Its kernel is spatial first, then input feature, then output feature.
    """
    spatial = rank - 2
    low, high = [(size - 1) // 2 for size in window], [size // 2 for size in window]
    ones = [1] * spatial
    columns: Columns = {}
    groups = (window, [stride] * spatial, low, high, ones, ones)
    for start, values in zip(range(WINDOW_SIZE, WINDOW_REVERSAL, 8), groups, strict=True):
        columns |= {start + i: value for i, value in enumerate(values)}
        columns |= {start + 6: sum(values), start + 7: math.prod(values)}
    columns |= {92: spatial, 93: 0, INPUT_FEATURE: rank - 1, 99: spatial, 100: spatial + 1}
    columns |= {95 + i: 1 + i for i in range(spatial)} | {101 + i: i for i in range(spatial)}
    return columns | {105: 0, OUTPUT_FEATURE: rank - 1, 107: 1, 108: 1}


class Program:
    """A list of nodes that grows in topological order."""

    def __init__(self) -> None:
        self.dims: list[Shape] = []
        self.layouts: list[Shape] = []
        self._opcodes: list[int] = []
        self._elements: list[int] = []
        self._edges: list[tuple[int, int]] = []
        self._columns: list[Columns] = []
        self._parameters = 0

    def __len__(self) -> int:
        return len(self.dims)

    def add(
        self,
        opcode: str,
        dims: Shape,
        operands: Iterable[int] = (),
        *,
        element: str = "f32",
        layout: Shape | None = None,
        columns: Columns | None = None,
    ) -> int:
        """Append a node and return its id.

        Args:
            opcode: a key of OPCODES.
            dims: the output's dimensions, empty for scalars and tuples.
            operands: ids of earlier nodes; a repeated one gives one edge.
            element: the output's element type.
            layout: minor-to-major; None takes that of the latest operand of the same shape where the node is
                elementwise, as a compiler would, and is row-major otherwise.
            columns: official feature columns beyond those of shape and layout.
        """
        node, sources = len(self), sorted(set(operands))
        if layout is None:
            same = [v for v in sources if self.dims[v] == dims] if opcode in ELEMENTWISE else []
            layout = self.layouts[same[-1]] if same else row_major(len(dims))
        columns = dict(columns or {})
        if opcode == "parameter":
            columns[PARAMETER] = self._parameters
            self._parameters += 1
        elif opcode == "tuple":
            columns[TUPLE_SIZE] = len(sources)
        self._opcodes.append(OPCODES[opcode])
        self.dims.append(dims)
        self.layouts.append(layout)
        self._elements.append(_ELEMENTS.index(element))
        self._edges.extend((node, v) for v in sources)
        self._columns.append(columns)
        return node

    def close(self, start: int) -> int:
        """End the computation that began at node `start` with a root tuple of its unused nodes; return the root."""
        used = {v for _, v in takewhile(lambda edge: edge[0] >= start, reversed(self._edges))}
        unused = [node for node in range(start, len(self)) if node not in used]
        self._parameters = 0
        return self.add("tuple", (), unused, element="tuple", columns={ROOT: 1})

    def mark_root(self) -> None:
        """Make the last node the root of its computation."""
        self._columns[-1][ROOT] = 1

    def graph(self, starts: Sequence[int] = (0,)) -> Graph:
        """Return the nodes as a graph whose blocks start at `starts`."""
        n = len(self)
        dims = np.zeros((n, LAYOUT_DIMS), dtype=np.int64)
        layouts = np.zeros((n, LAYOUT_DIMS), dtype=np.int64)
        for node, (shape, layout) in enumerate(zip(self.dims, self.layouts, strict=True)):
            dims[node, : len(shape)] = shape
            layouts[node, : len(layout)] = layout
        feat = np.zeros((n, NODE_FEATURES), dtype=np.float32)
        feat[:, _EMPTY_PRODUCTS] = 1
        feat[np.arange(n), ELEMENT + np.array(self._elements)] = 1
        feat[:, DIMS : DIMS + LAYOUT_DIMS] = dims
        feat[:, DIMS + 6] = dims.sum(axis=1)
        feat[:, DIMS + 7] = np.maximum(dims, 1).prod(axis=1)
        feat[:, MINOR_TO_MAJOR : MINOR_TO_MAJOR + LAYOUT_DIMS] = layouts
        for node, columns in enumerate(self._columns):
            for column, value in columns.items():
                feat[node, column] = value
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        splits = np.array([*starts, n], dtype=np.int64)
        return Graph(feat, np.array(self._opcodes, dtype=np.uint8), edges, splits)

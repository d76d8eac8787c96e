"""Origin `synthetic`: seeded graphs with layout configurations and an analytic runtime, for tests and scale studies.

Every graph has a random generator of its own, from seed, collection, split and index: a repeated or resumed run, or one
with another number of graphs, writes the same bytes for each graph.

The runtime of a configuration, in ns, is

    sum over nodes of OVERHEAD + moved / BANDWIDTH + sum over configurable nodes of work * miss + copy
    moved = bytes of the output, and for a configurable node of its operands, each times the padding in its layout
    work  = floating point operations of a convolution or dot / FLOPS
    miss  = 1 if the contracted dimension of the input, its last one, is minor-most, else MISS
    copy  = bytes of the input / COPY_BANDWIDTH if its layout is not the one that the node requires, else 0

An elementwise node has the layout of its latest operand of equal shape, so that a configured layout holds along a chain
of nodes up to a far node that requires another one: only message passing can learn that. A layout of six -1 is the
default: the node's own.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, model_validator

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError, Section
from hlorank.data.collection import SPLITS, Collection, remove_stale, write_graph
from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_VALUES, LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.graph import Graph, Int64
from hlorank.fetch.synthetic_graphs import ELEMENTWISE, MIN_NODES, build_graph
from hlorank.files import DataError, code_digest, counted, fingerprint, read_json, write_json
from hlorank.hlo.node_features import COLUMNS, ELEMENT_TYPE, OPCODES, SHAPE

logger = logging.getLogger(__name__)

Codes = NDArray[np.unsignedinteger[Any]]
Float64 = NDArray[np.float64]
Layouts = NDArray[np.int8]

BANDWIDTH = 900.0  # bytes per ns
COPY_BANDWIDTH = 200.0  # bytes per ns
FLOPS = 20_000.0  # floating point operations per ns
OVERHEAD = 20.0  # ns
MISS = 2.0

_SETTINGS_FILE = "synthetic.json"
_CODE = ("hlorank.fetch.synthetic", "hlorank.fetch.synthetic_graphs", "hlorank.data")
# Rows that nodes of one opcode and ranks choose from, besides the default. Real graphs have 14 to 62 distinct rows.
_ROWS_PER_SIGNATURE = 8
_BATCH = 1024
_GENERATIONS = 16
_ELITE = 0.25
# The search from the default configuration changes this share of the nodes at once, but on average three or more.
_MUTATED, _MUTATIONS = 0.02, 3.0
_BARREN_BATCHES = 8
_CHUNK_VALUES = 2**21

_CONVOLUTION, _RESHAPE = OPCODES["convolution"], OPCODES["reshape"]
_ELEMENTWISE = [OPCODES[name] for name in ELEMENTWISE]
_FREE = [OPCODES[name] for name in ("parameter", "constant", "broadcast", "tuple", "get-tuple-element", "while")]
_BYTES = np.array([0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0])  # of an element, by its column


class SyntheticConfig(Section):
    """Settings of the origin `synthetic`."""

    seed: int
    """Seed of the generator."""
    train: NonNegativeInt
    """Graphs in the train split."""
    valid: NonNegativeInt
    """Graphs in the valid split."""
    test: NonNegativeInt
    """Graphs in the test split; their labels are known."""
    min_nodes: int = Field(ge=MIN_NODES)
    """Nodes of the smallest graph."""
    max_nodes: int
    """Nodes of the largest graph."""
    configurable_nodes: int | None = Field(ge=1)
    """Configurable nodes per graph; null places as many as real graphs of that size have."""
    configurations: int = Field(ge=1)
    """Configurations per graph, repeated ones included."""
    repeated: float = Field(ge=0, le=1)
    """Share of the configurations that repeat another one."""
    noise: float = Field(ge=0)
    """Standard deviation of the multiplicative log-normal noise of a measurement."""

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        expected = f"a number of at least min_nodes={self.min_nodes}"
        return self.require(self.min_nodes <= self.max_nodes, "max_nodes", expected)


def fetch(collection: Collection, config: SyntheticConfig, output: Path) -> None:
    """Write the graphs of layout:synthetic:<search>; complete files with the same settings and code are kept."""
    if collection.source != "synthetic" or collection.search not in ("default", "random"):
        expected = "layout/synthetic/<default or random>, as all generated data is named"
        raise ConfigError(f"collection={collection}: expected {expected}; or choose another origin with data=")
    plain = {key: value for key, value in config.model_dump(mode="json").items() if key not in SPLITS}
    settings = {"collection": str(collection), "code": code_digest(*_CODE), **plain}
    settings_file = output / _SETTINGS_FILE
    try:
        known = read_json(settings_file) == settings
    except DataError:
        known = False
    seeds = {
        output / split / f"synthetic_{split}_{index:03d}.npz": [config.seed, str(collection), split, index]
        for split in SPLITS
        for index in range(getattr(config, split))
    }
    remove_stale(output, seeds if known else ())
    write_json(settings_file, settings)
    missing = [path for path in seeds if not path.exists()]
    logger.info("%s: %s, up to date %d", collection, counted(len(seeds), "graph"), len(seeds) - len(missing))

    def write(path: Path) -> None:
        rng = np.random.default_rng(int(fingerprint(seeds[path]), 16))
        low, high = config.min_nodes, config.max_nodes
        nodes = min(high, math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
        shape = nodes, config.configurable_nodes, config.configurations, str(collection.search)
        write_graph(path, layout_graph(rng, *shape, config.repeated, config.noise, path.stem))

    for _ in map_graphs(write, missing, SERIAL, str(collection)):
        pass


def layout_graph(
    rng: Generator,
    nodes: int,
    configurable_nodes: int | None,
    configurations: int,
    search: str,
    repeated: float,
    noise: float,
    name: str = "synthetic",
) -> MeasuredGraph:
    """Draw a graph with measured layout configurations; arguments as in SyntheticConfig.

    The search `random` draws each configuration alone: a share of the nodes, itself drawn from 0..1, gets random
    layouts. `default` evolves the default configuration (all -1): each generation changes a few nodes of configurations
    among the fastest quarter so far. More than a share of `repeated` are repeated if the graph has too few.
    """
    graph, node_ids = build_graph(rng, nodes, configurable_nodes)
    codebook, options = _draw_space(rng, graph, node_ids)
    distinct = max(1, configurations - round(repeated * configurations))
    codes, runtime = _explore(rng, RuntimeModel(graph, node_ids, codebook), options, distinct, search)
    repeats = rng.integers(len(codes), size=configurations - len(codes))
    order = rng.permutation(np.concatenate([np.arange(len(codes)), repeats]))
    layouts = LayoutConfigurations(node_ids, codebook, codes[order])
    measured = runtime[order] * np.exp(rng.normal(0.0, noise, len(order)))
    return MeasuredGraph(name, graph, layouts, Measurements(np.maximum(np.rint(measured), 1).astype(np.int64)))


def _operands(graph: Graph, node_ids: Int64) -> tuple[Int64, Int64]:
    """Return the first and the last operand of nodes, their input and kernel, from the edges, whose rows are sorted."""
    users, operands = graph.edge_index.T
    first = np.searchsorted(users, node_ids, side="left")
    return operands[first], operands[np.searchsorted(users, node_ids, side="right") - 1]


def _draw_space(rng: Generator, graph: Graph, node_ids: Int64) -> tuple[Layouts, Codes]:
    """Draw a codebook, row 0 the default, and codes (configurable nodes, choices); similar nodes share rows."""
    ranks = (graph.node_feat[:, SHAPE.start : SHAPE.start + LAYOUT_DIMS] > 0).sum(axis=1)
    inputs, kernels = _operands(graph, node_ids)
    has_kernel = graph.node_opcode[node_ids] == _CONVOLUTION
    signature = np.stack([ranks[node_ids], ranks[inputs], ranks[kernels] * has_kernel], axis=1)
    signatures, member = np.unique(signature, axis=0, return_inverse=True)
    drawn = np.full((len(signatures), _ROWS_PER_SIGNATURE, LAYOUT_VALUES), -1, dtype=np.int8)
    for rows, slots in zip(drawn, signatures, strict=True):
        for tensor, rank in enumerate(slots):
            start = tensor * LAYOUT_DIMS
            rows[:, start : start + rank] = rng.permuted(np.tile(np.arange(rank), (_ROWS_PER_SIGNATURE, 1)), axis=1)
    default = np.full((1, LAYOUT_VALUES), -1, dtype=np.int8)
    known = np.concatenate([default, drawn.reshape(-1, LAYOUT_VALUES)])
    codebook, codes = np.unique(known, axis=0, return_inverse=True)
    options = codes.ravel()[1:].reshape(len(signatures), -1)[member.ravel()]
    return codebook, options.astype(np.min_scalar_type(len(codebook) - 1))


def _explore(rng: Generator, model: RuntimeModel, options: Codes, wanted: int, search: str) -> tuple[Codes, Float64]:
    """Find up to `wanted` distinct configurations, the default first, and their runtimes."""
    count, choices = options.shape
    codes = np.zeros((wanted, count), dtype=options.dtype)
    runtime = np.empty(wanted)
    runtime[:1] = model(codes[:1])
    seen, size, barren = {codes[0].tobytes()}, 1, 0
    batch = min(_BATCH, -(-wanted // _GENERATIONS)) if search == "default" else _BATCH
    while size < wanted and barren < _BARREN_BATCHES:
        if search == "default":
            elite = np.argsort(runtime[:size], kind="stable")[: max(1, int(_ELITE * size))]
            parents = codes[rng.choice(elite, batch)]
            share = np.full((batch, 1), max(_MUTATED, _MUTATIONS / count))
        else:
            parents = np.zeros((batch, count), dtype=codes.dtype)
            share = rng.random((batch, 1))
        picks = options[np.arange(count), rng.integers(choices, size=parents.shape)]
        children = np.where(rng.random(parents.shape) < share, picks, parents)
        fresh = {row.tobytes(): row for row in children}
        new = [row for key, row in fresh.items() if key not in seen][: wanted - size]
        seen.update(fresh)
        barren = 0 if new else barren + 1
        if new:
            codes[size : size + len(new)] = new
            runtime[size : size + len(new)] = model(codes[size : size + len(new)])
            size += len(new)
    return codes[:size], runtime[:size]


def padding(dims: Int64, layouts: Layouts) -> Float64:
    """Return the waste of registers of 128 lanes by the minor-most dimension of shapes and layouts (..., 6)."""
    minor = layouts[..., :1].astype(np.int64)
    extent = np.take_along_axis(np.broadcast_to(dims, layouts.shape), np.maximum(minor, 0), axis=-1)[..., 0]
    # A scalar wastes nothing; a table also has rows for nodes of a higher rank.
    extent = np.where((minor[..., 0] < 0) | (extent == 0), 128, extent)
    return np.asarray(np.sqrt(-(-extent // 128) * 128 / extent))


class RuntimeModel:
    """The formula of this module as tables of configurable nodes and rows of the codebook, to gather from and to sum.

    The copies compare the layout that the node `_owner` gives to the input with the one that is required.
    """

    def __init__(self, graph: Graph, node_ids: Int64, codebook: Layouts) -> None:
        dims = graph.node_feat[:, SHAPE.start : SHAPE.start + LAYOUT_DIMS].astype(np.int64)
        own = graph.node_feat[:, COLUMNS["minor_to_major"].start :].astype(np.int8)
        own = np.where(dims > 0, own, np.int8(-1))
        elements = np.maximum(dims, 1).prod(axis=1)
        types = graph.node_feat[:, ELEMENT_TYPE.start : ELEMENT_TYPE.stop].argmax(axis=1)
        size, opcode = elements * _BYTES[types], graph.node_opcode
        source = _sources(graph, dims)
        owner = np.full(graph.nodes, -1)
        owner[node_ids] = np.arange(len(node_ids))
        owner = owner[source]
        paid = ~np.isin(opcode, _FREE)
        inputs, kernels = _operands(graph, node_ids)
        # The owner is one of its own followers.
        follows = paid & (owner >= 0)
        moved = [
            np.bincount(owner[follows], weights=size[follows], minlength=len(node_ids)),
            size[inputs],
            size[kernels] * (opcode[node_ids] == _CONVOLUTION),
        ]
        layouts: list[Layouts] = []
        weighted: list[Float64] = []
        for tensor, (nodes, size_moved) in enumerate(zip((node_ids, inputs, kernels), moved, strict=True)):
            rows = codebook[None, :, tensor * LAYOUT_DIMS : (tensor + 1) * LAYOUT_DIMS]
            layouts.append(np.where(rows[..., :1] < 0, own[nodes, None], rows))
            weighted.append(size_moved[:, None] * padding(dims[nodes, None], layouts[-1]))
        rank = (dims > 0).sum(axis=1)
        features = dims[node_ids, np.maximum(rank[node_ids] - 1, 0)]  # the last of the output and of the kernel
        flops = 2.0 * elements[node_ids] * elements[kernels] / np.maximum(features, 1) * (opcode[node_ids] != _RESHAPE)
        miss = np.where(layouts[1][..., 0] == rank[inputs, None] - 1, 1.0, MISS)
        self._single = sum(weighted) / BANDWIDTH + flops[:, None] / FLOPS * miss
        fixed = paid & ~follows
        moved_fixed = size[fixed] * padding(dims[fixed], own[source[fixed]])
        self._constant = float(OVERHEAD * paid.sum() + moved_fixed.sum() / BANDWIDTH)

        self._owner = owner[inputs]
        self._copied = size[inputs] / COPY_BANDWIDTH
        self._have, self._want = _numbers(layouts[0]), _numbers(layouts[1])
        self._fixed = _numbers(own[source[inputs]])

    def __call__(self, codes: Codes) -> Float64:
        """Return (configurations,) float64 ns for codes (configurations, configurable nodes)."""
        nodes = np.arange(len(self._single))
        step = max(1, _CHUNK_VALUES // len(nodes))
        runtime = np.empty(len(codes))
        for start in range(0, len(codes), step):
            chunk = codes[start : start + step].astype(np.int64)
            have = np.where(self._owner >= 0, self._have[self._owner, chunk[:, self._owner]], self._fixed)
            copies = (have != self._want[nodes, chunk]) @ self._copied
            runtime[start : start + step] = self._constant + self._single[nodes, chunk].sum(axis=1) + copies
        return runtime


def _sources(graph: Graph, dims: Int64) -> Int64:
    """Return the node whose layout each node has: itself, or the start of its chain of elementwise nodes."""
    u, v = graph.edge_index.T
    alike = np.isin(graph.node_opcode[u], _ELEMENTWISE) & ~np.isin(graph.node_opcode[v], _FREE)
    alike &= (dims[u] == dims[v]).all(axis=1)
    source = np.arange(graph.nodes)
    source[u[alike]] = v[alike]  # rows are sorted: the latest operand stays
    while not np.array_equal(source, further := source[source]):
        source = further
    return source


def _numbers(layouts: Layouts) -> Int64:
    """Return numbers that are equal for equal layouts (..., 6) only."""
    return (layouts + np.int64(1)) @ (LAYOUT_DIMS + 1) ** np.arange(LAYOUT_DIMS)

"""Properties of configurations in words of the compiler, for the analysis of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.featurize.tile_columns import tile_names
from hlorank.hlo.node_features import OPCODES

_BOUNDS = (*(f"[{i}]" for i in range(LAYOUT_DIMS)), " sum", " product")
_OFFICIAL = [f"{part} bounds{place}" for part in ("kernel", "output", "input") for place in _BOUNDS]
_NAMES = {number: name for name, number in OPCODES.items()}


def opcode_names(opcodes: Sequence[int]) -> list[str]:
    """Return the name of each index into a vocabulary of opcodes, in which 0 is unknown."""
    return ["unknown", *(_NAMES.get(opcode, f"opcode {opcode}") for opcode in opcodes)]


def properties(graph: GraphFeatures, rows: NDArray[np.int64], spec: FeatureSpec) -> dict[str, NDArray[np.float64]]:
    """Return the properties of some configurations by name.

    Those of tiles are the columns that the features keep, scaled, without those that have the order of another within a
    kernel. Those of layouts are, for each opcode, the share of bytes that copies to its layouts move (`moved`), and for
    each opcode and tensor (output, input, kernel) the number of elements whose contiguous dimension is the last one,
    the second last one, ... (`minor -1`, `minor -2`).

    Args:
        graph: the graph.
        rows: (rows,) indices of distinct configurations.
        spec: specification of the features.

    Returns:
        (rows,) numbers by name, without properties of layouts that no configuration has.
    """
    configurations = graph.configurations
    if isinstance(configurations, LayoutFeatures):
        opcodes = graph.opcode[configurations.node_ids]
        names = opcode_names(spec.opcodes.tolist())
        of_opcodes = (_layouts(names[opcode], configurations, rows, opcodes == opcode) for opcode in np.unique(opcodes))
        return {name: values for found in of_opcodes for name, values in found.items() if values.any()}
    assert spec.tile_columns is not None  # of tiles
    columns = [*_OFFICIAL, *tile_names(spec.options.derived)]
    kept = (columns[column] for column in spec.tile_columns.columns.tolist())
    found = zip(kept, configurations.feat[rows].T.astype(np.float64), strict=True)
    return {name: values for name, values in found if not name.endswith("/ dims") and not name.startswith("log st")}


def _layouts(
    opcode: str, configurations: LayoutFeatures, rows: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> Mapping[str, NDArray[np.float64]]:
    """Return the properties of the nodes of one opcode."""
    codes = configurations.codes[rows][:, chosen]
    shape = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)
    book = configurations.codebook.reshape(shape)
    rank = (book >= 0).sum(axis=2)
    elements = np.where(rank > 0, np.maximum(configurations.sizes.reshape(shape), 1).prod(axis=2, dtype=np.float64), 0)
    found = {f"{opcode} moved": configurations.moves[:, 0].astype(np.float64)[codes].sum(axis=1)}
    for place, tensor in enumerate(LAYOUT_TENSORS):
        last = rank[:, place] - book[:, place, 0]  # 1 where the last dimension is contiguous
        for back in range(1, LAYOUT_DIMS + 1):
            having = np.where(last == back, elements[:, place], 0)
            found[f"{opcode} {tensor} minor -{back}"] = having[codes].sum(axis=1)
    return found

"""Layout and tile configurations of tuning records, with their runtimes."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import (
    LAYOUT_DIMS,
    LAYOUT_TENSORS,
    LAYOUT_VALUES,
    TILE_FEATURES,
    LayoutConfigurations,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import Float32, Int64
from hlorank.files import DataError, one_line
from hlorank.hlo.hlo_pb2 import ConfigProfile, HloInstructionProto, ModuleTuningData, NodeLayoutConfig
from hlorank.hlo.node_features import CONFIGURABLE
from hlorank.hlo.program import Program

_CHUNK_VALUES = 2**22


class NothingToConfigureError(DataError):
    """A dump without a node whose layout can be configured: a valid program with nothing to rank."""

    def __str__(self) -> str:
        place = "" if self.file is None else f"{self.file}: "
        return one_line(f"{place}no {self.expected}, whose layouts could be chosen")


def _good_runs(tuning: ModuleTuningData) -> tuple[list[tuple[int, ConfigProfile]], Int64]:
    """Return the valid runs (over 1 ns, no error) with their indices, and their runtimes in ns, 0 if withheld."""
    runs = [(index, run) for index, run in enumerate(tuning.runs) if not run.error]
    timed = [(index, run) for index, run in runs if run.profile.compute_time_ns > 1]
    if not runs:
        raise DataError("runs", "at least one run without an error", f"none among {len(tuning.runs)}")
    return timed or runs, np.array([run.profile.compute_time_ns for _, run in timed] or [0] * len(runs), np.int64)


def _node_layout(node: NodeLayoutConfig, field: str) -> list[int]:
    if len(node.tensors) > len(LAYOUT_TENSORS):
        raise DataError(f"{field}.tensors", f"at most {len(LAYOUT_TENSORS)}: output, input, kernel", len(node.tensors))
    row = [-1] * LAYOUT_VALUES
    for number, tensor in enumerate(node.tensors):
        dims = tensor.dims
        if len(dims) > LAYOUT_DIMS:
            raise DataError(f"{field}.tensors[{number}].dims", f"at most {LAYOUT_DIMS} dimensions", len(dims))
        start = number * LAYOUT_DIMS
        row[start : start + len(dims)] = dims
    return row


def _layout_chunks(runs: Sequence[tuple[int, ConfigProfile]], nodes: int) -> Iterator[NDArray[np.int32]]:
    step = max(1, _CHUNK_VALUES // (nodes * LAYOUT_VALUES))
    for start in range(0, len(runs), step):
        chunk = []
        for index, run in runs[start : start + step]:
            field = f"runs[{index}].module_config.layout_config.nodes"
            layouts = run.module_config.layout_config.nodes
            if len(layouts) != nodes:
                raise DataError(field, f"an entry for each of {nodes} configurable nodes", len(layouts))
            chunk.append([_node_layout(layout, f"{field}[{i}]") for i, layout in enumerate(layouts)])
        yield np.array(chunk, dtype=np.int32)


def is_configurable(instruction: HloInstructionProto) -> bool:
    """Return whether the layout of an instruction of a dump can be configured: its dimensions fit in six values."""
    return instruction.opcode in CONFIGURABLE and len(instruction.shape.dimensions) <= LAYOUT_DIMS


def default_layout(program: Program) -> tuple[LayoutConfigurations, Measurements]:
    """Return the configuration that leaves all layouts to the compiler, runtime 0, or NothingToConfigureError."""
    nodes = [node for node, instruction in enumerate(program.instructions) if is_configurable(instruction)]
    if not nodes:
        *others, last = CONFIGURABLE
        expected = f"{', '.join(others)} or {last} of at most {LAYOUT_DIMS} dimensions"
        raise NothingToConfigureError("instructions", expected, "none")
    default = [np.full((1, len(nodes), LAYOUT_VALUES), -1)]
    withheld = Measurements(np.zeros(1, dtype=np.int64))
    return LayoutConfigurations.from_chunks(np.array(nodes, dtype=np.int64), default), withheld


def layouts(tuning: ModuleTuningData, program: Program) -> tuple[LayoutConfigurations, Measurements]:
    """Return the layout configurations of a record and their runtimes; a wrong field is refused with DataError."""
    count = len(program.instructions)
    positions = list(tuning.config_index_to_node)
    if not positions or max(positions) >= count:
        found = max(positions, default="none")
        raise DataError("config_index_to_node", f"positions of nodes in 0..{count - 1}, at least one", found)
    nodes = program.node_of[positions]
    order = np.argsort(nodes)
    if len(np.unique(nodes)) < len(nodes):
        raise DataError("config_index_to_node", "each node once", "a repeated node")
    for node in nodes:
        if (rank := len(program.instructions[node].shape.dimensions)) > LAYOUT_DIMS:
            expected = f"at most {LAYOUT_DIMS} dimensions at a configurable node, for its layout to fit"
            raise DataError(f"shape.dimensions of node {node}", expected, rank)
    runs, runtime = _good_runs(tuning)
    chunks = (chunk[:, order] for chunk in _layout_chunks(runs, len(nodes)))
    return LayoutConfigurations.from_chunks(nodes[order], chunks), Measurements(runtime)


def _bounds(values: Collection[int]) -> list[int]:
    """Return the first six values, the sum, and the product (0 of no values); both wrap at 64 bits."""
    array = np.array(values, dtype=np.int64)
    first = [*values][:6]
    return [*first, *[0] * (6 - len(first)), int(array.sum()), int(array.prod()) if len(array) else 0]


def default_tile() -> tuple[TileConfigurations, Measurements]:
    """Return the only configuration of a kernel without runs: no bounds, its runtime withheld (0, normalizer 1)."""
    feat: Float32 = np.zeros((1, TILE_FEATURES), dtype=np.float32)
    return TileConfigurations(feat), Measurements(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))


def tiles(tuning: ModuleTuningData) -> tuple[TileConfigurations, Measurements]:
    """Return a record's tile configurations, runtimes, and the default's runtime; DataError without valid runs."""
    runs, runtime = _good_runs(tuning)
    normalizer = 1
    if runtime.any():
        default = next((run for _, run in runs if run.is_default), None)
        if default is None:
            raise DataError("runs.is_default", "a default run with a runtime, as normalizer", "none")
        normalizer = default.profile.compute_time_ns
    sizes = (run.op_config.tile_size_config for _, run in runs)
    rows = [[*map(_bounds, (tile.kernel_bounds, tile.output_bounds, tile.input_bounds))] for tile in sizes]
    feat = np.array(rows, dtype=np.int64).reshape(len(runs), TILE_FEATURES).astype(np.float32)
    return TileConfigurations(feat), Measurements(runtime, np.full(len(runs), normalizer, dtype=np.int64))

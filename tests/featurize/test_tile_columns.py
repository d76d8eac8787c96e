"""Columns of tiles relative to their kernel, exact on small kernels."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from hlorank.config import FeaturizeConfig
from hlorank.data.configurations import TILE_FEATURES, TileConfigurations
from hlorank.data.graph import Graph
from hlorank.featurize.tile_columns import GROUPS, TiledKernel, tile_columns, tile_names
from hlorank.fetch.synthetic_graphs import Program, Shape
from hlorank.hlo.reader import featurize, read_records


def tile(output: list[int], kernel: list[int]) -> np.ndarray:
    """Make a row of official tile columns, without sums and products."""
    feat = np.zeros((1, TILE_FEATURES), dtype=np.float32)
    feat[0, 8 : 8 + len(output)], feat[0, : len(kernel)] = output, kernel
    return feat


def columns(graph: Graph, feat: np.ndarray, group: str, on_tpu: bool = False) -> dict[str, float]:
    found = tile_columns(graph, feat, [group], on_tpu)
    assert (found[:, :TILE_FEATURES] == feat).all()
    return dict(zip(tile_names([group]), found[0, TILE_FEATURES:].tolist(), strict=True))


def product(left: Shape = (64, 12), right: Shape = (12, 40), result: Shape = (64, 40)) -> Graph:
    """Return the graph of a product of floats."""
    program = Program()
    program.add("dot", result, [program.add("parameter", left), program.add("parameter", right)])
    return program.graph()


def test_the_configuration_has_all_groups() -> None:
    (names,) = get_args(FeaturizeConfig.model_fields["derived"].annotation)
    assert {name for name in get_args(names) if name.startswith("tile_")} == set(GROUPS)


LINES = 4 * 4 * (16 * 1 + 8) * 64 / ((64 * 12 + 12 * 40) * 4)  # 4 x 4 tiles; a run of 480 bytes has 8 lines
STARTS = 4 * 4 * 4 * 16 * 3


@pytest.mark.parametrize(
    ("output", "kernel", "group", "expected"),
    [
        # Sizes and shares are in memory order, and columns that a kernel lacks are 1.
        ([16, 10], [3], "tile_shares", [10, 16, 1, 1, 1, 1, 0.25, 0.25, 1, 1, 1, 1, 0.25, 1, 1, 1, 1, 1]),
        ([], [], "tile_shares", [40, 64, *[1] * 16]),
        ([16, 16], [8], "tile_remainders", np.log2([1.2, 4 / 3, 1.2])),  # 3 * 16 / 40 and 2 * 8 / 12
        # The result: 16 whole rows. The left operand: 16 rows of 3 floats, the right one: 3 whole rows of 40.
        ([16, 40], [3], "tile_runs", [16 * 40 * 4, (16 * 3 + 3 * 40) * 4 / 17, 12, np.log2(LINES)]),
        # The innermost loop runs over the columns of the right operand.
        ([16, 10], [3], "tile_loops", [10, 0.25, 10 / 16, 0, STARTS, np.log2(STARTS / (64 * 40 * 12))]),
    ],
)
def test_columns_of_a_product(output: list[int], kernel: list[int], group: str, expected: list[float]) -> None:
    found = columns(product(), tile(output, kernel), group)
    np.testing.assert_allclose([*found.values()], expected, rtol=1e-6)


def test_transposed_operands_are_read_along_the_reduced_dimension() -> None:
    found = columns(product(right=(40, 12)), tile([16, 10], [3]), "tile_loops")
    assert (found["innermost"], found["innermost reduced"]) == (3, 1)


def test_a_tile_of_a_fused_kernel_is_followed_to_its_parameters() -> None:
    program = Program()
    row = program.add("parameter", (40,))
    wide = program.add("broadcast", (64, 40), [row], dimensions=[1])
    turned = program.add("copy", (64, 40), [program.add("parameter", (64, 40), layout=(0, 1))], layout=(1, 0))
    program.add("add", (64, 40), [wide, turned])
    found = columns(program.graph(), tile([16, 10], []), "tile_runs")
    assert found["written run"] == 40
    assert found["shortest run"] == 40  # of the row; the other array has runs of 16 floats
    assert found["mean run"] == pytest.approx((10 + 160) * 4 / 11)


@pytest.mark.parametrize("on_tpu", [False, True])
def test_columns_of_empty_arrays_are_finite(on_tpu: bool) -> None:
    graph = product((0, 12), (12, 0), (0, 0))
    assert np.isfinite(tile_columns(graph, tile([16, 10], [3]), list(GROUPS), on_tpu)).all()


def test_bounds_of_tpus_count_registers_of_the_product_and_its_second_operand() -> None:
    program = Program()
    operands = [program.add("parameter", (32, 512)), program.add("parameter", (512, 1000), layout=(0, 1))]
    product = program.add("dot", (32, 1000), operands)
    program.add("reduce", (32,), [product], dimensions=[1])
    graph, feat = program.graph(), tile([2, 8], [125, 1])  # 16 rows; all columns, of which the last register has 104
    found = columns(graph, feat, "tile_shares", on_tpu=True)
    assert [found[f"tile[{i}]"] for i in range(3)] == [1000, 16, 1]
    assert [found[f"tile[{i}] / dims"] for i in range(3)] == [1, 0.5, 1]
    assert [found[f"reduced[{i}] / dims"] for i in range(2)] == [0.25, 1]
    found = columns(graph, feat, "tile_runs", on_tpu=True)
    register = 8 * 128 * 4
    assert found["written run"] == 2 * 8 * register
    assert found["shortest run"] == register  # of the left operand: 2 of 4 x 1 of 4
    assert found["mean run"] == (2 + 125) * register / (2 + 125)
    assert found["log lines"] == pytest.approx(np.log2(2 * 4 * (2 + 125) / (4 * 4 + 125 * 4)))


def test_bounds_of_tpus_are_those_of_what_is_reduced() -> None:
    program = Program()
    array = program.add("parameter", (32, 6, 300))
    program.add("reduce", (32, 6), [array], dimensions=[2])
    found = columns(program.graph(), tile([4, 1, 2], []), "tile_shares", on_tpu=True)
    assert [found[f"tile[{i}]"] for i in range(3)] == [256, 6, 4]
    vector = program.add("exponential", (4096,), [program.add("parameter", (4096,))])
    assert vector == len(program) - 1
    assert columns(program.graph(), tile([3], []), "tile_shares", on_tpu=True)["tile[0]"] == 3 * 1024


def test_the_largest_bounds_of_tpu_kernels_are_those_of_whole_shapes(shared_data: Path) -> None:
    found = {}
    for record in read_records(shared_data / "official" / "op_tuning_data.pb"):
        measured, _ = featurize(record)
        assert isinstance(measured.configurations, TileConfigurations)
        feat = measured.configurations.feat
        if feat.any():
            kernel = TiledKernel(measured.graph, feat, on_tpu=True)
            found[measured.name] = (kernel.output.max(axis=0) == kernel.extents).all()
    assert len(found) == 12
    # No configuration of two has the whole shape.
    partial = {name.removeprefix("op_tuning_data_") for name, whole in found.items() if not whole}
    assert partial == {"-d35a43855de59c9", "715d6c5d784f9262"}

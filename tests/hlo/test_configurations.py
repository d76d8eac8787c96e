"""Configurations and runtimes of tuning records."""

from __future__ import annotations

import numpy as np
import pytest

from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError
from hlorank.hlo.configurations import (
    default_layout,
    default_tile,
    layouts,
    tiles,
)
from hlorank.hlo.hlo_pb2 import ConfigProfile, HloModuleProto, ModuleTuningData
from hlorank.hlo.program import flatten


def read_layouts(record: ModuleTuningData) -> tuple[LayoutConfigurations, list[int]]:
    configurations, measurements = layouts(record, flatten(record.module))
    return configurations, measurements.runtime.tolist()


def test_layouts_are_output_input_and_kernel_padded_with_minus_one(layout_record: ModuleTuningData) -> None:
    node = layout_record.runs[1].module_config.layout_config.nodes[0]
    node.tensors.add(dims=[1, 0])
    node.tensors.add(dims=[2])
    configurations, runtime = read_layouts(layout_record)
    assert configurations.node_ids.tolist() == [2]
    assert configurations.values()[0].tolist() == [[-1] * 18]
    assert configurations.values()[1].tolist() == [[0, 1, *[-1] * 4, 1, 0, *[-1] * 4, 2, *[-1] * 5]]
    assert runtime == [100, 90]


def test_configurable_nodes_follow_the_order_of_nodes(layout_record: ModuleTuningData) -> None:
    layout_record.config_index_to_node[:] = [3, 1]  # the call and main's parameter
    for run, dims in zip(layout_record.runs, ([0], [1]), strict=True):
        run.module_config.layout_config.nodes[0].tensors[0].dims[:] = [5]
        run.module_config.layout_config.nodes.add().tensors.add(dims=dims)
    configurations, _ = read_layouts(layout_record)
    assert configurations.node_ids.tolist() == [1, 3]
    assert configurations.values()[:, :, 0].tolist() == [[0, 5], [1, 5]]
    # The same record whose caller is stored first: positions count as stored, nodes as sorted.
    caller_first = [layout_record.module.computations[1], layout_record.module.computations[0]]
    moved = HloModuleProto(computations=caller_first)
    layout_record.module.CopyFrom(moved)
    layout_record.config_index_to_node[:] = [2, 0]
    again, _ = read_layouts(layout_record)
    assert again.node_ids.tolist() == [1, 3]
    np.testing.assert_array_equal(again.values(), configurations.values())


def test_runs_that_failed_or_were_not_measured_are_dropped(layout_record: ModuleTuningData) -> None:
    good = layout_record.runs[1]
    failed, unmeasured, instant = ConfigProfile(), ConfigProfile(), ConfigProfile()
    for run in (failed, unmeasured, instant):
        run.CopyFrom(good)
    failed.error = True
    unmeasured.ClearField("profile")
    instant.profile.compute_time_ns = 1
    layout_record.runs.extend([failed, unmeasured, instant])
    assert read_layouts(layout_record)[1] == [100, 90]


def test_a_record_without_any_time_has_its_labels_withheld(
    layout_record: ModuleTuningData, tile_record: ModuleTuningData
) -> None:
    for run in [*layout_record.runs, *tile_record.runs]:
        run.ClearField("profile")
    layout_record.runs[0].error = True
    assert read_layouts(layout_record)[1] == [0]
    _, measurements = tiles(tile_record)
    assert measurements.withheld
    assert measurements.normalizer is not None
    assert measurements.normalizer.tolist() == [1, 1]


def test_tiles_have_bounds_with_sum_and_product_and_the_default_as_normalizer(tile_record: ModuleTuningData) -> None:
    tile_record.runs[0].op_config.tile_size_config.kernel_bounds.extend([1, 2, 3, 4, 5, 6, 7])
    configurations, measurements = tiles(tile_record)
    assert configurations.feat[0].tolist() == [
        1, 2, 3, 4, 5, 6, 28, 5040,
        2, 3, 0, 0, 0, 0, 5, 6,
        *[0] * 8,
    ]  # fmt: skip
    assert configurations.feat[1, 8:16].tolist() == [4, 0, 0, 0, 0, 0, 4, 4]
    assert measurements.runtime.tolist() == [500, 400]
    assert measurements.normalizer is not None
    assert measurements.normalizer.tolist() == [500, 500]


def test_a_program_without_runs_has_the_compilers_own_layouts(module: HloModuleProto) -> None:
    configurations, measurements = default_layout(flatten(module))
    assert configurations.node_ids.tolist() == [2]
    assert configurations.values().tolist() == [[[-1] * 18]]
    assert measurements.withheld
    assert len(measurements) == 1
    tile, measurements = default_tile()
    assert tile.feat.tolist() == [[0.0] * 24]
    assert measurements.withheld


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "config_index_to_node: .*none"),
        ([4], r"config_index_to_node: .*4"),
        ([2**64 - 1], "config_index_to_node: .* found 18446744073709551615"),
        ([2, 2], "config_index_to_node: "),
        (
            [1, 2],
            r"runs\[0\].module_config.layout_config.nodes: .*1",
        ),
    ],
)
def test_broken_configurable_nodes_are_refused(nodes: list[int], message: str, layout_record: ModuleTuningData) -> None:
    layout_record.config_index_to_node[:] = nodes
    with pytest.raises(DataError, match=message):
        read_layouts(layout_record)


def test_broken_layouts_are_refused_with_their_run(layout_record: ModuleTuningData) -> None:
    node = layout_record.runs[1].module_config.layout_config.nodes[0]
    node.tensors[0].dims[:] = [6]
    with pytest.raises(DataError, match=r"node_config_feat: .*-1\.\.5"):
        read_layouts(layout_record)
    node.tensors[0].dims[:] = range(7)
    place = r"runs\[1\].module_config.layout_config.nodes\[0\].tensors"
    with pytest.raises(DataError, match=place + r"\[0\].dims: .*\b6\b.*\b7"):
        read_layouts(layout_record)
    node.tensors[0].dims[:] = []
    for _ in range(3):
        node.tensors.add()
    with pytest.raises(DataError, match=place + r": .*\b3\b.*\b4"):
        read_layouts(layout_record)


def test_records_that_do_not_fit_are_refused(layout_record: ModuleTuningData, tile_record: ModuleTuningData) -> None:
    tile_record.runs[0].error = True
    with pytest.raises(DataError, match=r"runs.is_default: "):
        tiles(tile_record)
    layout_record.module.computations[1].instructions[1].shape.dimensions.extend([1] * 5)
    with pytest.raises(DataError, match=r"shape.dimensions of node 2: .*7"):
        read_layouts(layout_record)
    layout_record.module.computations[1].instructions[1].shape.dimensions[:] = [4, 4]
    for run in layout_record.runs:
        run.error = True
    with pytest.raises(DataError, match=r"runs: .*\b2"):
        read_layouts(layout_record)

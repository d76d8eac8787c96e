"""Conversion of protobuf files to npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import read_graph
from hlorank.files import DataError
from hlorank.hlo.convert import check_names, convert
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData


def test_every_graph_becomes_a_file_that_reads_back(
    tmp_path: Path, layout_record: ModuleTuningData, tile_record: ModuleTuningData
) -> None:
    source = tmp_path / "both.pb"
    several = TuningData(modules=[layout_record.SerializeToString(), tile_record.SerializeToString()])
    source.write_bytes(several.SerializeToString())
    layout, tile = convert(source, tmp_path / "out")
    assert (layout, tile) == (tmp_path / "out" / "both_1.npz", tmp_path / "out" / "both_-1a.npz")
    assert read_graph(layout, "layout").measurements.runtime.tolist() == [100, 90]
    assert read_graph(tile, "tile").measurements.runtime.tolist() == [500, 400]


def test_a_dump_becomes_a_graph_with_withheld_labels(tmp_path: Path, module: HloModuleProto) -> None:
    source = tmp_path / "jit_f.hlo.pb"
    source.write_bytes(module.SerializeToString())
    layout, extra = convert(source, tmp_path, extra=True)
    assert extra.name == "jit_f.extra.npz"
    measured = read_graph(layout, "layout")
    assert measured.measurements.withheld
    assert len(measured.configurations) == 1
    (tile,) = convert(source, tmp_path / "tile", "tile")
    assert read_graph(tile, "tile").measurements.withheld


def test_converting_the_official_record_equals_the_official_file(tmp_path: Path, shared_data: Path) -> None:
    (path,) = convert(shared_data / "official" / "module_tuning_data_layout.pb", tmp_path)
    official = shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
    with np.load(path) as ours, np.load(official) as theirs:
        assert set(ours) == set(theirs)
        for key in set(theirs) - {"config_runtime", "node_config_feat"}:  # 112 of the official 1,965 rows
            np.testing.assert_array_equal(ours[key], theirs[key], strict=True)


def test_equal_names_are_refused(tmp_path: Path, layout_record: ModuleTuningData) -> None:
    check_names([Path("a/x.pb"), Path("a/y.hlo.pb"), Path("a/x.pb")])
    with pytest.raises(DataError, match=r"b/x\.hlo\.pb: file name: "):
        check_names([Path("a/x.pb"), Path("b/x.hlo.pb")])
    source = tmp_path / "twice.pb"
    entry = layout_record.SerializeToString()
    source.write_bytes(TuningData(modules=[entry, entry]).SerializeToString())
    with pytest.raises(DataError, match=r"modules\[1\].fingerprint: "):
        convert(source, tmp_path)

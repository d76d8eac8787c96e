"""Origin hlo: the dataset's tree, flat folders of dumps, re-runs; conversion of files."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import Collection, Split, graph_files, read_graph
from hlorank.fetch.hlo import HloConfig, check_names, convert, fetch
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData

LAYOUT = Collection.parse("layout:own:default")


def module(opcode: str = "dot") -> HloModuleProto:
    result = HloModuleProto(name="m")
    computation = result.computations.add(name="main", id=1, root_id=2)
    computation.instructions.add(opcode="parameter", id=1)
    computation.instructions.add(opcode=opcode, id=2, operand_ids=[1])
    return result


def record(nanoseconds: int) -> ModuleTuningData:
    result = ModuleTuningData(module=module(), fingerprint=1, config_index_to_node=[1])
    run = result.runs.add()
    run.module_config.layout_config.nodes.add()
    run.profile.compute_time_ns = nanoseconds
    return result


def write(path: Path, message: HloModuleProto | ModuleTuningData) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(message.SerializeToString())


def config(root: Path, split: Split = "test", extra: bool = False) -> HloConfig:
    return HloConfig(root=str(root), split=split, dump="before_optimizations", extra=extra)


@pytest.mark.parametrize("below", [".", "pb"])
def test_the_datasets_tree_keeps_its_splits_and_a_second_fetch_removes_graphs_without_a_protobuf(
    below: str, tmp_path: Path
) -> None:
    tree = tmp_path / "in" / below / "layout" / "own" / "default"
    write(tree / "train" / "a.pb", record(10))
    write(tree / "train" / "b.pb", record(20))
    write(tree / "valid" / "a.pb", record(30))
    output = tmp_path / "raw" / LAYOUT.path
    fetch(LAYOUT, config(tmp_path / "in"), output)
    files = {split: graph_files(tmp_path / "raw", LAYOUT, split) for split in ("train", "valid", "test")}
    assert files == {
        "train": [output / "train" / "a.npz", output / "train" / "b.npz"],
        "valid": [output / "valid" / "a.npz"],
        "test": [],
    }
    assert read_graph(files["valid"][0], "layout").measurements.runtime.tolist() == [30]
    (tree / "train" / "b.pb").unlink()
    before = files["train"][0].read_bytes()
    fetch(LAYOUT, config(tmp_path / "in"), output)
    assert graph_files(tmp_path / "raw", LAYOUT, "train") == files["train"][:1]
    assert files["train"][0].read_bytes() == before


def test_a_flat_folder_of_dumps_goes_to_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "in" / "jit_f.before.hlo.pb", module())
    write(tmp_path / "in" / "jit_add.before.hlo.pb", module("add"))
    (tmp_path / "in" / "memory-usage-report.pb").write_bytes(b"not HLO")
    output = tmp_path / "raw" / LAYOUT.path
    with caplog.at_level(logging.WARNING):
        fetch(LAYOUT, config(tmp_path / "in", extra=True), output)
    (path,) = graph_files(tmp_path / "raw", LAYOUT, "test")
    assert read_graph(path, "layout").measurements.withheld
    assert sorted(file.name for file in (output / "test").iterdir()) == ["jit_f.before.extra.npz", "jit_f.before.npz"]
    taken, notice = caplog.messages
    assert "1 pb" in taken
    assert "left out: " in notice
    assert "jit_add.before.hlo.pb: no convolution, dot or reshape" in notice


def test_folders_without_usable_protobufs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.hlo.root: expected \*\.pb files.*layout/own/default.*, found none"):
        fetch(LAYOUT, config(tmp_path), tmp_path / "raw")
    with pytest.raises(DataError, match="found no such folder"):
        fetch(LAYOUT, config(tmp_path / "missing"), tmp_path / "raw")
    write(tmp_path / "in" / "a.pb", record(10))
    with pytest.raises(DataError, match=r"a\.pb: runs: expected tile configurations, found layout configurations"):
        fetch(Collection.parse("tile:own"), config(tmp_path / "in"), tmp_path / "raw")
    write(tmp_path / "in" / "a.pb", module("add"))
    with pytest.raises(DataError, match=r"data.hlo.root: .*1 protobuf"):
        fetch(LAYOUT, config(tmp_path / "in"), tmp_path / "raw")


def test_the_official_kernels_are_a_tile_collection(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "alexnet_train_batch_32.pb").symlink_to(shared_data / "official" / "op_tuning_data.pb")
    tiles = Collection.parse("tile:own")
    fetch(tiles, config(tmp_path / "in", "train"), tmp_path / "raw" / tiles.path)
    files = graph_files(tmp_path / "raw", tiles, "train")
    assert len(files) == 15
    assert files[0].name == "alexnet_train_batch_32_-3006cd0d02fa72c4.npz"
    assert sum(len(read_graph(path, "tile").configurations) for path in files) == 752


def test_every_graph_becomes_a_file_that_reads_back(tmp_path: Path) -> None:
    tile = ModuleTuningData(module=module(), fingerprint=2**64 - 26)
    for nanoseconds in (500, 400):
        run = tile.runs.add(is_default=nanoseconds == 500)
        run.op_config.tile_size_config.output_bounds.append(nanoseconds)
        run.profile.compute_time_ns = nanoseconds
    several = TuningData(modules=[record(100).SerializeToString(), tile.SerializeToString()])
    (tmp_path / "both.pb").write_bytes(several.SerializeToString())
    first, second = convert(tmp_path / "both.pb", tmp_path / "out")
    assert (first, second) == (tmp_path / "out" / "both_1.npz", tmp_path / "out" / "both_-1a.npz")
    assert read_graph(first, "layout").measurements.runtime.tolist() == [100]
    assert read_graph(second, "tile").measurements.runtime.tolist() == [500, 400]
    write(tmp_path / "jit_f.hlo.pb", module())
    (dump,) = convert(tmp_path / "jit_f.hlo.pb", tmp_path, "tile")
    assert read_graph(dump, "tile").measurements.withheld


def test_converting_the_official_record_equals_the_official_file(tmp_path: Path, shared_data: Path) -> None:
    (path,) = convert(shared_data / "official" / "module_tuning_data_layout.pb", tmp_path)
    official = shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
    with np.load(path) as ours, np.load(official) as theirs:
        assert set(ours) == set(theirs)
        for key in set(theirs) - {"config_runtime", "node_config_feat"}:  # 112 of the official 1,965 rows
            np.testing.assert_array_equal(ours[key], theirs[key], strict=True)


def test_equal_names_are_refused(tmp_path: Path) -> None:
    check_names([Path("a/x.pb"), Path("a/y.hlo.pb"), Path("a/x.pb")])
    with pytest.raises(DataError, match=r"b/x\.hlo\.pb: file name: "):
        check_names([Path("a/x.pb"), Path("b/x.hlo.pb")])
    source = tmp_path / "twice.pb"
    entry = record(10).SerializeToString()
    source.write_bytes(TuningData(modules=[entry, entry]).SerializeToString())
    with pytest.raises(DataError, match=r"modules\[1\].fingerprint: "):
        convert(source, tmp_path)

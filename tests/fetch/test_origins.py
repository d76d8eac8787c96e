"""Origins of plugins and of own data, local and hlo: copies, conversions, re-runs, new splits."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field

from hlorank.config import ConfigError, DataConfig, Section
from hlorank.data.collection import SPLITS, Collection, Split, read_graph
from hlorank.fetch import hlo, origins
from hlorank.fetch.hlo import HloConfig, convert
from hlorank.fetch.local import LocalConfig, fetch
from hlorank.files import DataError, read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData
from tests.data.npz_files import save, tile_arrays

TILE, LAYOUT = Collection.parse("tile:own"), Collection.parse("layout:own:default")


class NoteConfig(Section):
    text: str
    times: int = Field(exclude=True)


def fetch_note(collection: Collection, config: NoteConfig, output: Path) -> None:
    output.mkdir(parents=True)
    (output / "note").write_text(f"{collection} {config.text * config.times}")


def test_a_registered_origin_fetches_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(origins.ORIGINS, "note", origins.Origin(NoteConfig, fetch_note))
    output = tmp_path / "raw"
    for data, key in (
        ({"origin": "server"}, r"data\.origin=server: .*\bnote\b"),
        ({"origin": "note"}, r"data\.note\.text: "),
        ({"origin": "note", "note": {"text": "a", "times": "x"}}, r"data\.note\.times=x: "),
    ):
        with pytest.raises(ConfigError, match=f"^{key}"):
            origins.fetch(TILE, DataConfig.model_validate(data), output)
    assert not output.exists()
    data = {"origin": "note", "note": {"text": "ab", "times": 2}}
    origins.fetch(TILE, DataConfig.model_validate(data), output)
    assert (output / "note").read_text() == "tile:own abab"
    assert read_json(output / "made_from.json") == {"origin": "note", "note": {"text": "ab"}}


def write_kernel(path: Path, runtime: int = 5) -> Path:
    """Write a tile kernel; a runtime of 0 withholds the labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, tile_arrays() | {"config_runtime": np.full(3, runtime)})
    return path


def write_tree(root: Path, **graphs: list[str]) -> Path:
    """Write `<graph>.npz` of each split in a folder; names that end in `?` are written with labels withheld."""
    for split, names in graphs.items():
        for i, name in enumerate(names):
            write_kernel(root / split / f"{name.removesuffix('?')}.npz", 0 if name.endswith("?") else i + 1)
    return root


def local(root: Path, split_file: Path | None = None, joined: Sequence[str] = (), fold: int = 0) -> LocalConfig:
    path = None if split_file is None else str(split_file)
    return LocalConfig(root=str(root), split_file=path, folds=3, fold=fold, collections=list(joined))


def describe(graph: Path, family: str, split_half_tau: float | None = None) -> Path:
    """Write the sidecar of a graph."""
    path = graph.with_suffix(".json")
    path.write_text(json.dumps({"family": family, "split_half_tau": split_half_tau}))
    return path


def names(output: Path) -> dict[str, list[str]]:
    return {split: sorted(path.stem for path in (output / split).glob("*.npz")) for split in SPLITS}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "tile" / "own"


@pytest.mark.parametrize("below", ["", "npz"])
def test_a_tree_is_copied_and_a_second_run_copies_only_changed_files(own: Path, output: Path, below: str) -> None:
    def fetched() -> dict[str, int]:
        """Fetch, and compare the copies; return their inodes, which a new copy changes."""
        fetch(TILE, local(own), output)
        copies = {str(path.relative_to(output)): path for path in output.rglob("*.npz") if path not in mine}
        files = {name: (source / name).read_bytes() for name in copies}
        assert {name: copy.read_bytes() for name, copy in copies.items()} == files
        assert not any(copy.is_symlink() or copy.samefile(source / name) for name, copy in copies.items())
        return {name: copy.stat().st_ino for name, copy in copies.items()}

    mine = [output / "notes.npz", output / "train" / "notes.txt", output / "other" / "x.npz"]
    source = write_tree(own / below / TILE.path, train=["b", "a"], valid=["c"], test=["d?"])
    first = fetched()
    assert names(output) == {"train": ["a", "b"], "valid": ["c"], "test": ["d"]}
    assert fetched() == first
    write_kernel(source / "train" / "b.npz", runtime=99)
    (source / "valid" / "c.npz").unlink()
    write_tree(source, test=["e"])
    second = fetched()
    assert names(output) == {"train": ["a", "b"], "valid": [], "test": ["d", "e"]}
    assert {name for name in second if second[name] == first.get(name)} == {"train/a.npz", "test/d.npz"}
    damaged = output / "train" / "a.npz"  # of the right size and time
    stat = damaged.stat()
    damaged.write_bytes(bytes(stat.st_size))
    os.utime(damaged, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    half = output / "train" / ".b.npz.x.partial"  # as a kill leaves it
    for path in (half, *mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert fetched().keys() == second.keys()
    assert not half.exists()
    assert all(path.exists() for path in mine), "only graphs are removed"


def test_all_broken_files_are_reported_at_once_and_nothing_is_copied(own: Path, output: Path) -> None:
    folder = write_tree(own / TILE.path, train=["a", "b"], valid=["c"])
    (folder / "train" / "b.npz").write_bytes(b"no zip")
    np.savez(folder / "valid" / "c.npz", node_feat=np.zeros(3))
    with pytest.raises(ExceptionGroup) as caught:
        fetch(TILE, local(own), output)
    first, second = map(str, caught.value.exceptions)
    assert first.startswith(f"{folder}/train/b.npz: file: ")
    assert second.startswith(f"{folder}/valid/c.npz: keys: ")
    assert not output.exists()


def test_graphs_of_another_folder_are_never_replaced(tmp_path: Path, output: Path) -> None:
    def data(root: Path, folds: int = 3) -> DataConfig:
        settings = local(root).model_dump(mode="json") | {"folds": folds}
        return DataConfig.model_validate({"origin": "local", "local": settings})

    first, second = (write_tree(tmp_path / name, train=[f"graph-{name}"]) for name in ("a", "b"))  # without tile/own
    origins.fetch(TILE, data(first), output)
    with pytest.raises(ConfigError, match=r"^collection=tile:own: "):
        origins.fetch(TILE, data(second), output)
    origins.fetch(TILE, data(first, folds=4), output)
    assert names(output)["train"] == ["graph-a"]


def test_roots_without_the_collection_or_around_the_output_are_refused(own: Path, output: Path) -> None:
    expected = r"own: root: .*npz files in tile/own/<train\|valid\|test>.*found "
    for folder, found in (
        (None, "no such folder"),
        ("", "no collection"),
        ("tile/own/validation", "tile/own"),
        ("npz/layout/xla/random/train", "tile/own, npz/layout/xla/random"),
    ):
        if folder is not None:
            (own / folder).mkdir(parents=True)
        with pytest.raises(DataError, match=f"{expected}{found}$"):
            fetch(TILE, local(own), output)
    write_tree(own / TILE.path, train=["a"])
    for place in ("tile/own", "tile/own/train/copy", "."):
        with pytest.raises(ConfigError, match=r"data\.local\.root=.*: expected a folder other than"):
            fetch(TILE, local(own), own / place)
    assert names(own / TILE.path) == {"train": ["a"], "valid": [], "test": []}


@pytest.mark.parametrize("split", [False, True])
def test_joined_collections_keep_their_graphs_apart_and_families_together(own: Path, output: Path, split: bool) -> None:
    split_file = own / "folds.json"
    expected = {"one.net_b": "train", "one.late_b": "test", "two.net_b": "valid", "two.x_b": "train"}
    files: dict[str, Path] = {}
    for runtime, (name, place) in enumerate(expected.items()):
        source, graph = name.split(".")
        path = write_kernel(own / "tile" / source / place / f"{graph}.npz", runtime + 1)
        files |= {f"tile.{name}.npz": path, f"tile.{name}.json": describe(path, graph[:-2])}
    fetch(TILE, local(own, split_file if split else None, ["tile/one", "tile/two"]), output)
    copies = {path.name: path for path in output.rglob("*.*")}
    assert {name: path.read_bytes() for name, path in copies.items()} == {
        name: path.read_bytes() for name, path in files.items()
    }
    places = {name: copies[f"tile.{name}.npz"].parent.name for name in expected}
    assert places == {name: copies[f"tile.{name}.json"].parent.name for name in expected}
    if split:
        assert places["one.net_b"] == places["two.net_b"]
        assert json.loads(split_file.read_text())["collections"].keys() == {"tile:own"}
    else:
        assert places == expected
    for other, error in (("layout/cpu/random", ConfigError), ("tile/missing", DataError)):
        with pytest.raises(error, match=other.replace("/", "[:/]")):
            fetch(TILE, local(own, joined=["tile/one", other]), own / "other")


@pytest.mark.parametrize("flat", [False, True])
def test_a_new_split_keeps_families_together_and_withheld_labels_in_test(own: Path, output: Path, flat: bool) -> None:
    """Families are in the names of a tree's graphs, and in the sidecars of collected files, which have no splits."""
    splits = {"train": ["x_batch_1", "z_batch_1", "hidden_1?"], "valid": ["x_batch_2", "y"], "test": ["hidden_2?"]}
    source, together = write_tree(own / TILE.path, **splits), ("x_batch_1", "x_batch_2")
    if flat:
        together = ("y", "z_batch_1")
        for path in [*source.rglob("*.npz")]:
            describe(path.rename(source / path.name), "one" if path.stem in together else path.stem)
    fetch(TILE, local(own, own / "folds.json", fold=1), output)
    fold_of = json.loads((own / "folds.json").read_text())["collections"]["tile:own"]
    assert sorted(fold_of) == ["x_batch_1", "x_batch_2", "y", "z_batch_1"]
    assert {*fold_of.values()} == {0, 1, 2}
    assert fold_of[together[0]] == fold_of[together[1]]
    valid, test, train = ([name for name in sorted(fold_of) if fold_of[name] == fold] for fold in (1, 2, 0))
    assert names(output) == {"train": train, "valid": valid, "test": ["hidden_1", "hidden_2", *test]}
    if flat:
        with pytest.raises(DataError, match="npz files in tile/own"):
            fetch(TILE, local(own), output)
        return
    write_tree(source, test=["y"])
    with pytest.raises(DataError, match="graph names: expected each in one split of the tree, found y"):
        fetch(TILE, local(own, own / "other.json"), output)
    assert not (own / "other.json").exists()
    fetch(TILE, local(own), output)
    assert names(output)["valid"] == ["x_batch_2", "y"]
    assert names(output)["test"] == ["hidden_2", "y"]


def test_the_sidecar_comes_with_its_graph(own: Path, output: Path) -> None:
    graph = write_tree(own / TILE.path, train=["a.b_1", "b_1"], valid=["c_1"]) / "train" / "a.b_1.npz"
    sidecar = describe(graph, "a", 0.8)
    (graph.parent / "b_1.extra.npz").write_bytes(b"of 0.2")
    settings = local(own, own / "split.json")
    fetch(TILE, settings, output)
    (copy,) = output.rglob(graph.name)
    assert (copy.parent / sidecar.name).read_bytes() == sidecar.read_bytes()
    sidecar.unlink()
    copy.with_name("b_1.extra.npz").write_bytes(b"of 0.2")
    fetch(TILE, settings, output)
    assert {path.name for path in output.rglob("*.*")} == {"a.b_1.npz", "b_1.npz", "c_1.npz"}
    describe(graph, "a", 2)
    with pytest.raises(DataError, match=r"a.b_1.json: split_half_tau: expected a number in -1..1, or null, found 2"):
        fetch(TILE, settings, output)


def module(opcode: str = "dot") -> HloModuleProto:
    result = HloModuleProto(name="m")
    computation = result.computations.add(name="main", id=1, root_id=2)
    computation.instructions.add(opcode="parameter", id=1)
    computation.instructions.add(opcode=opcode, id=2, operand_ids=[1, 1]).dot_dimension_numbers.SetInParent()
    return result


def record(nanoseconds: int) -> ModuleTuningData:
    result = ModuleTuningData(module=module(), fingerprint=1, config_index_to_node=[1])
    run = result.runs.add()
    run.module_config.layout_config.nodes.add()
    run.profile.compute_time_ns = nanoseconds
    return result


def write(path: Path, message: HloModuleProto | ModuleTuningData | TuningData) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(message.SerializeToString())
    return path


def programs(root: Path, *, split: Split = "test") -> HloConfig:
    return HloConfig(root=str(root), split=split, dump="before_optimizations")


@pytest.mark.parametrize("below", ["", "pb"])
def test_the_datasets_tree_keeps_its_splits_and_loses_removed_protobufs(own: Path, output: Path, below: str) -> None:
    for nanoseconds, name in enumerate(("train/a", "train/b", "valid/a"), start=1):
        write(own / below / LAYOUT.path / f"{name}.pb", record(nanoseconds))
    hlo.fetch(LAYOUT, programs(own), output)
    assert names(output) == {"train": ["a", "b"], "valid": ["a"], "test": []}
    assert read_graph(output / "valid" / "a.npz", "layout").measurements.runtime.tolist() == [3]
    before = (output / "train" / "a.npz").read_bytes()
    (own / below / LAYOUT.path / "train" / "b.pb").unlink()
    hlo.fetch(LAYOUT, programs(own), output)
    assert names(output) == {"train": ["a"], "valid": ["a"], "test": []}
    assert (output / "train" / "a.npz").read_bytes() == before


@pytest.mark.parametrize("split", SPLITS)
def test_a_flat_folder_is_one_split(own: Path, output: Path, split: Split, caplog: pytest.LogCaptureFixture) -> None:
    write(own / "jit_f.before.hlo.pb", module())
    write(own / "jit_add.before.hlo.pb", module("add"))
    (own / "memory-usage-report.pb").write_bytes(b"not HLO")
    hlo.fetch(LAYOUT, programs(own, split=split), output)
    assert [path.relative_to(output).as_posix() for path in output.rglob("*.*")] == [f"{split}/jit_f.before.npz"]
    assert read_graph(output / split / "jit_f.before.npz", "layout").measurements.withheld
    taken, notice = caplog.messages
    assert "memory-usage-report.pb" in taken
    assert "jit_add.before.hlo.pb: no convolution, dot or reshape" in notice


def test_folders_without_usable_programs_are_refused(own: Path, output: Path) -> None:
    for collection, message, expected in (
        (LAYOUT, None, "found no such folder"),
        (LAYOUT, HloModuleProto(), r"data.hlo.root: .* \*\.pb files.*layout/own/default.*, found only other\.txt"),
        (TILE, record(10), r"a\.pb: runs: expected tile configurations, found layout configurations"),
        (LAYOUT, module("add"), r"data.hlo.root: .*1 protobuf"),
    ):
        if message is not None:
            name = "a.pb" if message.ByteSize() else "other.txt"
            write(own / name, message)
        with pytest.raises(DataError, match=expected):
            hlo.fetch(collection, programs(own), output)


def test_every_graph_becomes_a_file_of_its_own_that_reads_back(tmp_path: Path) -> None:
    tile = ModuleTuningData(module=module(), fingerprint=2**64 - 26)
    for nanoseconds in (500, 400):
        run = tile.runs.add(is_default=nanoseconds == 500)
        run.op_config.tile_size_config.output_bounds.append(nanoseconds)
        run.profile.compute_time_ns = nanoseconds
    entries = [record(100).SerializeToString(), tile.SerializeToString()]
    first, second = convert(write(tmp_path / "both.pb", TuningData(modules=entries)), tmp_path / "out")
    assert (first, second) == (tmp_path / "out" / "both_1.npz", tmp_path / "out" / "both_-1a.npz")
    assert read_graph(first, "layout").measurements.runtime.tolist() == [100]
    assert read_graph(second, "tile").measurements.runtime.tolist() == [500, 400]
    (dump,) = convert(write(tmp_path / "jit_f.hlo.pb", module()), tmp_path, "tile")
    assert read_graph(dump, "tile").measurements.withheld
    with pytest.raises(DataError, match=r"modules\[1\].fingerprint: "):
        convert(write(tmp_path / "twice.pb", TuningData(modules=entries[:1] * 2)), tmp_path)

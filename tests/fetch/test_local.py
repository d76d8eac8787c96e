"""Origin local: validated copies of a user's tree, re-runs, and new splits."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError, parse
from hlorank.data.collection import SPLITS, Collection
from hlorank.fetch.local import LocalConfig, fetch
from hlorank.files import DataError
from hlorank.hlo.extra import write_extra
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.program import flatten
from tests.data.npz_files import save, tile_arrays

TILE = Collection.parse("tile:own")


def write_kernel(path: Path, runtime: int = 5) -> Path:
    """Write a tile kernel; a runtime of 0 withholds the labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, tile_arrays() | {"config_runtime": np.full(3, runtime)})
    return path


def write_tree(root: Path, **graphs: list[str]) -> Path:
    """Write a tile tree `root`/tile/own/<split>/<graph>.npz; names that end in `?` are written with labels withheld."""
    for split, names in graphs.items():
        for i, name in enumerate(names):
            runtime = 0 if name.endswith("?") else i + 1
            write_kernel(root / TILE.path / split / f"{name.removesuffix('?')}.npz", runtime)
    return root


def config(root: Path | str, split_file: Path | None = None, fold: int = 0, joined: Sequence[str] = ()) -> LocalConfig:
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
def output(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "tile" / "own"


@pytest.mark.parametrize("below", ["", "npz"])
def test_a_tree_is_copied_byte_by_byte_with_its_splits(tmp_path: Path, output: Path, below: str) -> None:
    write_tree(tmp_path / "own" / below, train=["b", "a"], valid=["c"], test=["d?"])
    fetch(TILE, config(tmp_path / "own"), output)
    assert names(output) == {"train": ["a", "b"], "valid": ["c"], "test": ["d"]}
    source = tmp_path / "own" / below / TILE.path
    for path in source.rglob("*.npz"):
        copy = output / path.relative_to(source)
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_ino != path.stat().st_ino
        assert not copy.is_symlink()


def test_a_second_run_copies_only_changed_files(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path / "own", train=["a", "b"], valid=["c"])
    fetch(TILE, config(root), output)
    copied: list[str] = []

    def copyfile(source: Path, target: Path) -> None:
        copied.append(source.stem)
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr("hlorank.fetch.local.shutil.copyfile", copyfile)
    fetch(TILE, config(root), output)
    assert copied == []
    write_kernel(root / TILE.path / "train" / "b.npz", runtime=99)
    (root / TILE.path / "valid" / "c.npz").unlink()
    write_kernel(root / TILE.path / "test" / "d.npz")
    fetch(TILE, config(root), output)
    assert copied == ["b", "d"]
    assert names(output) == {"train": ["a", "b"], "valid": [], "test": ["d"]}
    assert (output / "train" / "b.npz").read_bytes() == (root / TILE.path / "train" / "b.npz").read_bytes()
    copy = output / "train" / "a.npz"
    stat = copy.stat()
    copy.write_bytes(bytes(stat.st_size))
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    half = output / "train" / ".b.npz.x.partial"  # as a kill leaves it
    half.touch()
    mine = [output / "notes.npz", output / "train" / "notes.txt", output / "other" / "x.npz"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    fetch(TILE, config(root), output)
    assert copied[2:] == ["a"], "a damaged copy of the right size and time"
    assert not half.exists()
    assert all(path.exists() for path in mine), "only graphs are removed"


def test_all_broken_files_are_reported_at_once_and_nothing_is_copied(tmp_path: Path, output: Path) -> None:
    root = write_tree(tmp_path / "own", train=["a", "b"], valid=["c"])
    folder = root / TILE.path
    (folder / "train" / "b.npz").write_bytes(b"no zip")
    np.savez(folder / "valid" / "c.npz", node_feat=np.zeros(3))
    with pytest.raises(ExceptionGroup) as caught:
        fetch(TILE, config(root), output)
    first, second = map(str, caught.value.exceptions)
    assert first.startswith(f"{folder}/train/b.npz: file: ")
    assert second.startswith(f"{folder}/valid/c.npz: keys: ")
    assert not output.exists()


def test_a_missing_collection_is_named_with_those_present(tmp_path: Path, output: Path) -> None:
    expected = r"own: root: .*npz files in tile/own/<train\|valid\|test>.*found "
    for folder, found in (
        (None, "no such folder"),
        ("", "no collection"),
        ("tile/own/validation", "tile/own"),
        ("npz/layout/xla/random/train", "tile/own, npz/layout/xla/random"),
    ):
        if folder is not None:
            (tmp_path / "own" / folder).mkdir(parents=True)
        with pytest.raises(DataError, match=f"{expected}{found}$"):
            fetch(TILE, config(tmp_path / "own"), output)


@pytest.mark.parametrize("place", ["tile/own", "tile/own/train/copy", "."])
def test_a_tree_where_fetch_writes_is_refused(tmp_path: Path, place: str) -> None:
    root = write_tree(tmp_path / "own", train=["a"])
    with pytest.raises(ConfigError, match=r"data\.local\.root=.*: expected a folder other than"):
        fetch(TILE, config(root), root / place)
    assert names(root / "tile" / "own") == {"train": ["a"], "valid": [], "test": []}


# Joined collections


@pytest.mark.parametrize("split", [False, True])
def test_joined_collections_keep_their_graphs_apart_and_families_together(
    tmp_path: Path, output: Path, split: bool
) -> None:
    root, split_file = tmp_path / "own", tmp_path / "folds.json"
    expected = {"one.net_b": "train", "one.late_b": "test", "two.net_b": "valid", "two.x_b": "train"}
    files: dict[str, Path] = {}
    for runtime, (name, place) in enumerate(expected.items()):
        source, graph = name.split(".")
        path = write_kernel(root / "tile" / source / place / f"{graph}.npz", runtime + 1)
        files |= {f"tile.{name}.npz": path, f"tile.{name}.json": describe(path, graph[:-2])}
    fetch(TILE, config(root, split_file if split else None, joined=["tile/one", "tile/two"]), output)
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
            fetch(TILE, config(root, joined=["tile/one", other]), tmp_path / "other")


# New splits


@pytest.mark.parametrize("fold", [0, 1, 2])
def test_a_new_split_keeps_families_together_and_withheld_labels_in_test(
    tmp_path: Path, output: Path, fold: int
) -> None:
    train, valid = ["x_batch_1", "y_batch_1", "z_batch_1", "hidden_1?"], ["x_batch_2", "y_batch_2"]
    root = write_tree(tmp_path / "own", train=train, valid=valid, test=["z_batch_2", "hidden_2?"])
    split_file = tmp_path / "folds.json"
    fetch(TILE, config(root, split_file, fold=fold), output)
    found = names(output)
    fold_of = json.loads(split_file.read_text())["collections"]["tile:own"]
    assert sorted(fold_of) == ["x_batch_1", "x_batch_2", "y_batch_1", "y_batch_2", "z_batch_1", "z_batch_2"]
    in_fold = [[name for name in sorted(fold_of) if fold_of[name] == number % 3] for number in range(fold, fold + 3)]
    assert [{name[0] for name in group} for group in in_fold] == [{group[0][0]} for group in in_fold]
    valid, test, train = in_fold
    assert found == {"train": train, "valid": valid, "test": ["hidden_1", "hidden_2", *test]}


def test_a_graph_in_two_splits_cannot_get_new_splits(tmp_path: Path, output: Path) -> None:
    root = write_tree(tmp_path / "own", train=["a", "b"], valid=["b"], test=["c"])
    with pytest.raises(DataError, match="graph names: expected each in one split of the tree, found b"):
        fetch(TILE, config(root, tmp_path / "folds.json"), output)
    assert not (tmp_path / "folds.json").exists()
    fetch(TILE, config(root), output)
    assert names(output) == {"train": ["a", "b"], "valid": ["b"], "test": ["c"]}


def module(nodes: int) -> HloModuleProto:
    """Return a program of some parameters."""
    made = HloModuleProto(name="parameters")
    main = made.computations.add(name="main", id=1, root_id=1)
    for i in range(nodes):
        main.instructions.add(id=i + 1, opcode="parameter")
    return made


def test_collected_files_are_split_by_the_family_of_their_sidecar(tmp_path: Path, output: Path) -> None:
    names = ["net.nhwc.b8", "net.nchw.b8", "other.b4", "third.b4"]
    for name in names:
        describe(write_kernel(tmp_path / "own" / TILE.path / f"{name}.npz"), name.split(".")[0])
    fetch(TILE, config(tmp_path / "own", tmp_path / "split.json"), output)
    places = {path.stem: path.parent.name for path in output.rglob("*.npz")}
    assert places.keys() == set(names)
    assert places["net.nhwc.b8"] == places["net.nchw.b8"]
    assert len(set(places.values())) == 3
    with pytest.raises(DataError, match="npz files in tile/own"):
        fetch(TILE, config(tmp_path / "own"), output)


def test_the_sidecar_and_the_extra_features_come_with_their_graph(tmp_path: Path, output: Path) -> None:
    graph = write_tree(tmp_path / "own", train=["a.b_1", "b_1"], valid=["c_1"]) / TILE.path / "train" / "a.b_1.npz"
    files = [describe(graph, "a", 0.8), write_extra(graph, flatten(module(2)))]
    settings = config(tmp_path / "own", tmp_path / "split.json")
    fetch(TILE, settings, output)
    (copy,) = output.rglob(graph.name)
    for file in files:
        (found,) = output.rglob(file.name)
        assert (found.parent, found.read_bytes()) == (copy.parent, file.read_bytes())
        file.unlink()
    fetch(TILE, settings, output)
    assert {path.suffixes[-1] for path in output.rglob("*.*")} == {".npz"}
    assert not list(output.rglob("*.extra.npz"))
    describe(graph, "a", 2)
    with pytest.raises(DataError, match=r"a.b_1.json: split_half_tau: expected a number in -1..1, or null, found 2"):
        fetch(TILE, settings, output)
    write_extra(graph, flatten(module(3)))
    with pytest.raises(DataError, match=r"a.b_1.extra.npz: dot_dimensions"):
        fetch(TILE, settings, output)


def test_folds_out_of_range_are_refused() -> None:
    settings: dict[str, object] = {"root": "x", "split_file": None, "folds": 3, "fold": 0, "collections": []}
    for key, value, expected in (("folds", 2, r".*\b3$"), ("fold", -1, r".*\b0$"), ("fold", 3, "expected .* folds=3")):
        with pytest.raises(ConfigError, match=rf"^data\.local\.{key}={value}: {expected}"):
            parse(LocalConfig, settings | {key: value}, prefix="data.local")

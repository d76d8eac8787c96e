"""Rankers of the package: the one that fits is taken, by name or by the program; others are refused."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hlorank
from hlorank.code import features_digest
from hlorank.data.collection import read_graph, sidecar_path
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError, bundled, read_json, write_json
from hlorank.metrics import ranking
from hlorank.ranking import inputs
from tests.cli.conftest import Command

Make = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def make(linear_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes the rankers of the package: their collections, by name; it returns their folder."""

    def write(collections: Mapping[str, str]) -> Path:
        for name, address in collections.items():
            own = "tile:synthetic" if address.startswith("tile") else "layout:synthetic:random"
            shutil.copytree(linear_model(own, collection=address), tmp_path / "rankers" / name)
            write_json(tmp_path / "rankers" / name / inputs.CARD, {"features": features_digest()})
        monkeypatch.setattr(inputs, "bundled", lambda name: tmp_path / name)
        return tmp_path / "rankers"

    return write


BOTH = {"layout.cpu": "layout:cpu:random", "tile.cpu": "tile:cpu"}


def test_rankers_of_the_package_are_small_and_of_its_features() -> None:
    for name, folder in inputs.rankers().items():
        assert inputs.checked_ranker(name) == folder
        card = read_json(folder / inputs.CARD)
        assert {"trained_on", "folds", "kendall_tau", "not_for"} <= card.keys()
        assert len(card["folds"]) == 5
    assert sum(path.stat().st_size for path in bundled("rankers").rglob("*") if path.is_file()) < 4e6


def test_the_ranker_is_that_of_the_configurations(make: Make, graphs: list[Path], kernel: Path, call: Command) -> None:
    rankers = make(BOTH)
    for path, name in ((graphs[0], "layout.cpu"), (kernel, "tile.cpu")):
        found = hlorank.rank(path, top=3)
        measured = read_graph(path, "tile" if path is kernel else "layout")
        scores = hlorank.load(rankers / name).score(measured.graph, measured.configurations)
        assert found.table["configuration"].tolist() == ranking(scores)[:3].tolist()
        np.testing.assert_array_equal(found.table["score"], np.sort(scores)[:3])
        assert (found.model, len(found.changes)) == (name, 0)
        out, errors = call("rank", path, "--top", 3)
        assert name in errors
        assert repr(found).startswith(out.rstrip())
        assert call("rank", "--model", name, path, "--top", 3) == (out, "")


def test_a_ranking_is_shown_as_html_and_exported(
    make: Make, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.ranking.output.has_jaxlib", lambda: False)  # it refuses a module without its shape
    make(BOTH)
    found = hlorank.rank(program, candidates=8)
    assert len(found.changes) == 0  # the default is the first one
    found = replace(found, values=found.values | {"top": found.values["top"][1:]})
    layouts, place = found.given.measured.configurations, found.table["configuration"][0]
    assert isinstance(layouts, LayoutConfigurations)
    first = layouts.values(slice(place, place + 1)).reshape(-1, 6)
    assert len(found.changes) == (first[:, 0] >= 0).sum()
    assert found._repr_html_().count("<table") == 2
    files = found.export(tmp_path / "chosen")
    assert read_json(files[0])["score"] == found.table["score"][0]
    assert read_json(files[0])["model"] == "layout.cpu"
    for rank in (0, 9):
        with pytest.raises(DataError, match="rank: "):
            found.export(tmp_path / "other", rank=rank)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("collections", "dump", "way_out"),
    [
        ({}, "p.hlo.pb", "hlorank init"),
        ({"tile.cpu": "tile:cpu"}, "p.hlo.pb", "none for layout"),
        (BOTH, "module_0001.m.gpu_after_optimizations.hlo.pb", "gpu"),
        (BOTH, "module_0001.m.cpu_after_optimizations.hlo.pb", "after layout assignment"),
        ({**BOTH, "layout.tpu": "layout:tpu-v3:random"}, "p.hlo.pb", "layout.cpu and layout.tpu"),
    ],
)
def test_without_one_that_fits_the_error_says_what_to_do(
    collections: dict[str, str], dump: str, way_out: str, make: Make, program: Path, call: Command
) -> None:
    make(collections)
    path = program.rename(program.with_name(dump))
    assert way_out in call.error("rank", path)
    with pytest.raises(DataError, match=way_out):
        hlorank.rank(path)


def test_the_backend_is_that_of_the_measurement(make: Make, graphs: list[Path], tmp_path: Path) -> None:
    make({**BOTH, "layout.tpu": "layout:tpu-v3:random"})
    path = Path(shutil.copy(graphs[0], tmp_path))
    for address, name in (("layout:cpu:default", "layout.cpu"), ("layout:tpu-v5e:random", "layout.tpu")):
        write_json(sidecar_path(path), {"collection": address})
        assert hlorank.rank(path).model == name


def test_a_ranker_of_other_features_is_refused(make: Make, graphs: list[Path], call: Command) -> None:
    write_json(make(BOTH) / "layout.cpu" / inputs.CARD, {"features": "0" * 16})
    for arguments in (("rank", graphs[0]), ("rank", "--model", "layout.cpu", graphs[0])):
        assert "rankers/dvc.yaml" in call.error(*arguments)

"""The bundled sample agrees with its documentation: complete, split by model family, well measured, small."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from hlorank.config import Config, load
from hlorank.data.collection import SPLITS, Collection, Split, graph_files, measured_family, read_graph, sidecar_path
from hlorank.fetch.origins import fetch
from hlorank.files import read_json

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "data" / "sample"
LEAST = {"layout/cpu/random": 40, "layout/cpu/default": 20, "tile/cpu": 120}
VALID, TEST = {"densenet", "gru", "dlrm"}, {"unet", "causal", "mixer"}

every_collection = pytest.mark.parametrize("collection", [Collection.parse(address) for address in LEAST], ids=str)


@pytest.fixture(scope="module")
def default() -> Config:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load(compose("config"))


def test_the_default_pipeline_runs_on_all_of_it(default: Config) -> None:
    assert {*default.pipeline.layout, *default.pipeline.tile} == LEAST.keys()
    present = {path.parent.relative_to(SAMPLE).as_posix() for path in SAMPLE.rglob("*.npz")}
    assert present == LEAST.keys()
    assert default.collection in default.pipeline.layout


@every_collection
def test_each_graph_is_measured_well_and_says_how(collection: Collection) -> None:
    graphs = graph_files(SAMPLE, collection, None)
    assert len(graphs) >= LEAST[collection.path.as_posix()]
    assert sorted((SAMPLE / collection.path).glob("*.json")) == sorted(map(sidecar_path, graphs))
    for path in graphs:
        measured, about = read_graph(path, collection.kind), read_json(sidecar_path(path))
        assert not measured.measurements.withheld, path.stem
        assert len(measured.measurements.runtime) == about["measured"], path.stem
        assert about["split_half_tau"] >= 0.7, path.stem
        assert about["cpu"].strip(), path.stem
        assert about["program"].split(".")[0] == about["family"], path.stem


@every_collection
def test_no_family_is_in_two_splits(
    collection: Collection, default: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the folder that its paths are relative to
    fetch(collection, default.data, tmp_path / collection.path)

    def families(split: Split) -> set[str | None]:
        return {measured_family(path) for path in graph_files(tmp_path, collection, split)}

    train, valid, test = map(families, SPLITS)
    assert (valid, test) == (VALID, TEST)
    assert train
    assert not train & (valid | test)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 8e6

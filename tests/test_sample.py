"""The committed collections agree with their documentation: complete, split by model family, measured, small."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from hlorank.config import Config
from hlorank.data.collection import SPLITS, Collection, Split, graph_files, measured_family, read_graph, sidecar_path
from hlorank.fetch.origins import fetch
from hlorank.files import read_json
from hlorank.stages.command import load_composed

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Committed:
    """A committed tree of collections, and what its documentation promises.

    Attributes:
        name: name of its folder in data, and of its file in conf/data.
        overrides: overrides of the pipeline that runs on all of it.
        least: smallest number of graphs of each collection.
        least_tau: smallest split-half tau.
        valid: families in valid, of those that are measured.
        test: families in test, of those that are measured.
        least_held_out: smallest number of families in valid and test together.
    """

    name: str
    overrides: tuple[str, ...]
    least: dict[str, int]
    least_tau: float
    valid: frozenset[str]
    test: frozenset[str]
    least_held_out: int

    @property
    def root(self) -> Path:
        return ROOT / "data" / self.name

    @property
    def config(self) -> Config:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return load_composed(compose("config", list(self.overrides)))


SAMPLE = Committed(
    "sample",
    overrides=(),
    least={"layout/cpu/random": 40, "layout/cpu/default": 20, "tile/cpu": 120},
    least_tau=0.7,
    valid=frozenset({"densenet", "gru", "dlrm"}),
    test=frozenset({"unet", "causal", "mixer"}),
    least_held_out=6,
)
MODELS = Committed(
    "models",
    overrides=("experiment=models",),
    least={"layout/cpu/models": 1},
    least_tau=-1,  # reported: another core was in use
    valid=SAMPLE.valid,
    test=SAMPLE.test | {"gpt", "mlp_mixer"},
    least_held_out=1,
)

every_tree = pytest.mark.parametrize("tree", [SAMPLE, MODELS], ids=lambda tree: tree.name)
every_collection = pytest.mark.parametrize(
    ("tree", "collection"),
    [
        pytest.param(tree, Collection.parse(address), id=address.replace("/", ":"))
        for tree in (SAMPLE, MODELS)
        for address in tree.least
    ],
)


@every_tree
def test_its_pipeline_runs_on_all_of_it(tree: Committed) -> None:
    config = tree.config
    assert {*config.pipeline.layout, *config.pipeline.tile} == tree.least.keys()
    present = {path.parent.relative_to(tree.root).as_posix() for path in tree.root.rglob("*.npz")}
    assert present == tree.least.keys()
    assert config.collection in config.pipeline.layout


@every_collection
def test_each_graph_is_measured_well_and_says_how(tree: Committed, collection: Collection) -> None:
    graphs = graph_files(tree.root, collection, None)
    assert len(graphs) >= tree.least[collection.path.as_posix()]
    assert sorted((tree.root / collection.path).glob("*.json")) == sorted(map(sidecar_path, graphs))
    for path in graphs:
        measured, about = read_graph(path, collection.kind), read_json(sidecar_path(path))
        assert not measured.measurements.withheld, path.stem
        assert len(measured.measurements.runtime) == about["measured"], path.stem
        assert tree.least_tau <= about["split_half_tau"] <= 1, path.stem
        assert about["cpu"].strip(), path.stem
        assert path.stem.split(".")[0] == about["family"], path.stem


@every_collection
def test_no_family_is_in_two_splits(
    tree: Committed, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the folder that its paths are relative to
    fetch(collection, tree.config.data, tmp_path / collection.path)

    def families(split: Split) -> set[str | None]:
        return {measured_family(path) for path in graph_files(tmp_path, collection, split)}

    train, valid, test = map(families, SPLITS)
    assert train
    assert len(valid | test) >= tree.least_held_out
    assert valid <= tree.valid
    assert test <= tree.test
    assert not train & (tree.valid | tree.test)


@every_tree
def test_it_is_small(tree: Committed) -> None:
    assert sum(path.stat().st_size for path in tree.root.rglob("*") if path.is_file()) < 8e6

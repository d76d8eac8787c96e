"""Every experiment of conf/ composes, trains, is saved and loaded, and then has the same scores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from hlorank.config import Config, import_plugin
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import fingerprint, read_json
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.trained_model import load_trained
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train

ROOT = Path(__file__).parents[1]
# These choose data, not a model.
DATA = {"models", "synthetic", "tpu_sample_tile_xla", "tpu_sample_xla_default", "tpu_sample_xla_random"}
FOLDERS = ROOT / "conf/experiment", ROOT / "examples/reproductions/reproductions/conf/experiment"
FILES = {path.stem: path for folder in FOLDERS for path in folder.glob("*.yaml")}
EXPERIMENTS = sorted(FILES.keys() - DATA)

import_plugin("reproductions")


def test_an_experiment_says_where_it_is_from() -> None:
    assert len(EXPERIMENTS) > 15
    for name in EXPERIMENTS:
        package, *lines = FILES[name].read_text().splitlines()
        assert package == "# @package _global_"
        comment = " ".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("# "), lines))
        # Its source and the differences from it; an experiment derived from another one may refer to that.
        assert ("hlorank's own" in comment) != ("Difference" in comment or comment.startswith("As kaggle_")), name


@pytest.fixture(scope="module")
def prepared(
    tiny_collections: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Config, Collection], tuple[Path, Path]]:
    """Featurize and partition a collection, once for the same settings, and return both folders."""
    root, made = tmp_path_factory.mktemp("prepared"), set[Path]()

    def make(config: Config, collection: Collection) -> tuple[Path, Path]:
        settings = config.model_dump(mode="json", include={"featurize", "partition"})
        folder = root / fingerprint([settings, str(collection)])
        features, segments = folder / "features", folder / "segments"
        if folder not in made:
            featurize_collection(tiny_collections / "raw", collection, config.featurize, features / collection.path)
            if collection.kind == "layout":
                partition_collection(features / collection.path, config.partition, segments / collection.path)
            made.add(folder)
        return features, segments

    return make


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_trains_and_scores_as_it_did(
    name: str,
    settings: Callable[..., Config],
    prepared: Callable[[Config, Collection], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    collection = Collection.parse("tile:synthetic" if "tile" in name else "layout:synthetic:random")
    fixed: dict[str, Any] = {"data": "synthetic", "collection": collection.path, "trainer__max_epochs": 1}
    fixed |= {"trainer__steps_per_epoch": 2, "trainer__configs_per_step": 4}
    if (blocks := OmegaConf.select(OmegaConf.load(FILES[name]), "model.blocks")) is not None:
        fixed["model__blocks"] = blocks
    config = settings(experiment=name, **fixed)
    features, segments = prepared(config, collection)
    paths = config.paths.model_copy(update={"features": str(features), "segments": str(segments)})
    config = config.model_copy(update={"paths": paths})
    train(config, tmp_path / "model")
    spec = read_json(tmp_path / "model/spec.json")
    assert spec["steps"] == 2 * spec["members"]
    assert -1 <= evaluate(config, tmp_path / "model", tmp_path / "report")["valid/kendall_tau"] <= 1
    trained = load_trained(tmp_path / "model", config.evaluate.memory_bytes)
    store = FeatureStore(features / collection.path)
    graph = store.trainable("valid")[0]
    folder = None if trained.partition is None else segments / collection.path
    cut = GraphLoader(store.root, folder).open_partition("valid", graph)
    scores = trained.score(store.open("valid", graph), cut)
    again = load_trained(tmp_path / "model", 2**20).score(store.open("valid", graph), cut)
    np.testing.assert_array_equal(scores, again)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > 1

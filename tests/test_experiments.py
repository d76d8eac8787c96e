"""Every experiment of conf/ composes, trains, is saved and loaded, and then has the same scores."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from hlorank.config import import_plugin
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import fingerprint, read_json
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.scoring import load_trained
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train
from tests.conftest import Settings

ROOT = Path(__file__).parents[1]
# These choose data, not a model.
DATA = {"models", "synthetic", "tpu", "tpu_sample_tile_xla", "tpu_sample_xla_default", "tpu_sample_xla_random"}
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
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of features and segments, which experiments of the same settings share."""
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_trains_and_scores_as_it_did(
    name: str, settings: Settings, tiny_collections: Path, prepared: Path, tmp_path: Path
) -> None:
    collection = Collection.parse("tile:synthetic" if "tile" in name else "layout:synthetic:random")
    fixed: dict[str, Any] = {"data": "synthetic", "collection": collection.path, "trainer__max_epochs": 1}
    fixed |= {"trainer__steps_per_epoch": 2, "trainer__configs_per_step": 4}
    if (blocks := OmegaConf.select(OmegaConf.load(FILES[name]), "model.blocks")) is not None:
        fixed["model__blocks"] = blocks
    config = settings(experiment=name, **fixed)
    root = prepared / fingerprint([config.model_dump(mode="json", include={"featurize", "partition"}), str(collection)])
    features, segments = root / "features" / collection.path, root / "segments" / collection.path
    if not root.exists():
        featurize_collection(tiny_collections / "raw", collection, config.featurize, features)
        if collection.kind == "layout":
            partition_collection(features, config.partition, segments)
    paths = {"features": str(root / "features"), "segments": str(root / "segments")}
    config = config.model_copy(update={"paths": config.paths.model_copy(update=paths)})
    train(config, tmp_path / "model")
    spec = read_json(tmp_path / "model/spec.json")
    assert spec["steps"] == 2 * spec["members"]
    assert -1 <= evaluate(config, tmp_path / "model", tmp_path / "report")["valid/kendall_tau"] <= 1
    store = FeatureStore(features)
    graph = store.trainable("valid")[0]
    scores, again = (
        trained.score(
            store.open("valid", graph),
            GraphLoader(features, None if trained.partition is None else segments).open_partition("valid", graph),
        )
        for trained in (load_trained(tmp_path / "model", size) for size in (config.evaluate.memory_bytes, 2**20))
    )
    np.testing.assert_array_equal(scores, again)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > 1

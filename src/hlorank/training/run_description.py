"""Description of a training in MLflow: the name of its run, the settings and the data that it used, and a text."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from hlorank.config import FeaturizeConfig, PartitionConfig
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import Spec
from hlorank.runs.sweeps import chosen_experiment, short_value

log = logging.getLogger(__name__)

_DVC_EXPERIMENT = "DVC_EXP_NAME"  # which `dvc exp run` sets for its commands
_NAME_LENGTH = 250  # every store of MLflow has room for
# Sections and keys of overrides that a name has already, or that do not describe the training.
_UNNAMED = {"collection", "method", "output", "paths", "tracking", "sweep", "evaluate", "hparams_search"}


def data_settings(graphs: GraphLoader, featurize: FeaturizeConfig, partition: PartitionConfig) -> dict[str, Any]:
    """Return the settings that graphs were made with, and warn of those that an experiment file sets otherwise.

    Args:
        graphs: features, and segments if the training uses them.
        featurize: the configured settings, which only the stage featurize applies.
        partition: the configured settings, which only the stage partition applies.

    Returns:
        The sections `featurize` and, for segments, `partition`.
    """
    made = {"featurize": graphs.store.spec.options.model_dump(mode="json")}
    if graphs.options is not None:
        made["partition"] = graphs.options.model_dump(mode="json")
    if (experiment := chosen_experiment()) is not None:
        configured = {"featurize": featurize.model_dump(mode="json"), "partition": partition.model_dump(mode="json")}
        for section, values in made.items():
            for key, value in values.items():
                if (wanted := configured[section][key]) != value:
                    remedy = f"run the stage {section} with experiment={experiment}, and those after it"
                    shown = f"{section}.{key}={wanted}", value, remedy
                    log.warning("%s: no effect, as the data were made with %s; %s", *shown)
    return made


def run_name(spec: Spec, seed: int, overrides: Iterable[str]) -> str:
    """Return method, changed settings and collection, such as `gst learning_rate=0.01 seed=2 layout:cpu:random`.

    MLflow's tables and legends show about the first 25 characters, so what differs between the runs of one collection
    comes before the collection. Under `dvc exp run` the name of the experiment is the first setting.

    Args:
        spec: describes the model.
        seed: the seed; 0 is left out unless it is an override.
        overrides: the overrides of the training.
    """
    parts = [override.lstrip("+~").partition("=") for override in overrides]
    changed = {
        key.rpartition(".")[2]: short_value(value) for key, _, value in parts if key.partition(".")[0] not in _UNNAMED
    }
    changed |= {"seed": str(seed)} if seed else {}
    experiment = os.environ.get(_DVC_EXPERIMENT)
    names = [spec.method, *([experiment] if experiment else []), *(f"{key}={value}" for key, value in changed.items())]
    return " ".join([*names, spec.collection])[:_NAME_LENGTH]


def run_note(spec: Spec, store: FeatureStore, overrides: Iterable[str]) -> str:
    """Return the description of a run, in Markdown."""
    train, valid = len(store.trainable("train")), len(store.trainable("valid"))
    changed = " ".join(f"`{override}`" for override in overrides)
    return (
        f"Training of `{spec.method}` on {spec.collection}: {train} graphs of train; the epoch is chosen on {valid} "
        f"graphs of valid.\n\nOverrides: {changed or 'none'}. The parameters `featurize` and `partition` are those "
        "that the data were made with.\n\nThe artifact `model` is the trained model; after the stage evaluate, "
        "`report/report.html` is its report and `per_graph.json` the table of graphs.\n"
    )


def log_data(spec: Spec, store: FeatureStore) -> None:
    """Log the splits of the collection as the datasets of the open run, in the contexts train and valid.

    Their names differ, as MLflow keeps one context of a dataset.
    """
    import mlflow
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.data.sources import LocalArtifactDatasetSource

    source = LocalArtifactDatasetSource(str(store.root))
    for split in ("train", "valid"):
        dataset = MetaDataset(source, name=f"{spec.collection}/{split}", digest=store.fingerprint)
        mlflow.log_input(dataset, context=split)

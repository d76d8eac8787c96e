"""One training of the baseline: gradient boosting on pooled features, by scikit-learn."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank import __version__
from hlorank.collection import Collection
from hlorank.config import BaselineConfig, Config, ConfigError, check_least
from hlorank.featurize.store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baseline import BaselineSpec, Trees, save_baseline
from hlorank.models.folder import input_sizes
from hlorank.models.open import GraphOpener
from hlorank.models.pooled import PooledGraph
from hlorank.training.callbacks import peak_memory_bytes
from hlorank.training.data import usable, validated
from hlorank.training.module import TRAIN_LOSS, VALID_TAU
from hlorank.training.record import keep_record, training_run

log = logging.getLogger(__name__)

_LEAST = {
    "seed": 0,
    "baseline.iterations": 1,
    "baseline.leaves": 2,
    "baseline.min_leaf": 1,
    "baseline.rows_per_graph": 2,
    "baseline.l2": 0,
    "trainer.validation_configs": 2,
}
_STAGES = 50  # numbers of trees that are tried, at most
_ROWS_AT_ONCE = 1024


def train_baseline(config: Config, output: Path) -> float | None:
    """Fits regression trees to the log runtimes of one collection; valid chooses how many of them are kept.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run, as all
    trainings do; an epoch is a number of trees. It takes the graphs whole, needs no segments, and starts anew where it
    was interrupted. The same seed gives the same bytes.

    Args:
        config: the whole configuration.
        output: the model folder.

    Returns:
        The best validation Kendall tau; None where no graph could be validated.

    Raises:
        DataError: features are missing or damaged.
        ConfigError: a number is too small.
    """
    check_least(config, _LEAST)
    if config.baseline.learning_rate <= 0:
        raise ConfigError(f"baseline.learning_rate={config.baseline.learning_rate}: set it above 0")
    collection = Collection.parse(config.collection)
    graphs = GraphOpener(Path(config.paths.features) / collection.path, None, torch.device("cpu"))
    store = graphs.store
    spec = BaselineSpec(
        version=__version__,
        collection=str(collection),
        method=config.method,
        data=graphs.fingerprint,
        steps=0,
        features=store.spec,
        settings=config.baseline,
    )
    train, valid = usable(store, config)
    with training_run(config, spec, bool(train)) as run_id:
        trees, stages = Trees.none(), list[Stage]()
        if train:
            sample = draw_sample(store, train, config)
            log.info("fitting %d trees to %d rows of %d columns", config.baseline.iterations, *sample.x.shape)
            start = time.perf_counter()
            fitted = _fit(sample, config.baseline, config.seed)
            seconds = (time.perf_counter() - start) / config.baseline.iterations
            stages = _stages(fitted, sample, _rankings(store, valid, config), seconds)
            _log_stages(stages, len(sample.x))
            if not valid:
                log.warning("no graph of valid can be ranked: as many trees are kept as have the smallest loss")
            trees = fitted.first(_best(stages).epoch)
            log.info("%d trees are kept", len(trees.root))
        else:
            log.warning("%s: nothing is left to train on; the model has no trees", collection)
        save_baseline(output, trees, replace(spec, steps=len(trees.root)))
        keep_record(config, run_id, [stage._asdict() for stage in stages], output)
    return _best(stages).valid_kendall_tau if stages else None


class Stage(NamedTuple):
    """A row of the history.

    Attributes:
        epoch: the number of trees.
        train_loss: mean squared error, of runtimes standardised within each graph.
        valid_kendall_tau: mean over the validation graphs, None without any.
        step_seconds: time to fit one tree.
    """

    epoch: int
    train_loss: float
    valid_kendall_tau: float | None
    step_seconds: float


class Sample(NamedTuple):
    """The rows that trees are fitted to.

    Attributes:
        x: (rows, columns) float32, pooled features.
        y: (rows,) float64, log runtimes, standardised within each graph: mean 0, standard deviation 1.
        weight: (rows,) float64, 1 on average; each graph has the same sum.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]


def draw_sample(store: FeatureStore, names: Sequence[str], config: Config) -> Sample:
    """At most `baseline.rows_per_graph` targets of each of these graphs of train."""
    sizes, most = input_sizes(store.spec), config.baseline.rows_per_graph
    xs, ys = [], []
    for number, name in enumerate(names):
        graph = store.open("train", name)
        rows, labels = graph.targets()
        logs = np.log(labels)
        rng = np.random.default_rng([config.seed, 5, number])
        drawn = np.sort(rng.choice(len(rows), size=min(most, len(rows)), replace=False))
        xs.append(PooledGraph(graph, sizes).rows(rows[drawn]))
        ys.append((logs[drawn] - logs.mean()) / logs.std())
    counts = np.array([len(y) for y in ys])
    return Sample(np.concatenate(xs), np.concatenate(ys), np.repeat(counts.mean() / counts, counts))


def _rankings(
    store: FeatureStore, names: Sequence[str], config: Config
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float64]]]:
    """Features and labels of what validation ranks, one graph after the other."""
    sizes = input_sizes(store.spec)
    for name in names:
        graph = store.open("valid", name)
        rows, labels = validated(graph, config)
        yield PooledGraph(graph, sizes).rows(rows), labels


def _fit(sample: Sample, settings: BaselineConfig, seed: int) -> Trees:
    regressor = HistGradientBoostingRegressor(
        learning_rate=settings.learning_rate,
        max_iter=settings.iterations,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.min_leaf,
        l2_regularization=settings.l2,
        early_stopping=False,  # graphs are held out, not rows
        random_state=seed,
    )
    return trees_of(regressor.fit(sample.x, sample.y, sample.weight))


def trees_of(regressor: HistGradientBoostingRegressor) -> Trees:
    """The trees of a fitted regressor without categories, on data without missing values.

    They lie in private attributes of scikit-learn, which are read here and nowhere else: as they are in 1.9.1.
    """
    trees = [predictor.nodes for (predictor,) in regressor._predictors]
    counts = np.array([len(nodes) for nodes in trees])
    first, nodes = np.cumsum(counts) - counts, np.concatenate(trees)
    own, offset, leaf = np.arange(len(nodes)), np.repeat(first, counts), nodes["is_leaf"].astype(bool)
    return Trees(
        root=first.astype(np.int32),
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
        threshold=np.where(leaf, 0.0, nodes["num_threshold"]),
        left=np.where(leaf, own, offset + nodes["left"]).astype(np.int32),
        right=np.where(leaf, own, offset + nodes["right"]).astype(np.int32),
        value=np.where(leaf, nodes["value"], 0.0),
        base=regressor._baseline_prediction.ravel(),
    )


def _stages(
    trees: Trees,
    sample: Sample,
    rankings: Iterable[tuple[NDArray[np.float32], NDArray[np.float64]]],
    step_seconds: float,
) -> list[Stage]:
    """What the first trees give, for some numbers of them up to all."""
    fitted = len(trees.root)
    counts = np.unique(np.linspace(1, fitted, min(fitted, _STAGES)).round().astype(np.int64))
    loss = np.zeros(len(counts))
    for start in range(0, len(sample.x), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        error = trees.staged(sample.x[rows])[:, counts] - sample.y[rows, None]
        loss += sample.weight[rows] @ error**2
    taus = [[kendall_tau(score, labels) for score in trees.staged(x)[:, counts].T] for x, labels in rankings]
    means = np.mean(taus, axis=0).tolist() if taus else [None] * len(counts)
    return [
        Stage(count, total / len(sample.x), tau, step_seconds)
        for count, total, tau in zip(counts.tolist(), loss.tolist(), means, strict=True)
    ]


def _best(stages: Sequence[Stage]) -> Stage:
    """The stage with the highest tau, or without any with the smallest loss; the first of those that tie."""
    return max(stages, key=lambda stage: -stage.train_loss if (tau := stage.valid_kendall_tau) is None else tau)


def _log_stages(stages: Sequence[Stage], rows: int) -> None:
    import mlflow

    for stage in stages:
        shown = "" if stage.valid_kendall_tau is None else f", validation Kendall tau {stage.valid_kendall_tau:.3f}"
        log.info("%d of %d trees: loss %.4f%s", stage.epoch, stages[-1].epoch, stage.train_loss, shown)
        figures = {TRAIN_LOSS: stage.train_loss, VALID_TAU: stage.valid_kendall_tau}
        known = {name: value for name, value in figures.items() if value is not None}
        mlflow.log_metrics(known, step=stage.epoch)
    cost = {
        "train/step_seconds": stages[-1].step_seconds,
        "train/configs_per_second": rows / stages[-1].step_seconds,
        "train/peak_memory_bytes": float(peak_memory_bytes()),
    }
    mlflow.log_metrics(cost, step=stages[-1].epoch)

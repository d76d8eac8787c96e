"""The order of training steps: which graph, which configurations, which segments; and the validation graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hlorank.config import Config
from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.inputs import GraphInputs
from hlorank.training.random_streams import Stream, generator
from hlorank.training.samplers import Sampler, sampler_named

log = logging.getLogger(__name__)

# Each open graph holds a dozen files, of which some systems allow a process 1,024; tile:xla has 5,709 kernels.
_OPEN_GRAPHS = 64


class Step(NamedTuple):
    """One training step on one graph.

    Attributes:
        graph: the graph.
        number: the graph's number, for the keys of the embedding table.
        rows: (configurations,) int64, distinct configurations.
        labels: (configurations,) float64 tensor, their runtimes.
        with_gradient: (S,) int64, the segments that get gradients, increasing.
        draws: (J,) uniform in [0, 1), which stale embeddings are kept.
    """

    graph: GraphInputs
    number: int
    rows: NDArray[np.int64]
    labels: Tensor
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]


class Ranking(NamedTuple):
    """A graph whose configurations are scored in validation.

    Attributes:
        graph: the graph.
        rows: (configurations,) int64, distinct configurations.
        labels: (configurations,) float64, their runtimes.
    """

    graph: GraphInputs
    rows: NDArray[np.int64]
    labels: NDArray[np.float64]


class _Steps(Dataset[Step]):
    """The steps of one epoch; step i depends on the seed, the epoch and i only, so that a resumed run repeats it."""

    def __init__(self, graphs: list[Callable[[], GraphInputs]], config: Config, sampler: Sampler, epoch: int) -> None:
        self.graphs = graphs
        self.config = config
        self.sampler = sampler
        self.epoch = epoch

    def __len__(self) -> int:
        return self.config.trainer.steps_per_epoch * self.config.trainer.graphs_per_step

    def __getitem__(self, i: int) -> Step:
        rounds, place = divmod(self.epoch * len(self) + i, len(self.graphs))
        # Every graph once a round, each round in an order of its own.
        order = generator(self.config.seed, Stream.GRAPH_ORDER, rounds).permutation(len(self.graphs))
        number = int(order[place])
        graph = self.graphs[number]()
        rng = generator(self.config.seed, Stream.STEP, self.epoch, i)
        rows, labels = working_set(graph, number, self.config, self.epoch)
        drawn = self.sampler(rng, labels, min(self.config.trainer.configs_per_step, len(rows)))
        count = min(self.config.segments.sampled, len(graph.segments))
        with_gradient = np.sort(rng.choice(len(graph.segments), size=count, replace=False))
        draws = rng.random(len(graph.segments))
        return Step(graph, number, rows[drawn], torch.from_numpy(labels[drawn]), with_gradient, draws)


def working_set(
    graph: GraphInputs, number: int, config: Config, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The targets of a graph that an epoch trains on; the same for `redraw_epochs` epochs."""
    rows, labels = graph.targets
    count = config.segments.configs_per_graph
    if count is None or count >= len(rows):
        return rows, labels
    rng = generator(config.seed, Stream.WORKING_SET, number, epoch // config.segments.redraw_epochs)
    drawn = np.sort(rng.choice(len(rows), size=count, replace=False))
    return rows[drawn], labels[drawn]


class _Rankings(Dataset[Ranking]):
    def __init__(self, graphs: list[Callable[[], GraphInputs]], config: Config) -> None:
        self.graphs = graphs
        self.config = config

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, i: int) -> Ranking:
        graph = self.graphs[i]()
        return Ranking(graph, *validated(graph.features, self.config))


def validated(features: GraphFeatures, config: Config) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The targets of a graph that validation ranks, the same in each epoch."""
    rows, labels = features.targets()
    count = min(config.trainer.validation_configs, len(rows))
    drawn = np.sort(generator(config.seed, Stream.VALIDATION).choice(len(rows), size=count, replace=False))
    return rows[drawn], labels[drawn]


def usable(store: FeatureStore, config: Config) -> tuple[list[str], list[str]]:
    """The names of the graphs that are trained on, and of those that validation ranks; tells which are skipped.

    A graph is ranked in validation if its labels are known and at least two different ones are drawn.
    """
    for name, reason in store.skipped("train").items():
        log.warning("%s: training skips the graph %s: %s", store.spec.collection, name, reason)
    return store.trainable("train"), _rankable(store, "valid", store.trainable("valid"), config)


def _rankable(store: FeatureStore, split: Split, names: Iterable[str], config: Config) -> list[str]:
    """Those of some trainable graphs of which at least two different labels are drawn for validation."""
    drawn = {name: validated(store.open(split, name), config)[1] for name in names}
    return [name for name, labels in drawn.items() if labels.min() < labels.max()]


class StepData(lightning.LightningDataModule):
    """Training steps and validation rankings of one collection.

    Args:
        graphs: opens the collection's graphs.
        config: the whole configuration.
        held_out: graphs of train that are ranked in validation, in the place of those of valid; none keeps these.

    Attributes:
        train: names of the graphs that are trained on.
        valid: names of the graphs that are ranked in validation.
    """

    def __init__(self, graphs: GraphLoader, config: Config, held_out: Collection[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.sampler = sampler_named(config.trainer.sampling)
        self._open = lru_cache(_OPEN_GRAPHS)(graphs.open)
        self._cut = partial(graphs.cut, "train")
        self.train, self.valid = usable(graphs.store, config)
        self._splits: dict[Split, Split] = {"train": "train", "valid": "train" if held_out else "valid"}
        if held_out:
            self.train = [name for name in self.train if name not in held_out]
            self.valid = _rankable(graphs.store, "train", held_out, config)
        sampled = config.segments.sampled
        if fewer := sum(cut is not None and cut.segments < sampled for cut in map(self._cut, self.train)):
            log.warning(
                "segments.sampled=%d: %d of %d training graphs have fewer segments, and train all of theirs; lower it, "
                "or lower partition.max_nodes to cut more segments",
                *(sampled, fewer, len(self.train)),
            )

    def graph(self, split: Split, number: int) -> GraphInputs:
        """One of the graphs of `train` or `valid`, by its place there."""
        return self._open(self._splits[split], (self.train if split == "train" else self.valid)[number])

    def table_entries(self) -> dict[str, int]:
        """How many entries of the embedding table each training graph that is cut has in a working set, at most."""
        most = self.config.segments.configs_per_graph
        entries = {}
        for name in self.train:
            if (cut := self._cut(name)) is not None:
                counts = cut.local_counts
                entries[name] = int((counts if most is None else counts.clip(max=most)).sum())
        return entries

    def ranked(self, graph: GraphInputs) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The rows and labels of a validation graph that are ranked in each epoch."""
        return validated(graph.features, self.config)

    def _graphs(self, split: Split, names: list[str]) -> list[Callable[[], GraphInputs]]:
        return [partial(self.graph, split, number) for number in range(len(names))]

    def train_dataloader(self) -> DataLoader[Any]:
        """The steps of the trainer's current epoch, in order."""
        epoch = cast("lightning.Trainer", self.trainer).current_epoch
        return in_order(_Steps(self._graphs("train", self.train), self.config, self.sampler, epoch))

    def val_dataloader(self) -> DataLoader[Any]:
        """One item for each validation graph."""
        return in_order(_Rankings(self._graphs("valid", self.valid), self.config))


def in_order(dataset: Dataset[Any]) -> DataLoader[Any]:
    """The items of a dataset as they are, one after the other."""
    # In this process: an item is a few rows of a memory map, and a worker would copy its graph.
    return DataLoader(dataset, batch_size=None, num_workers=0, collate_fn=_unchanged)


def _unchanged(item: Any) -> Any:
    # The default would turn arrays into tensors, and memory maps cannot be indexed with those.
    return item

"""Data of training steps: the graph of each, its configurations and segments; and the graphs of validation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hlorank.config import SegmentsConfig, TrainerConfig
from hlorank.data.collection import Split
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.inputs import GraphInputs
from hlorank.training.gst.segment_sampling import sample_segments
from hlorank.training.random_streams import Stream, generator
from hlorank.training.samplers import SAMPLERS, Targets, rankable_graphs, usable_graphs, validation_targets

log = logging.getLogger(__name__)

# An open graph has a dozen open files, of which some systems allow a process 1,024; tile:xla has 5,709 kernels.
_OPEN_GRAPHS = 64


class Step(NamedTuple):
    """One training step on one graph; J is the number of its segments.

    Attributes:
        graph: the graph.
        number: the graph's number among those that are trained on, for the keys of the embedding table.
        rows: (configurations,) int64, distinct configurations.
        labels: (configurations,) float64 tensor, their runtimes.
        with_gradient: (S,) int64, the segments that are computed with gradient, increasing.
        draws: (J,) float64, uniform in [0, 1), which decide on stale-embedding dropout.
    """

    graph: GraphInputs
    number: int
    rows: NDArray[np.int64]
    labels: Tensor
    with_gradient: NDArray[np.int64]
    draws: NDArray[np.float64]


class Ranking(NamedTuple):
    """A graph whose configurations validation ranks.

    Attributes:
        graph: the graph.
        rows: (configurations,) int64, distinct configurations.
        labels: (configurations,) float64, their runtimes.
    """

    graph: GraphInputs
    rows: NDArray[np.int64]
    labels: NDArray[np.float64]


class StepData(lightning.LightningDataModule):
    """Training steps and validation rankings of one collection.

    Args:
        graphs: opens the collection's graphs.
        settings: sizes of an epoch, of a step and of validation, and the sampler of configurations.
        segments: number of segments that a step trains, and the settings of working sets.
        seed: the seed of the training.
        held_out: graphs of train that validation ranks instead of those of valid; training leaves them out.

    Attributes:
        train: names of the graphs that are trained on.
        valid: names of the graphs that validation ranks.
    """

    def __init__(
        self,
        graphs: GraphLoader,
        settings: TrainerConfig,
        segments: SegmentsConfig,
        seed: int,
        held_out: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.settings = settings
        self.segments = segments
        self.seed = seed
        self.sampler = SAMPLERS[settings.sampling]
        self._open = lru_cache(_OPEN_GRAPHS)(graphs.open)
        self._cut = partial(graphs.cut, "train")
        self.train, self.valid = usable_graphs(graphs.store, settings.validation_configs, seed)
        self._valid_split: Split = "train" if held_out else "valid"
        if held_out:
            self.train = [name for name in self.train if name not in held_out]
            self.valid = rankable_graphs(graphs.store, "train", held_out, settings.validation_configs, seed)
        sampled = segments.sampled
        if fewer := sum(cut is not None and cut.segments < sampled for cut in map(self._cut, self.train)):
            log.warning(
                "segments.sampled=%d: %d of %d training graphs have fewer segments, and train all of theirs; lower it, "
                "or lower partition.max_nodes to cut more segments",
                *(sampled, fewer, len(self.train)),
            )

    def train_graph(self, number: int) -> GraphInputs:
        """Open one of the graphs of `train`."""
        return self._open("train", self.train[number])

    def valid_graph(self, number: int) -> GraphInputs:
        """Open one of the graphs of `valid`."""
        return self._open(self._valid_split, self.valid[number])

    def table_entries(self) -> dict[str, int]:
        """Return for each training graph that is cut how many entries of the table its working set has at most."""
        bound = self.segments.configs_per_graph
        entries = {}
        for name in self.train:
            if (cut := self._cut(name)) is not None:
                counts = cut.local_counts
                entries[name] = int((counts if bound is None else counts.clip(max=bound)).sum())
        return entries

    def working_set(self, number: int, epoch: int) -> Targets:
        """Return the targets of a graph of `train` that an epoch trains on; drawn again every `redraw_epochs`."""
        rows, labels = self.train_graph(number).targets
        count = self.segments.configs_per_graph
        if count is None or count >= len(rows):
            return rows, labels
        rng = generator(self.seed, Stream.WORKING_SET, number, epoch // self.segments.redraw_epochs)
        drawn = np.sort(rng.choice(len(rows), size=count, replace=False))
        return rows[drawn], labels[drawn]

    def ranking(self, number: int) -> Ranking:
        """Return a graph of `valid` and the targets that every validation ranks."""
        graph = self.valid_graph(number)
        return Ranking(graph, *validation_targets(graph.features, self.settings.validation_configs, self.seed))

    def step(self, epoch: int, index: int) -> Step:
        """Draw a step; it depends on the seed, the epoch and the index only, so that a resumed training repeats it.

        Args:
            epoch: number of the epoch.
            index: number of the step within it, one for each graph.
        """
        round_, place = divmod(epoch * self.graphs_per_epoch + index, len(self.train))
        # Every graph once in a round, each round in an order of its own.
        number = int(generator(self.seed, Stream.GRAPH_ORDER, round_).permutation(len(self.train))[place])
        graph = self.train_graph(number)
        rng = generator(self.seed, Stream.STEP, epoch, index)
        rows, labels = self.working_set(number, epoch)
        drawn = self.sampler(rng, labels, min(self.settings.configs_per_step, len(rows)))
        sample = sample_segments(rng, len(graph.segments), self.segments.sampled)
        return Step(graph, number, rows[drawn], torch.from_numpy(labels[drawn]), *sample)

    @property
    def graphs_per_epoch(self) -> int:
        """Graphs of all steps of an epoch, repeated ones counted each time."""
        return self.settings.steps_per_epoch * self.settings.graphs_per_step

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the steps of the trainer's current epoch, in order."""
        epoch = cast("lightning.Trainer", self.trainer).current_epoch
        return in_order(partial(self.step, epoch), self.graphs_per_epoch)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return one item for each validation graph."""
        return in_order(self.ranking, len(self.valid))

    def transfer_batch_to_device(self, batch: Step | Ranking, device: torch.device, _: int) -> Step | Ranking:
        """Move the runtimes of a step; Lightning would look for tensors in all parts of its graph, which is there."""
        return batch._replace(labels=batch.labels.to(device)) if isinstance(batch, Step) else batch


class _Items(Dataset[Any]):
    """Data set whose item i is the result of a function of i."""

    def __init__(self, item: Callable[[int], Any], count: int) -> None:
        self._item = item
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        return self._item(number)


def in_order(item: Callable[[int], Any], count: int) -> DataLoader[Any]:
    """Return a loader of the items 0, 1, ... of a function, unchanged."""
    # In this process: an item is a few rows of a memory map, and a worker would copy its graph.
    return DataLoader(_Items(item, count), batch_size=None, num_workers=0, collate_fn=_unchanged)


def _unchanged(item: Any) -> Any:
    # PyTorch's default would turn arrays into tensors, and memory maps cannot be indexed with those.
    return item

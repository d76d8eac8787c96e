"""Data of training steps: the graph of each, its configurations and segments; and the graphs of validation."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hlorank.config import ConfigError, SegmentsConfig, TrainerConfig
from hlorank.data.collection import Split
from hlorank.files import counted
from hlorank.models.graph_inputs import GraphInputs, GraphLoader
from hlorank.training.methods import sample_segments
from hlorank.training.ranks import ALONE, Ranks, deal
from hlorank.training.sampling import (
    SAMPLERS,
    Stream,
    Targets,
    generator,
    rankable_graphs,
    usable_graphs,
    validation_targets,
)
from hlorank.training.step_plans import PlannedPart, PlannedStep, Step, StepPlanner

log = logging.getLogger(__name__)

# An open graph has a dozen open files, of which some systems allow a process 1,024; tile:xla has 5,709 kernels.
_OPEN_GRAPHS = 64


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


class Idle(NamedTuple):
    """Place of a graph, in a step or in validation, that another rank computes."""


class StepData(lightning.LightningDataModule):
    """Training steps and validation rankings of one collection.

    Several ranks have the same steps, and each computes some graphs of a step; in place of the others it is idle. With
    an embedding table each training graph belongs to one rank, which has its entries; otherwise the graphs of each step
    are dealt out. Either is balanced by the node states of the dense form.

    Args:
        graphs: opens the collection's graphs.
        planner: makes the plans of steps.
        settings: sizes of an epoch, of a step and of validation, and the sampler of configurations.
        segments: number of segments that a step trains, and the settings of working sets.
        seed: the seed of the training.
        held_out: graphs of train that validation ranks instead of those of valid; training leaves them out.
        ranks: the ranks that train together.

    Attributes:
        train: names of the graphs that are trained on.
        valid: names of the graphs that validation ranks.

    Raises:
        ConfigError: there are more ranks than training graphs, or than graphs in a step.
    """

    def __init__(
        self,
        graphs: GraphLoader,
        planner: StepPlanner,
        settings: TrainerConfig,
        segments: SegmentsConfig,
        seed: int,
        held_out: Collection[str] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.planner = planner
        self._steps: DataLoader[Any] | None = None
        self.settings = settings
        self.segments = segments
        self.seed = seed
        self.sampler = SAMPLERS[settings.sampling]
        self._open = lru_cache(_OPEN_GRAPHS)(graphs.open)
        self._cut = partial(graphs.open_partition, "train")
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
        self._order = lru_cache(2)(self._round)
        self._entries = graphs.store.entries
        self._check_ranks()

    def _check_ranks(self) -> None:
        """Check that every rank has something to compute."""
        count, settings = self.ranks.count, self.settings
        if self.train and count > len(self.train):
            graphs = counted(len(self.train), "training graph")
            raise ConfigError(f"{count} ranks: the collection has {graphs}; start at most one rank for each")
        if count > settings.graphs_per_step:
            raise ConfigError(
                f"trainer.graphs_per_step={settings.graphs_per_step}: {count} ranks share the graphs of a step; set it "
                f"to at least {count}, or start fewer ranks"
            )

    @cached_property
    def _work(self) -> NDArray[np.float64]:
        """The node states that a step on each training graph computes in the dense form."""
        entries, settings = self._entries("train"), self.settings
        rows = [entries[name].nodes * min(settings.configs_per_step, entries[name].distinct) for name in self.train]
        if self.planner.method.others == "fresh":
            return np.array(rows, dtype=np.float64)
        cuts = [self._cut(name) for name in self.train]
        shares = [1.0 if cut is None else min(1.0, self.segments.sampled / cut.segments) for cut in cuts]
        return np.array(rows) * shares

    @cached_property
    def owners(self) -> NDArray[np.int64] | None:
        """The rank that each graph of `train` belongs to; None without an embedding table."""
        return deal(self._work, self.ranks.count) if self.planner.method.others == "table" else None

    @cached_property
    def _valid_owners(self) -> NDArray[np.int64]:
        """The rank that validates each graph of `valid`."""
        entries, bound = self._entries(self._valid_split), self.settings.validation_configs
        rows = [entries[name].nodes * min(bound, entries[name].distinct) for name in self.valid]
        return deal(np.array(rows, dtype=np.float64), self.ranks.count)

    def _is_own(self, epoch: int, index: int) -> bool:
        """Return whether this rank computes the graph of a step."""
        if self.ranks.count == 1:
            return True
        if self.owners is not None:
            return bool(self.owners[self._graph_number(epoch, index)] == self.ranks.number)
        place = index % self.settings.graphs_per_step
        numbers = [self._graph_number(epoch, index - place + i) for i in range(self.settings.graphs_per_step)]
        return bool(deal(self._work[numbers], self.ranks.count)[place] == self.ranks.number)

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
        number = self._graph_number(epoch, index)
        graph = self.train_graph(number)
        rng = generator(self.seed, Stream.STEP, epoch, index)
        rows, labels = self.working_set(number, epoch)
        drawn = self.sampler(rng, labels, min(self.settings.configs_per_step, len(rows)))
        sample = sample_segments(rng, len(graph.segments), self.segments.sampled)
        return Step(graph, number, rows[drawn], labels[drawn], *sample)

    def _graph_number(self, epoch: int, index: int) -> int:
        """Return the graph of a step: every graph once in a round, each round in an order of its own."""
        round_, place = divmod(epoch * self.graphs_per_epoch + index, len(self.train))
        return int(self._order(round_)[place])

    def _round(self, number: int) -> NDArray[np.int64]:
        return generator(self.seed, Stream.GRAPH_ORDER, number).permutation(len(self.train))

    def planned_step(self, key: tuple[int, int]) -> PlannedStep:
        """Draw and plan the step of an epoch and an index."""
        return self.plan(self.step(*key), key)

    def plan(self, step: Step, key: tuple[int, int]) -> PlannedStep:
        """Plan a step; the edges that it leaves out are those of an epoch and an index."""
        return self.planner(step, generator(self.seed, Stream.DROP_EDGE, *key))

    def missing_plans(self, number: int, rows: Mapping[int, NDArray[np.int64]]) -> list[PlannedPart]:
        """Plan segments of a graph of `train`, each under some configurations; for `SegmentAggregator`."""
        return self.planner.without_gradient(self.train_graph(number), rows)

    def _loaded_step(self, key: tuple[int, int]) -> PlannedStep | Idle | Exception:
        """Plan a step; a worker process returns an error, of which DataLoader would make one of another type."""
        if not self._is_own(*key):
            return Idle()
        if get_worker_info() is None:  # this process measures its own CPU time
            return self.planned_step(key)
        start = time.process_time()
        try:
            return self.planned_step(key)._replace(seconds=time.process_time() - start)
        except Exception as error:
            return error

    @property
    def graphs_per_epoch(self) -> int:
        """Graphs of all steps of an epoch, repeated ones counted each time."""
        return self.settings.steps_per_epoch * self.settings.graphs_per_step

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the steps of the trainer's current epoch, in order; worker processes plan them ahead."""
        if self._steps is None:
            # A fork of a process in which JAX runs threads may never end.
            workers = 0 if "jax" in sys.modules else self.settings.worker_count
            cuda = torch.cuda.is_available()
            self._steps = ordered(self._loaded_step, list[tuple[int, int]](), workers, pin_memory=cuda)
        # The same loader for every epoch keeps its processes, and with them their open graphs.
        epoch = cast("lightning.Trainer", self.trainer).current_epoch
        cast("list[tuple[int, int]]", self._steps.sampler)[:] = [(epoch, i) for i in range(self.graphs_per_epoch)]
        return self._steps

    def val_dataloader(self) -> DataLoader[Any]:
        """Return one item for each validation graph."""
        return ordered(self._own_ranking, range(len(self.valid)))

    def _own_ranking(self, number: int) -> Ranking | Idle:
        return self.ranking(number) if self._valid_owners[number] == self.ranks.number else Idle()

    def transfer_batch_to_device(
        self, batch: PlannedStep | Ranking | Idle | Exception, device: torch.device, _: int
    ) -> PlannedStep | Ranking | Idle:
        """Move a step; the plans of a ranking are moved one by one.

        Raises:
            Exception: that of the worker process which planned the step.
        """
        if isinstance(batch, Exception):
            raise batch
        return batch.to(device) if isinstance(batch, PlannedStep) else batch


class _Items(Dataset[Any]):
    """Data set whose items are results of a function."""

    def __init__(self, item: Callable[[Any], Any]) -> None:
        self._item = item

    def __getitem__(self, key: Any) -> Any:
        return self._item(key)


def ordered(
    item: Callable[[Any], Any], keys: Iterable[Any], workers: int = 0, *, pin_memory: bool = False
) -> DataLoader[Any]:
    """Return a loader of the results of a function of keys, in their order.

    Args:
        item: the function.
        keys: its arguments.
        workers: processes that call it ahead; 0 calls it in this one.
        pin_memory: copy tensors to pinned memory.
    """
    return DataLoader(
        _Items(item),
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )


def _unchanged(item: Any) -> Any:
    # PyTorch's default would turn arrays into tensors, and memory maps cannot be indexed with those.
    return item

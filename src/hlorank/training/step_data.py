"""Data of training steps: the graph of each, its configurations and segments; and the graphs of validation."""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hlorank.data.collection import Split
from hlorank.models.graph_inputs import GraphInputs
from hlorank.training.process_group import ALONE, ProcessGroup, deal
from hlorank.training.sampling import SAMPLERS, Stream, Targets, generator, rankable_graphs, validation_targets
from hlorank.training.setup import Member, Setup
from hlorank.training.step_plans import PlannedPart, PlannedStep, Step, StepPlanner

# Files of the graphs that stay open, of which some systems allow a process 1,024, and of each graph with its segments.
_OPEN_FILES, _FILES_OF_GRAPH = 800, {"layout": 16, "tile": 9}


class Ranking(NamedTuple):
    """A graph, and the configurations that validation ranks, with their runtimes."""

    graph: GraphInputs
    configurations: NDArray[np.int64]
    labels: NDArray[np.float64]


class Idle(NamedTuple):
    """Place of a graph, in a step or in validation, that another rank computes."""


class StepData(lightning.LightningDataModule):
    """Training steps on the graphs `train` of one member, and rankings of the graphs `valid`.

    Several ranks have the same steps, and each computes a part of a step's graphs; in place of the others it is idle.
    With an embedding table each training graph belongs to one rank, which has its entries; otherwise the graphs of each
    step are dealt out. Both are balanced by the node states of the dense form.
    """

    def __init__(self, setup: Setup, member: Member, planner: StepPlanner, ranks: ProcessGroup = ALONE) -> None:
        super().__init__()
        self.settings, self.segments = setup.config.trainer, setup.config.segments
        self.seed, self.planner, self.ranks = member.seed, planner, ranks
        self.sampler = SAMPLERS[self.settings.sampling]
        self.train = [name for name in setup.train if name not in member.held_out]
        self.valid = list(setup.valid)
        self._valid_split: Split = "valid"
        if member.held_out:
            self._valid_split = "train"
            count = self.settings.validation_configs
            self.valid = rankable_graphs(setup.graphs.store, "train", member.held_out, count)
        self._graphs, self._entries = setup.graphs, setup.graphs.store.entries
        self._open = lru_cache(_OPEN_FILES // _FILES_OF_GRAPH[setup.graphs.store.spec.kind])(setup.graphs.open)
        self._order = lru_cache(2)(self._round)
        self._steps: DataLoader[Any] | None = None

    # Draws: they depend on the seed, the epoch and the index only, so that a resumed training repeats them.

    @property
    def graphs_per_epoch(self) -> int:
        """Graphs of all steps of an epoch, repeated ones counted each time."""
        return self.settings.steps_per_epoch * self.settings.graphs_per_step

    def _graph_number(self, epoch: int, index: int) -> int:
        """Return the graph of a step: every graph once in a round, each round in another order."""
        round_, place = divmod(epoch * self.graphs_per_epoch + index, len(self.train))
        return int(self._order(round_)[place])

    def _round(self, number: int) -> NDArray[np.int64]:
        return generator(self.seed, Stream.GRAPH_ORDER, number).permutation(len(self.train))

    def train_graph(self, number: int) -> GraphInputs:
        """Open a graph of `train`."""
        return self._open("train", self.train[number])

    @property
    def largest_graph(self) -> GraphInputs:
        """The graph of `train` with the most nodes."""
        entries = self._entries("train")
        return self._open("train", max(self.train, key=lambda name: entries[name].nodes))

    def working_set(self, number: int, epoch: int) -> Targets:
        """Return the targets of a graph of `train` that an epoch trains on; drawn again every `redraw_epochs`."""
        chosen, labels = self.train_graph(number).targets
        count = self.segments.configs_per_graph
        if count is None or count >= len(chosen):
            return chosen, labels
        rng = generator(self.seed, Stream.WORKING_SET, number, epoch // self.segments.redraw_epochs)
        drawn = np.sort(rng.choice(len(chosen), size=count, replace=False))
        return chosen[drawn], labels[drawn]

    def step(self, epoch: int, index: int) -> Step:
        """Draw the step of an epoch and an index within it; each graph of an optimizer step has an index."""
        number = self._graph_number(epoch, index)
        graph = self.train_graph(number)
        rng = generator(self.seed, Stream.STEP, epoch, index)
        chosen, labels = self.working_set(number, epoch)
        drawn = self.sampler(rng, labels, min(self.settings.configs_per_step, len(chosen)))
        segments = len(graph.segments)
        sampled = np.sort(rng.choice(segments, size=min(self.segments.sampled, segments), replace=False))
        return Step(graph, number, chosen[drawn], labels[drawn], sampled, rng.random(segments))

    def ranking(self, number: int) -> Ranking:
        """Return a graph of `valid`, and the targets that every validation ranks."""
        graph = self._open(self._valid_split, self.valid[number])
        return Ranking(graph, *validation_targets(graph.features, self.settings.validation_configs))

    # Plans.

    def planned_step(self, key: tuple[int, int]) -> PlannedStep:
        """Draw and plan the step of an epoch and an index."""
        return self.planner(self.step(*key), generator(self.seed, Stream.DROP_EDGE, *key))

    def missing_plans(self, number: int, chosen: Mapping[int, NDArray[np.int64]]) -> list[PlannedPart]:
        """Plan segments of a graph of `train` under the configurations of each; for the aggregator."""
        return self.planner.without_gradient(self.train_graph(number), chosen)

    def table_entries(self) -> dict[str, int]:
        """Return for each training graph that is cut how many entries of the table its working set has at most."""
        bound = self.segments.configs_per_graph
        entries = {}
        for name in self.train:
            if (partition := self._graphs.open_partition("train", name)) is not None:
                counts = partition.local_counts
                entries[name] = int((counts if bound is None else counts.clip(max=bound)).sum())
        return entries

    # Ranks.

    @cached_property
    def _work(self) -> NDArray[np.float64]:
        """The node states that a step on each training graph computes in the dense form."""
        entries, settings = self._entries("train"), self.settings
        states = [entries[name].nodes * min(settings.configs_per_step, entries[name].distinct) for name in self.train]
        if self.planner.method.others == "fresh":
            return np.array(states, dtype=np.float64)
        partitions = (self._graphs.open_partition("train", name) for name in self.train)  # open one by one
        segments = [1 if partition is None else partition.segments for partition in partitions]
        return np.array(states) * [min(1.0, self.segments.sampled / count) for count in segments]

    @cached_property
    def owners(self) -> NDArray[np.int64] | None:
        """The rank that each graph of `train` belongs to; None without an embedding table."""
        return deal(self._work, self.ranks.count) if self.planner.method.others == "table" else None

    @cached_property
    def _valid_owners(self) -> NDArray[np.int64]:
        """The rank that validates each graph of `valid`."""
        entries, bound = self._entries(self._valid_split), self.settings.validation_configs
        states = [entries[name].nodes * min(bound, entries[name].distinct) for name in self.valid]
        return deal(np.array(states, dtype=np.float64), self.ranks.count)

    def _is_own(self, epoch: int, index: int) -> bool:
        """Return whether this rank computes the graph of a step."""
        if self.ranks.count == 1:
            return True
        if self.owners is not None:
            return bool(self.owners[self._graph_number(epoch, index)] == self.ranks.number)
        place = index % self.settings.graphs_per_step
        numbers = [self._graph_number(epoch, index - place + i) for i in range(self.settings.graphs_per_step)]
        return bool(deal(self._work[numbers], self.ranks.count)[place] == self.ranks.number)

    # Lightning's hooks.

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

    def _loaded_step(self, key: tuple[int, int]) -> PlannedStep | Idle | Exception:
        """Plan a step; a worker process returns an error, as DataLoader would change its type."""
        try:
            return self.planned_step(key) if self._is_own(*key) else Idle()
        except Exception as error:
            if get_worker_info() is None:
                raise
            return error

    def val_dataloader(self) -> DataLoader[Any]:
        """Return one item for each validation graph."""
        own = self._valid_owners == self.ranks.number
        return ordered(lambda number: self.ranking(number) if own[number] else Idle(), range(len(self.valid)))

    def transfer_batch_to_device(
        self, batch: PlannedStep | Ranking | Idle | Exception, device: torch.device, _: int
    ) -> PlannedStep | Ranking | Idle:
        """Move a step, or raise the error of the worker process that planned it; a ranking is moved plan by plan."""
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
    """Return a loader of the results of a function of keys, in their order; worker processes call it ahead."""
    return DataLoader(
        _Items(item),
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        # PyTorch's default would turn arrays into tensors, with which memory maps cannot be indexed.
        collate_fn=lambda item: item,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )

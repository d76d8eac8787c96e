"""The training of one model: alone, or as a member of an ensemble."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.serialization import ModelSpec, input_sizes
from hlorank.training.callbacks import EpochHistory, Origin, TrialReport
from hlorank.training.ensemble import Member
from hlorank.training.fit import MemberLogger, fit
from hlorank.training.gst.head_finetuning import HEAD_LOSS, HEAD_TAU, HeadData, HeadModule
from hlorank.training.gst.methods import method_named
from hlorank.training.ranking_module import TRAIN_LOSS, VALID_TAU, RankingModule
from hlorank.training.step_data import StepData

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """What a training came to.

    Attributes:
        steps: optimizer steps taken; those of the head alone do not count.
        best: the best validation Kendall tau, None without validation.
        history: a row for each epoch.
        seconds: what the epochs took.
    """

    steps: int
    best: float | None
    history: list[dict[str, float | None]]
    seconds: float


class MemberTraining:
    """A model and all that it is trained with; made before anything is written, so that mistakes are named before.

    Args:
        member: what it trains on, and how.
        graphs: opens the collection's graphs.
        spec: what the model is.

    Attributes:
        data: its training steps and validation rankings.
        model: the cost model, with its initial weights until `run` is through.

    Raises:
        ConfigError: what is chosen does not go together.
    """

    def __init__(self, member: Member, graphs: GraphLoader, spec: ModelSpec) -> None:
        self._config = config = member.config
        self._device = graphs.device
        self._whole_graph = spec.whole_graph
        self.data = StepData(graphs, config, member.held_out)
        with _seeded(config.seed):
            self.model = CostModel(config.model, input_sizes(spec.features), config.segments.aggregation)
        if config.model.opcode_init:
            self.model.encoder.start_opcodes(spec.features.opcode_embedding)
        self.model.check_halo(graphs.options is not None and graphs.options.halo > 0)
        self._module = RankingModule(self.model, config)
        if self._module.table is not None and (entries := self.data.table_entries()):
            self._module.table.check_budget(entries)

    def run(self, state: Path, origin: Origin, logger: MemberLogger, reports: Sequence[TrialReport]) -> Result:
        """Trains, from the last complete epoch if there is one; the model then has the weights of the best epoch.

        Args:
            state: the folder of the checkpoints.
            origin: which training this is.
            logger: where metrics go.
            reports: to the search that it belongs to, if any.
        """
        config, validated = self._config, bool(self.data.valid)
        if not validated:
            log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
        history = EpochHistory()
        fitted = partial(fit, config=config, device=self._device, origin=origin, logger=logger)
        monitor, callbacks = (TRAIN_LOSS, VALID_TAU if validated else None), [history, *reports, self._module.budget]
        steps, best = fitted(self._module, self.data, config.trainer.max_epochs, monitor, callbacks, state=state)
        if method_named(config.method).finetune_head and not self._whole_graph:
            head, monitor = HeadModule(self.model, config), (HEAD_LOSS, HEAD_TAU if validated else None)
            aggregates = HeadData(self.model, self.data, config)
            _, best = fitted(head, aggregates, config.segments.finetune_epochs, monitor, [], state=state / "head")
        return Result(steps, best, history.rows, history.seconds)


def count_parameters(model: CostModel) -> int:
    """The numbers that training changes."""
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draws from a generator of its own, and leaves the global one as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield

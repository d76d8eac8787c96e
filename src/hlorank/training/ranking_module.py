"""The one training step of all methods, as a Lightning module."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import TrainerConfig
from hlorank.metrics import TRAIN_LOSS, VALID_TAU, kendall_tau
from hlorank.models.scoring import PlanCache, score_configurations
from hlorank.training.callbacks import CpuBudget
from hlorank.training.gst.aggregator import SegmentAggregator, StepCost
from hlorank.training.gst.embedding_table import graph_numbers
from hlorank.training.losses import Loss
from hlorank.training.ranks import ALONE, Ranks
from hlorank.training.sampling import Stream, seed_sequence
from hlorank.training.step_data import Idle, Ranking
from hlorank.training.step_plans import PlannedStep


class RankingModule(lightning.LightningModule):
    """Training of a cost model that ranks the configurations of one graph at a time.

    Args:
        aggregator: aggregation of the segments of a graph by the method; contains the cost model.
        loss: function of the scores and runtimes of one graph's configurations.
        settings: the settings of the optimizer and its schedule.
        seed: the seed of the dropout masks.
        memory_bytes: bound of the activations in validation, and of the plans that are kept for it.
        bytes_per_row: memory of a step for each row of work, of `bytes_per_row`.
        ranks: the ranks that train together.
        owners: the rank that each training graph belongs to, for several ranks and an embedding table.

    Attributes:
        model: the cost model.
        budget: the bound of the training's CPU time, a callback of its trainer.
    """

    loss_metric, tau_metric = TRAIN_LOSS, VALID_TAU

    def __init__(
        self,
        aggregator: SegmentAggregator,
        loss: Loss,
        settings: TrainerConfig,
        seed: int,
        memory_bytes: int,
        bytes_per_row: float,
        ranks: Ranks = ALONE,
        owners: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        self.model = aggregator.model
        self.aggregator = aggregator
        self.loss = loss
        self.settings = settings
        self.seed = seed
        self.memory_bytes = memory_bytes
        self.bytes_per_row = bytes_per_row
        self.ranks = ranks
        self.owners = owners
        self._validation_plans = PlanCache(memory_bytes)
        self.epochs = settings.max_epochs
        self.budget = CpuBudget(settings.cpu_seconds, ranks)

    def on_train_start(self) -> None:
        """Move the table of a checkpoint to the model's device, as it is read before it is written."""
        if self.aggregator.table is not None:
            self.aggregator.table.to(self.device)

    def on_train_batch_start(self, _: PlannedStep, batch_idx: int) -> None:
        """Seed the step's dropout masks, so that a resumed training repeats them whatever else draws numbers."""
        sequence = seed_sequence(self.seed, Stream.DROPOUT, self.current_epoch, batch_idx)
        seed = int(sequence.generate_state(1, np.uint64)[0])
        # torch.manual_seed would format the stack, and keep a call for later, for each kind of device that is missing.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def training_step(self, step: PlannedStep | Idle, index: int) -> Tensor:
        """Compute the loss of one graph; that of a graph which another rank computes is zero."""
        # DDP takes the mean over the ranks, of which one computes the graph.
        loss = self.ranks.count * (self._no_loss() if isinstance(step, Idle) else self.graph_loss(step, index))
        self.log(TRAIN_LOSS, loss.detach(), on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def graph_loss(self, step: PlannedStep, index: int) -> Tensor:
        """Compute the loss of one graph: segments with gradient, combined with the embeddings of the others."""
        now = self.current_epoch * self.settings.steps_per_epoch * self.settings.graphs_per_step + index
        self.budget.add(step.seconds)
        scores = self.model.score(self.aggregator(step, now), len(step.local))
        return self.loss(scores.float(), step.labels)

    def _no_loss(self) -> Tensor:
        """Return zero with a gradient: DDP waits in each step until every rank has computed one."""
        return torch.stack([parameter.sum() for parameter in self.model.head.parameters()]).sum() * 0

    def on_train_epoch_end(self) -> None:
        """Log the cost of the epoch's steps, compared with the dense form, and the use of the table."""
        table = self.aggregator.table
        cost, self.aggregator.cost = self._total(self.aggregator.cost), StepCost()
        self.log("train/rows", float(cost.rows))
        self.log("train/rows_of_dense_form", cost.rows / max(1, cost.dense_rows))
        self.log("train/step_memory_bytes", cost.peak_rows * self.bytes_per_row)
        if table is not None:
            self.log("table/hit_rate", cost.found / max(1, cost.looked_up))
            self.log("table/staleness_steps", cost.staleness / max(1, cost.used))
            self.log("table/bytes", float(table.bytes))

    def _total(self, cost: StepCost) -> StepCost:
        """Return the cost of the steps of all ranks on rank 0, which logs it, and that of this rank on the others."""
        costs = self.ranks.gather(cost) or [cost]
        total = StepCost(*map(sum, zip(*map(astuple, costs), strict=True)))
        return replace(total, peak_rows=max(one.peak_rows for one in costs))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the tables of all ranks on rank 0, which writes the checkpoint, rank by rank."""
        if self.aggregator.table is not None:
            tables = self.ranks.gather(self.aggregator.table.state_dict())
            checkpoint["table"] = (
                {name: torch.cat([one[name] for one in tables]) for name in tables[0]} if tables else {}
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the entries of the table of this rank's graphs, however many ranks wrote the checkpoint."""
        if self.aggregator.table is not None:
            state = checkpoint["table"]
            if self.ranks.count > 1 and self.owners is not None:
                own = torch.from_numpy(self.owners[graph_numbers(state["keys"])] == self.ranks.number)
                state = {name: values[own] for name, values in state.items()}
            self.aggregator.table.load_state_dict(state)

    def validation_step(self, ranking: Ranking | Idle, _: int) -> None:
        """Compute the Kendall tau of one validation graph; the epoch's value is the mean over graphs."""
        tau = 0.0
        if not isinstance(ranking, Idle):
            graph, rows, labels = ranking
            scores = score_configurations(self.model, graph, rows, self.memory_bytes, self._validation_plans)
            tau = self.ranks.count * kendall_tau(scores, labels)  # as in a training step
        tensor = torch.tensor(tau, device=self.device)  # NCCL adds up what is on a GPU only
        self.log(VALID_TAU, tensor, on_step=False, on_epoch=True, prog_bar=True, batch_size=1, sync_dist=True)

    @property
    def max_steps(self) -> int:
        """Steps of the optimizer, if nothing ends the training early."""
        return self.epochs * self.settings.steps_per_epoch

    def progress(self) -> float:
        """Return the finished share of the training: of its steps or of its CPU time, whichever is larger."""
        return max(self.global_step / self.max_steps, self.budget.share)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Make AdamW; the learning rate rises linearly, then falls to zero along a cosine, with the progress."""
        settings, total = self.settings, self.max_steps
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        warmup = max(1, round(settings.warmup * total))

        def factor(step: int) -> float:
            done = min(total, max(step, self.budget.share * total))
            if done < warmup:
                return min(1.0, (done + 1) / warmup)
            return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1, total - warmup)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

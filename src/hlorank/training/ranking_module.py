"""The one training step of all methods, as a Lightning module."""

import math
from dataclasses import astuple, replace
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from hlorank.metrics import TRAIN_LOSS, VALID_TAU, kendall_tau
from hlorank.models.scoring import PlanCache, score_configurations
from hlorank.training.gst.aggregator import Aggregator, StepCost
from hlorank.training.gst.embedding_table import graph_numbers
from hlorank.training.losses import make_loss
from hlorank.training.sampling import Stream, seed_sequence
from hlorank.training.setup import Setup
from hlorank.training.step_data import Idle, Ranking, StepData
from hlorank.training.step_plans import PlannedStep


class RankingModule(lightning.LightningModule):
    """Training of a cost model that ranks the configurations of one graph at a time."""

    loss_metric, tau_metric = TRAIN_LOSS, VALID_TAU

    def __init__(self, setup: Setup, data: StepData, aggregator: Aggregator) -> None:
        super().__init__()
        self.model, self.aggregator = aggregator.model, aggregator
        self.loss = make_loss(setup.config.loss)
        self.settings, self.epochs = data.settings, data.settings.max_epochs
        self.seed, self.ranks = data.seed, data.ranks
        self._data = data
        self._bytes_per_state = 0.0 if setup.memory is None else setup.memory.bytes_per_state
        self._memory_bytes = setup.config.evaluate.memory_bytes
        self._validation_plans = PlanCache(self._memory_bytes)

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
        """Compute the loss of one graph: zero if another rank computes the graph."""
        # DDP takes the mean over the ranks, of which one computes the graph.
        loss = self.ranks.count * (self._no_loss() if isinstance(step, Idle) else self.graph_loss(step, index))
        self.log(TRAIN_LOSS, loss.detach(), on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def graph_loss(self, step: PlannedStep, index: int) -> Tensor:
        """Compute the loss of one graph: segments with gradient, combined with the embeddings of the others."""
        now = self.current_epoch * self._data.graphs_per_epoch + index
        scores = self.model.score(self.aggregator(step, self._data.missing_plans, now), len(step.local))
        return self.loss(scores.float(), step.labels)

    def _no_loss(self) -> Tensor:
        """Return zero with a gradient: DDP waits in each step until every rank has computed gradients."""
        return torch.stack([parameter.sum() for parameter in self.model.head.parameters()]).sum() * 0

    def on_train_epoch_end(self) -> None:
        """Log the cost of the epoch's steps, compared with the dense form, and the use of the table."""
        table = self.aggregator.table
        cost, self.aggregator.cost = self._total(self.aggregator.cost), StepCost()
        self.log("train/rows", float(cost.states))
        self.log("train/rows_of_dense_form", cost.states / max(1, cost.dense_states))
        self.log("train/step_memory_bytes", cost.peak_states * self._bytes_per_state)
        if table is not None:
            self.log("table/hit_rate", cost.found / max(1, cost.looked_up))
            self.log("table/staleness_steps", cost.staleness / max(1, cost.used))
            self.log("table/bytes", float(table.bytes))

    def _total(self, cost: StepCost) -> StepCost:
        """Return the cost of the steps of all ranks on rank 0, which logs it, and of this rank alone on the others."""
        costs = self.ranks.gather(cost) or [cost]
        total = StepCost(*map(sum, zip(*map(astuple, costs), strict=True)))
        return replace(total, peak_states=max(cost.peak_states for cost in costs))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the tables of all ranks on rank 0, which writes the checkpoint, rank by rank."""
        if self.aggregator.table is not None:
            tables = self.ranks.gather(self.aggregator.table.state_dict())
            names = tables[0] if tables else {}
            checkpoint["table"] = {name: torch.cat([table[name] for table in tables]) for name in names}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the entries of the table of this rank's graphs, however many ranks wrote the checkpoint."""
        if self.aggregator.table is not None:
            state = checkpoint["table"]
            if self.ranks.count > 1 and self._data.owners is not None:
                own = torch.from_numpy(self._data.owners[graph_numbers(state["keys"])] == self.ranks.number)
                state = {name: values[own] for name, values in state.items()}
            self.aggregator.table.load_state_dict(state)

    def validation_step(self, ranking: Ranking | Idle, _: int) -> None:
        """Compute the Kendall tau of one validation graph; the epoch's value is the mean over graphs."""
        tau = 0.0
        if not isinstance(ranking, Idle):
            graph, chosen, labels = ranking
            scores = score_configurations(self.model, graph, chosen, self._memory_bytes, self._validation_plans)
            tau = kendall_tau(scores, labels) if np.isfinite(scores).all() else math.nan
            tau *= self.ranks.count  # as in a training step
        tensor = torch.tensor(tau, device=self.device)  # NCCL adds up what is on a GPU only
        self.log(VALID_TAU, tensor, on_step=False, on_epoch=True, batch_size=1, sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Make AdamW; the learning rate rises linearly, then falls to zero along a cosine, with the progress."""
        settings, total = self.settings, self.epochs * self.settings.steps_per_epoch
        rate, decay = settings.learning_rate, settings.weight_decay
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=decay)
        warmup = max(1, round(settings.warmup * total))

        def factor(step: int) -> float:
            done = min(total, step)
            if done < warmup:
                return min(1.0, (done + 1) / warmup)
            return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1, total - warmup)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

"""The one training step of all methods, as a Lightning module."""

from __future__ import annotations

import math
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from hlorank.config import Config
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.scoring import score_configurations
from hlorank.training.cpu_budget import CpuBudget
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.gst.methods import method_named
from hlorank.training.gst.segment_aggregator import SegmentAggregator, StepCost
from hlorank.training.losses import make_loss
from hlorank.training.random_streams import Stream, seed_sequence
from hlorank.training.step_data import Ranking, Step

VALID_TAU = "valid/kendall_tau"
TRAIN_LOSS = "train/loss"


class RankingModule(lightning.LightningModule):
    """Trains a cost model to rank the configurations of one graph at a time.

    Args:
        model: the cost model.
        config: the whole configuration.

    Attributes:
        budget: the bound of the training's CPU time, a callback of its trainer.
    """

    def __init__(self, model: CostModel, config: Config) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = make_loss(config.loss)
        self.budget = CpuBudget(config.trainer.cpu_seconds)
        method, segments = method_named(config.method), config.segments
        self.table: EmbeddingTable | None = None
        if method.others == "table":
            self.table = EmbeddingTable(model.embedding_width, segments.table_bytes, segments.table_dtype)
        self.combine = SegmentAggregator(model, method, segments.keep_probability, self.table)

    def on_train_start(self) -> None:
        """Brings the table of a checkpoint to where the model computes: it is read before it is written."""
        if self.table is not None:
            self.table.to(self.device)

    def on_train_batch_start(self, _: Step, batch_idx: int) -> None:
        """Fixes the step's dropout masks: a resumed run repeats them, whatever else draws random numbers."""
        key = seed_sequence(self.config.seed, Stream.DROPOUT, self.current_epoch, batch_idx)
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0]))

    def training_step(self, step: Step, index: int) -> Tensor:
        """The loss of one graph: sampled segments with gradient, combined with the embeddings of the others."""
        trainer = self.config.trainer
        now = self.current_epoch * trainer.steps_per_epoch * trainer.graphs_per_step + index
        scores = self.model.score(self.combine(step, now), len(step.graph.segments))
        loss = self.loss(scores.float(), step.labels)
        self.log(TRAIN_LOSS, loss.detach(), on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def on_train_epoch_end(self) -> None:
        """Logs what the epoch's steps cost, against the dense form, and what the table gave."""
        cost, self.combine.cost = self.combine.cost, StepCost()
        self.log("train/rows", float(cost.rows))
        self.log("train/rows_of_dense_form", cost.rows / max(1, cost.plain_rows))
        if self.table is not None:
            self.log("table/hit_rate", cost.found / max(1, cost.looked_up))
            self.log("table/staleness_steps", cost.staleness / max(1, cost.used))
            self.log("table/bytes", float(self.table.bytes))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the table."""
        if self.table is not None:
            checkpoint["table"] = self.table.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the table."""
        if self.table is not None:
            self.table.load_state_dict(checkpoint["table"])

    def validation_step(self, ranking: Ranking, _: int) -> None:
        """Kendall tau of one validation graph; the epoch's value is the mean over graphs."""
        graph, rows, labels = ranking
        scores = score_configurations(self.model, graph, rows, self.config.evaluate.memory_bytes)
        tau = kendall_tau(scores, labels)
        self.log(VALID_TAU, torch.tensor(tau), on_step=False, on_epoch=True, prog_bar=True, batch_size=1)

    @property
    def total_steps(self) -> int:
        """Steps of the optimizer, at most."""
        return self.config.trainer.max_epochs * self.config.trainer.steps_per_epoch

    def progress(self) -> float:
        """The share of the training that is done: of its steps or of its CPU time, whichever is larger."""
        return max(self.global_step / self.total_steps, self.budget.share)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW; the learning rate rises linearly, then falls to zero along a cosine, as the training progresses."""
        trainer = self.config.trainer
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=trainer.learning_rate, weight_decay=trainer.weight_decay
        )
        total = self.total_steps
        rise = max(1, round(trainer.warmup * total))

        def factor(step: int) -> float:
            done = min(total, max(step, self.budget.share * total))
            if done < rise:
                return min(1.0, (done + 1) / rise)
            return 0.5 * (1 + math.cos(math.pi * (done - rise) / max(1, total - rise)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

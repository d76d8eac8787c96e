"""Head finetuning (F): at the end the head is trained on up-to-date embeddings, as it sees them in testing."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hlorank.config import Config
from hlorank.data.collection import Split
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.scoring import sum_segments
from hlorank.training.losses import make_loss
from hlorank.training.random_streams import Stream, generator
from hlorank.training.samplers import sampler_named
from hlorank.training.step_data import StepData, in_order, working_set

HEAD_LOSS = "finetune/loss"
HEAD_TAU = "finetune/kendall_tau"


class Aggregates(NamedTuple):
    """Summed embeddings of some configurations of one graph.

    Attributes:
        total: (configurations, width * poolings), all segments fresh.
        segments: J.
        labels: (configurations,) float64, their runtimes.
    """

    total: Tensor
    segments: int
    labels: NDArray[np.float64]


class _Draws(Dataset[Aggregates]):
    """Sampled configurations of one graph after the other; item i depends on the seed, the epoch and i only."""

    def __init__(self, graphs: list[Aggregates], config: Config, epoch: int) -> None:
        self.graphs = graphs
        self.config = config
        self.epoch = epoch
        self.sampler = sampler_named(config.trainer.sampling)

    def __len__(self) -> int:
        return self.config.trainer.steps_per_epoch * self.config.trainer.graphs_per_step

    def __getitem__(self, i: int) -> Aggregates:
        rng = generator(self.config.seed, Stream.HEAD_FINETUNING, self.epoch, i)
        graph = self.graphs[int(rng.integers(len(self.graphs)))]
        drawn = self.sampler(rng, graph.labels, min(self.config.trainer.configs_per_step, len(graph.labels)))
        return Aggregates(graph.total[drawn], graph.segments, graph.labels[drawn])


class HeadData(lightning.LightningDataModule):
    """Recomputed embeddings of the working sets and of what validation ranks, each computed once.

    Args:
        model: the cost model.
        data: the graphs of the training.
        config: the whole configuration.
    """

    def __init__(self, model: CostModel, data: StepData, config: Config) -> None:
        super().__init__()
        self.config = config
        epoch = config.trainer.max_epochs

        def aggregates(split: Split, number: int) -> Aggregates:
            graph = data.graph(split, number)
            if split == "train":
                rows, labels = working_set(graph, number, config, epoch)
            else:
                rows, labels = data.ranked(graph)
            total = sum_segments(model, graph, rows, config.evaluate.memory_bytes)
            return Aggregates(total, len(graph.segments), labels)

        self.train = [aggregates("train", number) for number in range(len(data.train))]
        self.valid = [aggregates("valid", number) for number in range(len(data.valid))]

    def train_dataloader(self) -> DataLoader[Any]:
        """The steps of the trainer's current epoch, in order."""
        epoch = cast("lightning.Trainer", self.trainer).current_epoch
        return in_order(_Draws(self.train, self.config, epoch))

    def val_dataloader(self) -> DataLoader[Any]:
        """One item for each validation graph."""
        return in_order(cast("Dataset[Aggregates]", self.valid))


class HeadModule(lightning.LightningModule):
    """Trains the head of a cost model; the encoder takes no part in it, so it stays as it is.

    Args:
        model: the cost model.
        config: the whole configuration.
    """

    def __init__(self, model: CostModel, config: Config) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = make_loss(config.loss)

    def training_step(self, step: Aggregates, _: int) -> Tensor:
        """The loss of one graph."""
        scores = self.model.score(step.total, step.segments)
        loss = self.loss(scores.float(), torch.from_numpy(step.labels).to(scores.device))
        self.log(HEAD_LOSS, loss.detach(), on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, ranking: Aggregates, _: int) -> None:
        """Kendall tau of one validation graph."""
        scores = self.model.score(ranking.total, ranking.segments).double().cpu().numpy()
        tau = torch.tensor(kendall_tau(scores, ranking.labels))
        self.log(HEAD_TAU, tau, on_step=False, on_epoch=True, prog_bar=True, batch_size=1)

    def progress(self) -> float:
        """The share of the steps that are taken."""
        return self.global_step / (self.config.segments.finetune_epochs * self.config.trainer.steps_per_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over the head alone."""
        trainer = self.config.trainer
        return torch.optim.AdamW(
            self.model.head.parameters(), lr=trainer.learning_rate, weight_decay=trainer.weight_decay
        )

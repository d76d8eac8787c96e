"""Head finetuning (F): in the end the head is trained on up-to-date embeddings, as in scoring."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import sum_segments
from hlorank.training.losses import make_loss
from hlorank.training.sampling import Stream, generator
from hlorank.training.setup import Setup
from hlorank.training.step_data import StepData, ordered

HEAD_LOSS = "curves/finetune_loss"
HEAD_TAU = "curves/finetune_kendall_tau"


class Aggregates(NamedTuple):
    """Sums of the up-to-date embeddings of a graph's segments, (configurations, width * poolings), and runtimes."""

    total: Tensor
    segments: int
    labels: NDArray[np.float64]


class HeadData(lightning.LightningDataModule):
    """Recomputed embeddings of working sets and validation, kept by rank 0, which trains the head in seconds."""

    def __init__(self, model: CostModel, data: StepData, memory_bytes: int) -> None:
        super().__init__()
        self._data = data

        def aggregates(graph: GraphInputs, chosen: NDArray[np.int64], labels: NDArray[np.float64]) -> Aggregates:
            return Aggregates(sum_segments(model, graph, chosen, memory_bytes), len(graph.segments), labels)

        epoch = data.settings.max_epochs  # the working sets that the next epoch would have had
        self.train = self._dealt(
            len(data.train), lambda number: aggregates(data.train_graph(number), *data.working_set(number, epoch))
        )
        self.valid = self._dealt(len(data.valid), lambda number: aggregates(*data.ranking(number)))

    def _dealt(self, count: int, compute: Callable[[int], Aggregates]) -> list[Aggregates]:
        """Compute the embeddings of each graph, by number, in turn on the ranks."""
        ranks = self._data.ranks
        computed = {number: compute(number) for number in range(ranks.number, count, ranks.count)}
        if ranks.count > 1:  # tensors on another rank's device cannot be read
            computed = {number: graph._replace(total=graph.total.cpu()) for number, graph in computed.items()}
        ranks.wait()  # graphs are dealt by their number, not by the work for all their configurations
        gathered = {number: graph for part in ranks.gather(computed) for number, graph in part.items()}
        return [gathered[number] for number in sorted(gathered)]

    def step(self, key: tuple[int, int]) -> Aggregates:
        """Draw configurations of a graph; they depend on the seed, and the epoch and the index in `key`, only."""
        rng = generator(self._data.seed, Stream.HEAD_FINETUNING, *key)
        graph = self.train[int(rng.integers(len(self.train)))]
        count = min(self._data.settings.configs_per_step, len(graph.labels))
        drawn = self._data.sampler(rng, graph.labels, count)
        return Aggregates(graph.total[drawn], graph.segments, graph.labels[drawn])

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the steps of the trainer's current epoch, in order."""
        epoch = cast("lightning.Trainer", self.trainer).current_epoch
        return ordered(self.step, [(epoch, index) for index in range(self._data.graphs_per_epoch)])

    def val_dataloader(self) -> DataLoader[Any]:
        """Return one item for each validation graph."""
        return ordered(self.valid.__getitem__, range(len(self.valid)))


class HeadModule(lightning.LightningModule):
    """Training of the head of a cost model; the encoder is not used, so it does not change."""

    loss_metric, tau_metric = HEAD_LOSS, HEAD_TAU

    def __init__(self, setup: Setup, model: CostModel) -> None:
        super().__init__()
        self.model = model
        self.loss = make_loss(setup.config.loss)
        self.settings, self.epochs = setup.config.trainer, setup.config.segments.finetune_epochs

    def training_step(self, step: Aggregates, _: int) -> Tensor:
        """Compute the loss of one graph."""
        scores = self.model.score(step.total, step.segments)
        loss = self.loss(scores.float(), torch.from_numpy(step.labels).to(scores.device))
        self.log(HEAD_LOSS, loss.detach(), on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, ranking: Aggregates, _: int) -> None:
        """Compute the Kendall tau of one validation graph."""
        scores = self.model.score(ranking.total, ranking.segments).double().cpu().numpy()
        tau = kendall_tau(scores, ranking.labels) if np.isfinite(scores).all() else np.nan
        self.log(HEAD_TAU, torch.tensor(tau), on_step=False, on_epoch=True, batch_size=1, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make AdamW over the head alone."""
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        return torch.optim.AdamW(self.model.head.parameters(), lr=rate, weight_decay=decay)

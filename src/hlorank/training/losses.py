"""Training losses over the configurations of one graph; a larger score means slower."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hlorank.config import ConfigError, LossConfig

Loss = Callable[[Tensor, Tensor], Tensor]


def pairwise_hinge(scores: Tensor, labels: Tensor, margin: float) -> Tensor:
    """The mean over pairs with labels_i > labels_j of max(0, margin - (scores_i - scores_j)).

    Args:
        scores: (configurations,) floating point.
        labels: (configurations,) runtimes.
        margin: how far a slower configuration must score above a faster one.

    Returns:
        A scalar; 0 where all labels tie.
    """
    slower = labels[:, None] > labels[None, :]
    penalty = (margin - (scores[:, None] - scores[None, :])).clamp(min=0)
    return (penalty * slower).sum() / slower.sum().clamp(min=1)


def listmle(scores: Tensor, labels: Tensor) -> Tensor:
    """ListMLE: the mean negative log likelihood, per configuration, of the measured order (Xia et al., ICML 2008).

    The order is fastest first, under a Plackett-Luce model whose logits are the negated scores; equal labels keep
    their order in the input.

    Args:
        scores: (configurations,) floating point.
        labels: (configurations,) runtimes.

    Returns:
        A scalar.
    """
    ordered = -scores[torch.argsort(labels, stable=True)]
    remaining = torch.logcumsumexp(ordered.flip(0), dim=0).flip(0)
    return (remaining - ordered).mean()


def log_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean squared error of log runtime, both sides centred over the configurations.

    Centring leaves out a constant of the graph, which no ranking inside the graph needs.

    Args:
        scores: (configurations,) floating point.
        labels: (configurations,) positive runtimes.

    Returns:
        A scalar.
    """
    target = labels.log()
    residual = (scores - scores.mean()) - (target - target.mean()).to(scores.dtype)
    return residual.square().mean()


def make_loss(config: LossConfig) -> Loss:
    """The loss that the configuration names.

    Raises:
        ConfigError: there is no such loss.
    """
    losses: dict[str, Loss] = {
        "hinge": lambda scores, labels: pairwise_hinge(scores, labels, config.margin),
        "listmle": listmle,
        "mse": log_mse,
    }
    if config.name not in losses:
        raise ConfigError(f"loss.name: expected one of {', '.join(losses)}, found {config.name!r}")
    return losses[config.name]

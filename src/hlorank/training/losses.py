"""Training losses over the configurations of one graph; a larger score means slower.

No loss compares configurations of different graphs. None depends on the order of the configurations, except `listmle`
on the order of equal labels.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic.errors import PydanticUserError
from torch import Tensor
from torch.nn.functional import softplus

from hlorank.config import ConfigError, ExtensionPoint, LossTerm, find, parse
from hlorank.config.train_sections import arguments_section

Loss = Callable[[Tensor, Tensor], Tensor]


def _over_ordered_pairs(penalty: Callable[[Tensor], Tensor], scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean of penalty(scores_i - scores_j) over pairs with labels_i > labels_j; 0 where all labels tie."""
    slower = labels[:, None] > labels[None, :]
    penalties = penalty(scores[:, None] - scores[None, :])
    return (penalties * slower).sum() / slower.sum().clamp(min=1)


def pairwise_hinge(scores: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Compute the mean over pairs with labels_i > labels_j of max(0, margin - (scores_i - scores_j)).

    Args:
        scores: (configurations,) floating point.
        labels: (configurations,) runtimes.
        margin: difference by which a slower configuration must score above a faster configuration.
    """
    return _over_ordered_pairs(lambda difference: (margin - difference).clamp(min=0), scores, labels)


def ranknet(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute RankNet: the mean over pairs with labels_i > labels_j of log(1 + exp(-(scores_i - scores_j))).

    It is the negative log likelihood of the order of each pair, where i is slower with the probability
    1 / (1 + exp(-(scores_i - scores_j))) (Burges et al., ICML 2005, equations 2 and 3 for a target of 1).
    """
    return _over_ordered_pairs(lambda difference: softplus(-difference), scores, labels)


def listmle(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute ListMLE, the negative log likelihood of the measured order per configuration (Xia et al., ICML 2008).

    The order is fastest first, under a Plackett-Luce model whose logits are the negated scores; equal labels keep
    their order in the input.
    """
    ordered = -scores[torch.argsort(labels, stable=True)]
    remaining = torch.logcumsumexp(ordered.flip(0), dim=0).flip(0)
    return (remaining - ordered).mean()


def _residual(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute scores - log(labels), both centred: a constant of the graph has no influence on the ranking within it."""
    target = labels.log()
    return (scores - scores.mean()) - (target - target.mean()).to(scores.dtype)


def log_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean squared error of log runtime, both sides centred over the configurations."""
    return _residual(scores, labels).square().mean()


def log_mape(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean absolute relative error of runtimes, predicted up to a constant factor of the graph.

    With r = scores - log(labels), both sides centred, a score predicts the runtime labels * exp(r), whose relative
    error is |exp(r) - 1|. Centring gives the predicted runtimes the geometric mean of the measured ones, so that
    neither a constant added to the scores nor the unit of time has an influence. Above r = 1, where a prediction is
    more than e times too long, the exponential, which would overflow, is replaced by its tangent e r - 1.
    """
    residual = _residual(scores, labels)
    return (residual.clamp(max=1).expm1().abs() + math.e * (residual - 1).clamp(min=0)).mean()


def _function(_: str, found: Any) -> Callable[..., Tensor] | None:
    """Return a function of scores, labels and arguments with types, None for anything else."""
    try:
        arguments_section(found)
    except (TypeError, ValueError, NameError, KeyError, PydanticUserError):
        return None
    function: Callable[..., Tensor] = found
    return None if isinstance(found, type) else function


LOSSES: ExtensionPoint[Callable[..., Tensor]] = ExtensionPoint(
    {"hinge": pairwise_hinge, "ranknet": ranknet, "listmle": listmle, "mse": log_mse, "mape": log_mape},
    "a function of scores, labels and arguments with types",
    _function,
)
"""Training losses by name.

A loss is a function of scores, (configurations,) floating point, larger = slower; of labels, (configurations,) runtimes
of any unit; and of further arguments with types, which are keys of `loss.<name>`. It returns a scalar of at least 0.
"""


def make_loss(terms: Mapping[str, LossTerm]) -> Loss:
    """Return the sum of losses by their weights; a ConfigError says what is wrong with a name, argument or weight."""
    parts = [(term.weight, _with_arguments(name, term)) for name, term in terms.items() if term.weight > 0]
    if not parts:
        raise ConfigError(f"loss: expected a weight above 0 for one of {', '.join(LOSSES)}, such as with loss=listmle")

    def weighted(scores: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([weight * loss(scores, labels) for weight, loss in parts]).sum()

    return weighted


def _with_arguments(name: str, term: LossTerm) -> Loss:
    """Return a loss as a function of scores and labels alone."""
    loss = find(LOSSES, "loss", name)
    arguments = parse(arguments_section(loss), term.arguments, prefix=f"loss.{name}")
    return partial(loss, **arguments.model_dump(exclude={"weight"}))

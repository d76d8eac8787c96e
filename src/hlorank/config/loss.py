"""Section `loss`: the training losses that are used, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_serializer

from hlorank.config.section import Section, refused


class LossTerm(Section):
    """One training loss; a number alone is its weight. Further keys are arguments of the loss, such as `margin`."""

    model_config = ConfigDict(extra="allow")

    weight: float = Field(ge=0)
    """Factor of the loss in the weighted sum of all; 0 leaves it out."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the loss function."""
        return dict(self.model_extra or {})

    @model_serializer
    def _plain(self) -> Any:
        return {"weight": self.weight, **self.arguments} if self.arguments else self.weight


def as_term(value: object) -> object:
    """Return a number as the weight of a term, and anything else unchanged."""
    return {"weight": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_term(value: object) -> object:
    if not isinstance(term := as_term(value), dict | LossTerm):
        raise refused("a number, which is the weight, or a group of keys")
    return term


Loss = Annotated[LossTerm, BeforeValidator(_check_term)]


@cache
def arguments_section(loss: Callable[..., Any]) -> type[Section]:
    """Return the section of a loss function's arguments, with the types of its signature.

    Args:
        loss: a function of scores, labels and the arguments.
    """
    _, _, *names = inspect.signature(loss).parameters
    hints = get_type_hints(loss)
    arguments: dict[str, Any] = {name: (hints[name], ...) for name in names}
    return create_model(loss.__name__, __base__=Section, weight=(Any, None), **arguments)

"""Section `loss`: the training losses that are used, by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer

from hlorank.config.section import Section


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


def _of_number(value: object) -> object:
    return {"weight": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


Loss = Annotated[LossTerm, BeforeValidator(_of_number)]

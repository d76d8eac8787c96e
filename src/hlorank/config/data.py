"""Section `data`: the origin of the raw graphs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict

from hlorank.config.section import Section, registered

Split = Literal["train", "valid", "test"]


class DataConfig(Section):
    """An origin, and below its name the settings that the origin's own module declares."""

    model_config = ConfigDict(extra="allow")

    origin: Annotated[str, registered("origins")]
    """Where fetch gets a collection: tpugraphs, local, hlo or synthetic; the choice of the group sets it."""

    @property
    def settings(self) -> Any:
        """The settings of the chosen origin, as composed."""
        return (self.model_extra or {}).get(self.origin, {})

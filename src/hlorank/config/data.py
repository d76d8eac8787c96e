"""Section `data`: the origin of the raw graphs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict

from hlorank.config.extension_point import registered
from hlorank.config.section import Section, refused

Split = Literal["train", "valid", "test"]

ADDRESS = re.compile(
    r"layout[:/.](?P<layout>[\w-]+)[:/.](?P<search>default|random|models)|tile[:/.](?P<tile>[\w-]+)", re.ASCII
)
"""Address of a collection; paths have `/` where addresses have `:`, and names of models `.`."""


def _check_address(address: str) -> str:
    if not ADDRESS.fullmatch(address):
        raise refused("layout/<source>/<default, random or models>, or tile/<source>")
    return address


Address = Annotated[str, AfterValidator(_check_address)]


class DataConfig(Section):
    """An origin, and below its name the settings that the origin's own module declares."""

    model_config = ConfigDict(extra="allow")

    origin: Annotated[str, registered("origins")]
    """Origin of the graphs, by its name in ORIGINS; the choice of the group sets it."""

    @property
    def settings(self) -> Any:
        """The settings of the chosen origin, as composed."""
        return (self.model_extra or {}).get(self.origin, {})

"""The methods: how the segments of a graph are trained. A method is data; the training step is written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hlorank.config import ConfigError


@dataclass(frozen=True)
class Method:
    """What a method asks of the training step (Cao et al., arXiv 2305.12322, section 3).

    Attributes:
        whole_graph: the graph is one segment and keeps all its edges; otherwise some segments are trained, and the
            others are computed without gradient.
    """

    whole_graph: bool = False


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "full": Method(whole_graph=True),
        "gst": Method(),
    }
)


def method_named(name: str) -> Method:
    """The specification of a method.

    Raises:
        ConfigError: there is no such method.
    """
    if name not in METHODS:
        raise ConfigError(f"method: expected one of {', '.join(METHODS)}, found {name!r}")
    return METHODS[name]

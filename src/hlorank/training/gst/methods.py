"""The methods: how the segments of a graph are trained. A method is data; the training step is written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hlorank.config import ConfigError
from hlorank.models.baselines.baseline import BASELINES


@dataclass(frozen=True)
class Method:
    """What a method asks of the training step (Cao et al., arXiv 2305.12322, section 3).

    Attributes:
        whole_graph: the graph is one segment and keeps all its edges; otherwise some segments are trained.
        others: where the embeddings of the segments without gradient come from: `fresh` = a forward pass, `table` =
            the embedding table (E), `none` = they are left out.
        drop_stale: embeddings of the table are dropped at random (D).
        finetune_head: at the end the head is trained on recomputed embeddings (F).
    """

    whole_graph: bool = False
    others: Literal["none", "fresh", "table"] = "fresh"
    drop_stale: bool = False
    finetune_head: bool = False


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "full": Method(whole_graph=True),
        "gst_one": Method(others="none"),
        "gst": Method(others="fresh"),
        "gst_e": Method(others="table"),
        "gst_ef": Method(others="table", finetune_head=True),
        "gst_ed": Method(others="table", drop_stale=True),
        "gst_efd": Method(others="table", drop_stale=True, finetune_head=True),
    }
)


def method_named(name: str) -> Method:
    """The specification of a method.

    Raises:
        ConfigError: there is no such method, or it is a baseline, which trains no segments.
    """
    if name not in METHODS:
        raise ConfigError(f"method: expected one of {', '.join([*METHODS, *BASELINES])}, found {name!r}")
    return METHODS[name]

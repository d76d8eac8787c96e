"""METHODS, the extension point: training of the segments of a graph. A method is data; all share one training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hlorank.config import ExtensionPoint


@dataclass(frozen=True)
class Method:
    """Choices that the training step reads (Cao et al., arXiv 2305.12322, section 3).

    Attributes:
        whole_graph: the graph is one segment and keeps all its edges; otherwise it is cut, and some segments of it are
            trained in a step.
        others: source of the embeddings of the segments without gradient: `fresh` = a forward pass, `table` = the
            embedding table (E), `none` = they are left out.
        drop_stale: embeddings of the table are dropped at random (stale-embedding dropout, D).
        finetune_head: in the end the head is trained on recomputed embeddings (head finetuning, F).
    """

    whole_graph: bool = False
    others: Literal["none", "fresh", "table"] = "fresh"
    drop_stale: bool = False
    finetune_head: bool = False

    def segment_settings(self, whole_graph: bool) -> set[str]:
        """Return the keys of the section `segments` that a training reads.

        Args:
            whole_graph: the graphs are not cut.
        """
        read = {"configs_per_graph", "redraw_epochs"}
        if whole_graph:
            return read
        read |= {"sampled", "aggregation"}
        read |= {"missing", "table_bytes", "table_dtype"} if self.others == "table" else set()
        read |= {"keep_probability"} if self.drop_stale else set()
        return read | ({"finetune_epochs"} if self.finetune_head else set())


METHODS: ExtensionPoint[Method] = ExtensionPoint(
    {
        "full": Method(whole_graph=True),
        "gst_one": Method(others="none"),
        "gst": Method(others="fresh"),
        "gst_e": Method(others="table"),
        "gst_ef": Method(others="table", finetune_head=True),
        "gst_ed": Method(others="table", drop_stale=True),
        "gst_efd": Method(others="table", drop_stale=True, finetune_head=True),
    },
    "a hlorank.training.gst.methods.Method",
    lambda _, found: found if isinstance(found, Method) else None,
)
"""Training methods by name."""

"""METHODS, the extension point: which segments of a graph a step trains, and the weights that keep their sum unbiased.

A method is data; all share one training step.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ExtensionPoint
from hlorank.models.baselines.baseline import BASELINES


@dataclass(frozen=True)
class Method:
    """Choices that the training step reads (Cao et al., arXiv 2305.12322, section 3).

    Attributes:
        whole_graph: the graph is one segment and keeps all its edges; otherwise it is cut, and a step trains
            `segments.sampled` of its segments.
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
        """Return the keys of the section `segments` that a training on whole or on cut graphs reads."""
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
    "a hlorank.training.methods.Method",
    lambda _, found: found if isinstance(found, Method) else None,
    others=[*BASELINES],
)
"""Training methods by name."""


def segment_weights(
    sampled: NDArray[np.bool_], present: NDArray[np.bool_], keep_probability: float, draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the weight of every segment's embedding in the sum over a graph's segments.

    An embedding that is available without gradient is kept with probability p and weight 1, and dropped otherwise
    (stale-embedding dropout); if it is not available, p is 0. A sampled segment has the weight
    p + (1 - p) J / S. Over uniform sampling without replacement and independent draws, the expected weight of every
    segment is 1 (Cao et al., arXiv 2305.12322, equation 6, extended to missing entries).

    `sampled`, (J,), has S segments; `present`, (J, configurations), says what is available, before sampling; `draws`,
    (J,), are uniform in [0, 1): all configurations of a step lose the same segments, and so remain comparable.
    """
    keep = keep_probability * present
    fresh = keep + (1 - keep) * len(sampled) / sampled.sum()
    stale = draws[:, None] < keep
    weights: NDArray[np.float64] = np.where(sampled[:, None], fresh, stale)
    return weights

"""Catalog of the models of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["forward", "train"]
FORWARD: tuple[Mode, ...] = ("forward",)
TRAIN: tuple[Mode, ...] = ("train",)

MODULES = {
    "mlp": "dense", "mixer": "dense", "resnet": "convolutional", "efficientnet": "convolutional",
    "densenet": "convolutional", "unet": "convolutional", "autoencoder": "convolutional", "textcnn": "convolutional",
    "vit": "transformers", "encoder": "transformers", "causal": "transformers", "gpt": "transformers",
    "lstm": "recurrent", "gru": "recurrent", "dlrm": "sparse", "gnn": "sparse",
}  # fmt: skip
"""Family -> module with the function of that name, which builds a model from a row's configuration."""


@dataclass(frozen=True)
class Row:
    """A model and its programs: the forward function, a training step, or both."""

    name: str
    """Family and variant; a program's name also ends in the mode."""
    modes: tuple[Mode, ...]
    config: Mapping[str, Any]

    @property
    def family(self) -> str:
        """Family of the model, a key of MODULES."""
        return self.name.split(".")[0]


def _row(name: str, modes: tuple[Mode, ...] = FORWARD + TRAIN, /, **config: Any) -> Row:
    return Row(name, modes, config)


_B0 = tuple(
    (expansion, width, window, stride if not position else 1)
    for expansion, width, window, stride, repeats in (
        (1, 16, 3, 1, 1),
        (6, 24, 3, 2, 2),
        (6, 40, 5, 2, 2),
        (6, 80, 3, 2, 3),
        (6, 112, 5, 1, 3),
        (6, 192, 5, 2, 4),
        (6, 320, 3, 1, 1),
    )
    for position in range(repeats)
)
"""Blocks of EfficientNet-B0, Tan and Le, 2019, table 1."""

_RESNET50: dict[str, Any] = {"widths": (256, 512, 1024, 2048), "blocks": (3, 4, 6, 3), "bottleneck": True, "stem": 64}
_DENSENET121: dict[str, Any] = {"growth": 32, "blocks": (6, 12, 24, 16), "bottleneck": True}
_UNET: dict[str, Any] = {"widths": (16, 32, 64, 128, 256), "convolutions": 3, "normalized": True}

CATALOG = (
    _row("mlp.b64", batch=64, side=28, widths=(512, 512, 256, 100)),
    _row("mlp.grouped.b256", batch=256, side=32, widths=(512, 512, 256), groups=8),
    _row("mlp.feature-major.b96", batch=96, side=24, widths=(640, 384, 128), feature_major=True),
    _row("mixer.swap.b8", batch=8, side=64, patch=8, width=128, layers=1, swap=True),
    _row("mixer.einsum.b6", batch=6, side=64, patch=8, width=160, layers=1, swap=False),
    _row("mixer.swap.b2", batch=2, side=96, patch=8, width=128, layers=1, swap=True),
    _row("mixer.twice.b4", FORWARD, batch=4, side=64, patch=8, width=128, layers=2, swap=True),
    _row("resnet.nhwc.b4", layout="NHWC", batch=4, side=32, widths=(16, 32)),
    _row("resnet.nchw.b4", layout="NCHW", batch=4, side=32, widths=(16, 32)),
    _row("resnet.bottleneck.nhwc.b4", layout="NHWC", batch=4, side=32, widths=(96,), bottleneck=True),
    _row("resnet.bottleneck.nchw.b8", layout="NCHW", batch=8, side=24, widths=(64,), bottleneck=True),
    _row("resnet.twice.nchw.b4", FORWARD, layout="NCHW", batch=4, side=32, widths=(96, 128), bottleneck=True),
    _row("efficientnet.nhwc.b2", layout="NHWC", batch=2, side=32, stem=24, blocks=((4, 24, 3, 1),)),
    _row("efficientnet.nchw.b2", layout="NCHW", batch=2, side=32, stem=24, blocks=((4, 24, 3, 1),)),
    _row(
        "efficientnet.twice.nchw.b2",
        FORWARD,
        layout="NCHW",
        batch=2,
        side=48,
        stem=16,
        blocks=((4, 16, 3, 1), (4, 24, 3, 2)),
    ),
    _row("efficientnet.wide.nchw.b2", FORWARD, layout="NCHW", batch=2, side=32, stem=32, blocks=((3, 48, 3, 2),)),
    _row("densenet.nhwc.b4", layout="NHWC", batch=4, side=24, growth=24, blocks=(2, 1)),
    _row("densenet.nchw.b4", layout="NCHW", batch=4, side=24, growth=24, blocks=(2, 1)),
    _row("densenet.twice.nchw.b2", FORWARD, layout="NCHW", batch=2, side=32, growth=24, blocks=(2, 2)),
    _row("unet.nhwc.b2", layout="NHWC", batch=2, side=48, widths=(8, 16, 32), learned=False),
    _row("unet.nchw.b2", layout="NCHW", batch=2, side=48, widths=(8, 16, 32), learned=False),
    _row("unet.learned.nchw.b2", layout="NCHW", batch=2, side=32, widths=(16, 32), learned=True),
    _row("autoencoder.nhwc.b8", layout="NHWC", batch=8, side=32, widths=(16, 32), code=64),
    _row("autoencoder.nchw.b8", layout="NCHW", batch=8, side=32, widths=(16, 32), code=64),
    _row("textcnn.nwc.b16", layout="NWC", batch=16, time=64, width=64, filters=64, windows=(3, 4, 5)),
    _row("textcnn.ncw.b16", layout="NCW", batch=16, time=64, width=64, filters=64, windows=(3, 4, 5)),
    _row("vit.b2", batch=2, side=96, patch=8, width=128, heads=4, layers=1, transposed=True),
    _row("vit.einsum.b4", batch=4, side=64, patch=8, width=160, heads=4, layers=1, transposed=False),
    _row("vit.nchw.b2", layout="NCHW", batch=2, side=112, patch=8, width=64, heads=2, layers=1, transposed=True),
    _row("vit.twice.b2", FORWARD, batch=2, side=64, patch=8, width=128, heads=4, layers=2, transposed=True),
    _row("encoder.bt.b2", axes="bt", batch=2, time=128, width=128, heads=4, layers=1, transposed=True),
    _row("encoder.bt.einsum.b8", axes="bt", batch=8, time=48, width=128, heads=4, layers=1, transposed=False),
    _row("encoder.tb.b4", axes="tb", batch=4, time=96, width=128, heads=8, layers=1, transposed=True),
    _row("encoder.twice.tb.b4", FORWARD, axes="tb", batch=4, time=64, width=128, heads=4, layers=2, transposed=False),
    _row("causal.bt.b2", axes="bt", batch=2, time=192, width=96, heads=4, layers=1, transposed=True),
    _row("causal.bt.einsum.b4", axes="bt", batch=4, time=96, width=96, heads=4, layers=1, transposed=False),
    _row("causal.tb.b8", axes="tb", batch=8, time=64, width=96, heads=6, layers=1, transposed=False),
    _row("causal.twice.bt.b2", FORWARD, axes="bt", batch=2, time=128, width=96, heads=4, layers=2, transposed=True),
    _row("lstm.bt.b64", axes="bt", batch=64, time=5, width=192),
    _row("lstm.twice.tb.b32", axes="tb", batch=32, time=4, width=192, layers=2),
    _row("lstm.stepwise.bt.b64", axes="bt", batch=64, time=6, width=128, hoisted=False),
    _row("lstm.scan.tb.b32", axes="tb", batch=32, time=16, width=128, scan=True),
    _row("gru.bt.b64", axes="bt", batch=64, time=5, width=192),
    _row("gru.twice.tb.b48", axes="tb", batch=48, time=4, width=160, layers=2),
    _row("gru.stepwise.tb.b32", axes="tb", batch=32, time=6, width=224, hoisted=False),
    _row("dlrm.bf.b512", axes="bf", batch=512, tables=7, width=32, hidden=192),
    _row("dlrm.fb.b192", axes="fb", batch=192, tables=11, width=64, hidden=256),
    _row("gnn.dense.g4", nodes=160, width=96, layers=2, graphs=4),
    _row("gnn.dense.g2", nodes=320, width=64, layers=2, graphs=2),
    _row("gnn.edges.n1024", nodes=1024, width=96, layers=2, edges=6144),
    _row("causal.deep", FORWARD, axes="bt", batch=2, time=48, width=64, heads=4, layers=9, transposed=True),
    _row("causal.deep", TRAIN, axes="tb", batch=2, time=32, width=96, heads=4, layers=4, transposed=False),
    _row("encoder.deep", FORWARD, axes="bt", batch=2, time=32, width=96, heads=4, layers=10, transposed=True),
    _row("encoder.deep", TRAIN, axes="tb", batch=2, time=32, width=96, heads=4, layers=4, transposed=True),
    _row("vit.deep", FORWARD, batch=2, side=48, patch=8, width=96, heads=4, layers=10, transposed=False),
    _row("vit.deep", TRAIN, batch=2, side=48, patch=8, width=96, heads=4, layers=4, transposed=True),
    _row("lstm.deep", FORWARD, axes="bt", batch=32, time=14, width=96, layers=3),
    _row("gru.deep", TRAIN, axes="tb", batch=32, time=9, width=128, layers=2),
    _row("resnet.50.nhwc", layout="NHWC", batch=1, side=64, **_RESNET50),
    _row("resnet.50.nchw", FORWARD, layout="NCHW", batch=1, side=64, **_RESNET50),
    _row("resnet.34.nchw", layout="NCHW", batch=1, side=64, widths=(64, 128, 256, 512), blocks=(3, 4, 6, 3), stem=64),
    _row("efficientnet.b0.nhwc", layout="NHWC", batch=1, side=64, stem=32, blocks=_B0),
    _row("efficientnet.b0.nchw", FORWARD, layout="NCHW", batch=1, side=64, stem=32, blocks=_B0),
    _row("densenet.121.nhwc", layout="NHWC", batch=1, side=32, **_DENSENET121),
    _row("densenet.121.nchw", FORWARD, layout="NCHW", batch=1, side=32, **_DENSENET121),
    _row("unet.full.nhwc", layout="NHWC", batch=1, side=64, learned=True, **_UNET),
    _row("unet.full.nchw", layout="NCHW", batch=1, side=64, learned=False, **_UNET),
    _row("vit.full", batch=1, side=64, patch=8, width=192, heads=3, layers=12, transposed=True),
    _row("mixer.full.swap", batch=1, side=64, patch=8, width=192, layers=12, swap=True),
    _row("mixer.full.einsum", FORWARD, batch=1, side=64, patch=8, width=192, layers=12, swap=False),
    _row("gpt.full", batch=1, time=64, width=192, heads=6, layers=12, transposed=True),
    _row("gpt.full.einsum", FORWARD, batch=2, time=48, width=192, heads=6, layers=12, transposed=False),
    _row("encoder.full", axes="bt", batch=1, time=64, width=192, heads=6, layers=12, transposed=True),
    _row("causal.full", axes="bt", batch=1, time=64, width=192, heads=6, layers=12, transposed=True),
    _row("lstm.full", axes="bt", batch=16, time=24, width=128, layers=4),
    _row("gru.full", axes="tb", batch=16, time=24, width=128, layers=4),
    _row("dlrm.full", TRAIN, axes="bf", batch=128, tables=26, width=32, hidden=256, layers=4),
    _row("gnn.full.dense", nodes=96, width=64, layers=16, graphs=2),
    _row("gnn.full.edges", nodes=512, width=64, layers=16, edges=2048),
)

"""Catalog of the zoo: models with their sizes; each is measured forward and as a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _row(name: str, **sizes: Any) -> tuple[str, Mapping[str, Any]]:
    return name, sizes


_ROWS = (
    _row("mlp.b64", batch=64, side=28, widths=(512, 512, 256, 100)),
    _row("mixer.swap.b8", batch=8, side=64, patch=8, width=128, layers=1, swap=True),
    _row("mixer.einsum.b6", batch=6, side=64, patch=8, width=160, layers=1, swap=False),
    _row("mixer.full.swap", batch=1, side=64, patch=8, width=192, layers=12, swap=True),
    _row("unet.nhwc.b2", layout="NHWC", batch=2, side=48, widths=(8, 16, 32), learned=False),
    _row("unet.nchw.b2", layout="NCHW", batch=2, side=48, widths=(8, 16, 32), learned=False),
    _row("unet.learned.nchw.b2", layout="NCHW", batch=2, side=32, widths=(16, 32), learned=True),
    _row("autoencoder.nhwc.b8", layout="NHWC", batch=8, side=32, widths=(16, 32), code=64),
    _row("autoencoder.nchw.b8", layout="NCHW", batch=8, side=32, widths=(16, 32), code=64),
    _row("textcnn.nwc.b16", layout="NWC", batch=16, time=64, width=64, filters=64, windows=(3, 4, 5)),
    _row("textcnn.ncw.b16", layout="NCW", batch=16, time=64, width=64, filters=64, windows=(3, 4, 5)),
    _row("vit.b2", batch=2, side=96, patch=8, width=128, heads=4, layers=1, transposed=True),
    _row("vit.einsum.b4", batch=4, side=64, patch=8, width=160, heads=4, layers=1, transposed=False),
    _row("vit.full", batch=1, side=64, patch=8, width=192, heads=3, layers=12, transposed=True),
    _row("encoder.bt.b2", axes="bt", batch=2, time=128, width=128, heads=4, layers=1, transposed=True),
    _row("encoder.tb.b4", axes="tb", batch=4, time=96, width=128, heads=8, layers=1, transposed=True),
    _row("encoder.full", axes="bt", batch=1, time=64, width=192, heads=6, layers=12, transposed=True),
    _row("causal.bt.b2", axes="bt", batch=2, time=192, width=96, heads=4, layers=1, transposed=True),
    _row("causal.tb.b8", axes="tb", batch=8, time=64, width=96, heads=6, layers=1, transposed=False),
    _row("causal.full", axes="bt", batch=1, time=64, width=192, heads=6, layers=12, transposed=True),
    _row("lstm.bt.b64", axes="bt", batch=64, time=5, width=192),
    _row("lstm.twice.tb.b32", axes="tb", batch=32, time=4, width=192, layers=2),
    _row("lstm.scan.tb.b32", axes="tb", batch=32, time=16, width=128, scan=True),
    _row("gru.bt.b64", axes="bt", batch=64, time=5, width=192),
    _row("gru.full", axes="tb", batch=16, time=24, width=128, layers=4),
    _row("dlrm.bf.b512", axes="bf", batch=512, tables=7, width=32, hidden=192),
    _row("dlrm.fb.b192", axes="fb", batch=192, tables=11, width=64, hidden=256),
    _row("gnn.dense.g4", nodes=160, width=96, layers=2, graphs=4),
    _row("gnn.edges.n1024", nodes=1024, width=96, layers=2, edges=6144),
    _row("gnn.full.edges", nodes=512, width=64, layers=16, edges=2048),
)
CATALOG: Mapping[str, Mapping[str, Any]] = dict(_ROWS)
"""Name of a model, its family first -> sizes. Other models of data/sample and data/models were in an earlier zoo."""

APPLICATIONS: Mapping[str, Mapping[str, int]] = {
    "resnet": {"ResNet50": 64, "ResNet101": 64, "ResNet50V2": 64},
    "efficientnet": {"EfficientNetB0": 64, "EfficientNetB3": 64, "EfficientNetV2B0": 64},
    "densenet": {"DenseNet121": 64, "DenseNet169": 64},
    "mobilenet": {"MobileNet": 64, "MobileNetV2": 64, "MobileNetV3Small": 64},
    "convnext": {"ConvNeXtTiny": 64},
    "inception": {"InceptionV3": 75, "InceptionResNetV2": 75},
    "nasnet": {"NASNetMobile": 64},
    "vgg": {"VGG16": 64},
    "xception": {"Xception": 71},
}
"""Family -> class of keras.applications -> height and width of its images, small for a measurement in time."""

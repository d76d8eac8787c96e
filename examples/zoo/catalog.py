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

_BF16 = {"dtype": "bfloat16"}
_TPU_ROWS = (
    _row("resnet.nhwc.b32", layout="NHWC", batch=32, side=32, width=256, blocks=1),
    _row("resnet.nchw.b8", layout="NCHW", batch=8, side=64, width=128, blocks=1),
    _row("resnet.norm.b16", layout="NHWC", batch=16, side=32, width=192, blocks=1, norm=True),
    _row("resnet.3d.b4", layout="NDHWC", batch=4, side=8, width=64, blocks=1),
    _row("resnet.1d.b64", layout="NWC", batch=64, side=512, width=256, blocks=1, **_BF16),
    _row("vgg.nhwc.b64", layout="NHWC", batch=64, side=32, widths=(64, 128, 256)),
    _row("vgg.nchw.b16", layout="NCHW", batch=16, side=32, widths=(32, 96, 160), **_BF16),
    _row("c3d.ndhwc.b8", layout="NDHWC", batch=8, side=8, widths=(32, 64, 128)),
    _row("c3d.ncdhw.b2", layout="NCDHW", batch=2, side=12, widths=(24, 48)),
    _row("alexnet.nhwc.b32", layout="NHWC", batch=32, side=64, widths=(64, 192, 256)),
    _row("alexnet.nchw.b128", layout="NCHW", batch=128, side=48, widths=(96, 256)),
    _row("mobilenet.nhwc.b32", layout="NHWC", batch=32, side=32, widths=(32, 64, 128)),
    _row("mobilenet.nchw.b8", layout="NCHW", batch=8, side=64, widths=(24, 72, 144), **_BF16),
    _row("densenet.nhwc.b32", layout="NHWC", batch=32, side=32, growth=32, layers=3),
    _row("densenet.nchw.b8", layout="NCHW", batch=8, side=48, growth=24, layers=3),
    _row("inception.nhwc.b32", layout="NHWC", batch=32, side=32, width=192, blocks=1),
    _row("inception.nchw.b4", layout="NCHW", batch=4, side=32, width=96, blocks=1),
    _row("squeeze.nhwc.b32", layout="NHWC", batch=32, side=32, width=128, blocks=2),
    _row("squeeze.3d.b8", layout="NDHWC", batch=8, side=8, width=64, blocks=1),
    _row("unet2d.nhwc.b16", layout="NHWC", batch=16, side=32, widths=(64, 128)),
    _row("unet2d.nchw.b4", layout="NCHW", batch=4, side=32, widths=(32, 64)),
    _row("unet3d.ndhwc.b2", layout="NDHWC", batch=2, side=8, widths=(32, 64)),
    _row("unet3d.ncdhw.b1", layout="NCDHW", batch=1, side=8, widths=(16, 32)),
    _row("unet3d.bf16.b4", layout="NDHWC", batch=4, side=8, widths=(32, 96), channels=4, **_BF16),
    _row("unet1d.nwc.b32", layout="NWC", batch=32, side=256, widths=(64, 128, 256)),
    _row("deeplab.nhwc.b16", layout="NHWC", batch=16, side=64, width=128, rates=(2, 4)),
    _row("deeplab.nchw.b4", layout="NCHW", batch=4, side=48, width=48, rates=(3,)),
    _row("pyramid.nhwc.b16", layout="NHWC", batch=16, side=64, width=64, levels=3),
    _row("pyramid.3d.b4", layout="NDHWC", batch=4, side=16, width=32, levels=2),
    _row("gan.nhwc.b64", layout="NHWC", batch=64, side=8, widths=(256, 128)),
    _row("gan.nchw.b16", layout="NCHW", batch=16, side=8, widths=(192, 96)),
    _row("gan.3d.b8", layout="NDHWC", batch=8, side=4, widths=(128, 64)),
    _row("wavenet.nwc.b16", layout="NWC", batch=16, time=512, width=64, layers=3),
    _row("wavenet.ncw.b64", layout="NCW", batch=64, time=256, width=128, layers=2, **_BF16),
    _row("speech.nwc.b32", layout="NWC", batch=32, time=256, width=256, layers=2),
    _row("speech.ncw.b8", layout="NCW", batch=8, time=512, width=160, layers=2),
    _row("convnext.nhwc.b32", layout="NHWC", batch=32, side=32, width=96, blocks=1),
    _row("convnext.nchw.b8", layout="NCHW", batch=8, side=64, width=64, blocks=1),
    _row("superres.nhwc.b8", layout="NHWC", batch=8, side=48, width=64, blocks=1),
    _row("superres.nhwc.b32", layout="NHWC", batch=32, side=24, width=96, blocks=1, **_BF16),
    _row("seq2seq.b8", batch=8, time=64, width=256, heads=4, layers=1),
    _row("seq2seq.b32", batch=32, time=48, width=128, heads=8, layers=1),
    _row("perceiver.b8", batch=8, inputs=512, latents=64, width=128, heads=4, layers=1),
    _row("perceiver.b2", batch=2, inputs=1024, latents=128, width=256, heads=8, layers=1),
    _row("swin.b8", batch=8, side=32, window=8, width=96, heads=3, layers=2),
    _row("swin.b16", batch=16, side=16, window=4, width=192, heads=6, layers=2),
    _row("experts.b8", batch=8, time=64, width=128, count=8, capacity=16),
    _row("experts.b16", batch=16, time=128, width=192, count=4, capacity=32),
    _row("tensors.b64", batch=64, sizes=(8, 16, 24), ranks=(12, 16), layers=2),
    _row("tensors.b256", batch=256, sizes=(16, 8, 32), ranks=(8, 24), layers=1),
    _row("nerf.b4096", batch=4096, width=256, layers=4),
    _row("nerf.b1024", batch=1024, width=160, layers=6),
    _row("states.b8", batch=8, time=128, width=128, size=32, layers=2),
    _row("states.b32", batch=32, time=64, width=256, size=64, layers=1),
    _row("triangles.s64", side=64, width=64, layers=2),
    _row("triangles.s128", side=128, width=32, layers=1),
    _row("mlp.b512", batch=512, side=28, widths=(1024, 512, 100)),
    _row("mixer.b32", batch=32, side=64, patch=8, width=256, layers=1, swap=True),
    _row("autoencoder.nhwc.b64", layout="NHWC", batch=64, side=32, widths=(64, 128), code=128),
    _row("textcnn.nwc.b64", layout="NWC", batch=64, time=128, width=128, filters=128, windows=(3, 5)),
    _row("vit.b32", batch=32, side=64, patch=8, width=192, heads=3, layers=1, transposed=True),
    _row("encoder.tb.b16", axes="tb", batch=16, time=128, width=256, heads=4, layers=1, transposed=True),
    _row("causal.bt.b8", axes="bt", batch=8, time=128, width=192, heads=6, layers=1, transposed=False),
    _row("lstm.scan.b64", axes="tb", batch=64, time=32, width=256, scan=True),
    _row("gru.bt.b128", axes="bt", batch=128, time=6, width=256),
    _row("dlrm.bf.b1024", axes="bf", batch=1024, tables=7, width=64, hidden=256),
    _row("gnn.dense.g8", nodes=256, width=128, layers=2, graphs=8),
)
TPU_CATALOG: Mapping[str, Mapping[str, Any]] = dict(_TPU_ROWS)
"""Programs of `layout:tpu-...`: channels and batches of real networks, and shapes that compile in about a second."""
FUNCTIONS: Mapping[str, str] = {"c3d": "vgg", **dict.fromkeys(("unet1d", "unet2d", "unet3d"), "unet_nd")}
"""Family -> the function that builds it, where that has another name."""

APPLICATIONS: Mapping[str, str] = {
    "resnet": "ResNet50 ResNet101 ResNet152 ResNet50V2 ResNet101V2 ResNet152V2",
    "efficientnet": "EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5 "
    "EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2 EfficientNetV2B3 EfficientNetV2S",
    "densenet": "DenseNet121 DenseNet169 DenseNet201",
    "mobilenet": "MobileNet MobileNetV2 MobileNetV3Small MobileNetV3Large",
    "convnext": "ConvNeXtTiny ConvNeXtSmall ConvNeXtBase",
    "inception": "InceptionV3 InceptionResNetV2",
    "nasnet": "NASNetMobile",
    "vgg": "VGG16 VGG19",
    "xception": "Xception",
}
"""Family -> classes of keras.applications."""
LEAST_SIDES: Mapping[str, int] = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
"""Class of keras.applications -> least height and width of its images, where these are not 64."""
FURTHER_SIDES: Mapping[str, int] = {
    **dict.fromkeys(("ResNet50", "ResNet50V2", "EfficientNetB0", "DenseNet121", "VGG16", "Xception"), 160),
    **dict.fromkeys(("MobileNet", "MobileNetV2"), 224),
}
"""Class of keras.applications -> height and width of the images of another program, in whose name they are."""

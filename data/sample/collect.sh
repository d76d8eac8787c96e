#!/bin/sh
# For the code of the git tag c-loop-nests, whose zoo has these names.
# Measures the bundled sample: hours on a machine on which nothing else runs. Interrupt it as you like: the same call
# goes on, and measures nothing twice. From the project's folder: sh data/sample/collect.sh
set -u
out=data/sample

forward="
mlp.b64 resnet.nchw.b4 vit.b2 lstm.bt.b64 unet.nchw.b2 causal.bt.b2 mixer.swap.b8 densenet.nchw.b4 gru.bt.b64
encoder.bt.b2 efficientnet.nchw.b2 dlrm.bf.b512 autoencoder.nchw.b8 gnn.dense.g4 textcnn.ncw.b16
mlp.grouped.b256 resnet.nhwc.b4 vit.einsum.b4 lstm.twice.tb.b32 unet.nhwc.b2 causal.bt.einsum.b4 mixer.einsum.b6
densenet.nhwc.b4 gru.twice.tb.b48 encoder.bt.einsum.b8 efficientnet.nhwc.b2 dlrm.fb.b192 autoencoder.nhwc.b8
gnn.edges.n1024 textcnn.nwc.b16
mlp.feature-major.b96 resnet.bottleneck.nchw.b8 vit.nchw.b2 lstm.stepwise.bt.b64 unet.learned.nchw.b2 causal.tb.b8
mixer.swap.b2 densenet.twice.nchw.b2 gru.stepwise.tb.b32 encoder.tb.b4 efficientnet.wide.nchw.b2 gnn.dense.g2
"
train="mlp.b64 dlrm.bf.b512 textcnn.ncw.b16 gnn.dense.g4 autoencoder.nchw.b8 lstm.bt.b64 vit.b2 mixer.swap.b2"
large="causal.deep.forward encoder.deep.forward vit.deep.forward lstm.deep.forward gru.deep.train encoder.deep.train"
default="
mlp.b64 resnet.nchw.b4 vit.b2 lstm.bt.b64 unet.nchw.b2 causal.bt.b2 mixer.swap.b8 densenet.nchw.b4 gru.bt.b64
encoder.bt.b2 efficientnet.nchw.b2 dlrm.bf.b512 autoencoder.nchw.b8 gnn.dense.g4 textcnn.ncw.b16 mlp.grouped.b256
resnet.nhwc.b4 vit.einsum.b4 mixer.einsum.b6 encoder.tb.b4 causal.tb.b8 unet.learned.nchw.b2
"

# Each name of a list with an ending.
programs() { for name in $1; do printf '%s.%s ' "$name" "$2"; done; }

hlorank collect $(programs "$forward" forward) --collection layout:cpu:random --configurations 64 --out $out
hlorank collect $large --collection layout:cpu:random --configurations 24 --out $out
hlorank collect $(programs "$train" train) --collection layout:cpu:random --configurations 64 --out $out
hlorank collect $(programs "$default" forward) --collection layout:cpu:default --configurations 48 --out $out
# Tiles, of the git tag c-loop-nests only:
# hlorank collect $(programs "$forward" forward) $(programs "$train" train) --collection tile:cpu --configurations 48 \
#     --kernels 3 --out $out

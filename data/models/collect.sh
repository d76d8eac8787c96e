#!/bin/sh
# For the code of the git tag c-loop-nests, whose zoo has these names.
# Measures the collection of models: about 12 hours on a machine on which nothing else runs. Interrupt it as you like:
# the same call goes on, and measures nothing twice. From the project's folder: sh data/models/collect.sh
set -u
out=data/models

models="
efficientnet.b0.nhwc encoder.full gru.full mixer.full.swap vit.full densenet.121.nhwc gnn.full.dense unet.full.nhwc
gpt.full lstm.full resnet.50.nhwc causal.full mixer.full.einsum unet.full.nchw gnn.full.edges gpt.full.einsum
"
train="
dlrm.full gnn.full.dense unet.full.nhwc gru.full lstm.full gnn.full.edges unet.full.nchw vit.full mixer.full.swap
encoder.full gpt.full causal.full
"
large="efficientnet.b0.nchw resnet.34.nchw densenet.121.nchw resnet.50.nchw"
large_train="resnet.34.nchw efficientnet.b0.nhwc resnet.50.nhwc densenet.121.nhwc"
# Modules of published models, with batch 1. They are measured where their texts are.
modules="mlp_mixer.inference vit.inference dit.inference resnet50.inference imagenette.training"
large_modules="resnet50.training flan_t5_large.inference"

# Each name of a list with an ending, or as a file.
programs() { for name in $1; do printf '%s.%s ' "$name" "$2"; done; }
files() { for name in $1; do printf '%s ' "${HLORANK_SHARED:-../shared}/data/hlo/$name.hlo.txt.xz"; done; }

# Linux allows a process 65,530 memory mappings; 64 programs of a thousand kernels need more.
sysctl -q -w vm.max_map_count=1048576 || echo "as root, sysctl -w vm.max_map_count=1048576: else some configurations are left out" >&2

collect() { hlorank collect --collection layout:cpu:models --out $out "$@"; }
collect $(programs "$models" forward) --configurations 64 "$@"
collect $(files "$modules") --scale-batch 1 --configurations 64 --max-rounds 50 --time-limit 3600 "$@"
collect $(programs "$train" train) --configurations 64 --max-rounds 50 --time-limit 2400 "$@"
collect $(files "$large_modules") --scale-batch 1 --configurations 24 --max-rounds 20 --time-limit 3600 "$@"
collect $(programs "$large" forward) $(programs "$large_train" train) --configurations 24 --max-rounds 50 --time-limit 2400 "$@"

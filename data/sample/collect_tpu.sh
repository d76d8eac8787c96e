#!/bin/sh
# Estimates the bundled collections for TPUs by their compiler: hours of all cores, on a machine without a TPU. Interrupt
# it as you like: the same call goes on, and estimates nothing twice. From the project's folder: sh data/sample/collect_tpu.sh
set -u
for search in outputs random default; do
  hlorank collect $(python -m examples.zoo --tpu) --collection layout:tpu-v3:$search --configurations 48 --hang-seconds 60 --out data/sample
done
# On the newer generation's compiler, configurations of c3d.ncdhw.b2.forward hang.
hlorank collect $(python -m examples.zoo --tpu | grep forward | grep -v c3d_ncdhw) --collection layout:tpu-v5e:outputs \
  --configurations 48 --hang-seconds 60 --out data/sample

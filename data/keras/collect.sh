#!/bin/sh
# Measures Keras's networks at batch 1: four hours on a machine on which nothing else runs. Interrupt it as you like: the
# same call goes on, and measures nothing twice. From the project's folder: sh data/keras/collect.sh
set -u
hlorank collect $(python -m examples.zoo | grep 'keras.*forward') --collection layout:cpu:models --configurations 24 \
  --max-rounds 50 --time-limit 900 --out data/keras

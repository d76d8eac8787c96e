#!/usr/bin/env bash
# The pipeline of dvc.yaml, with independent stages at the same time: scripts/repro.sh [JOBS]
#
# DVC runs one stage after the other. It locks the project only between the commands of stages, and while a command
# runs, only the files that the stage reads or writes; so several `dvc repro` work together if none writes what another
# one reads. Each collection is prepared by a process of its own, and then each training, without the stages before, whose
# files DVC would lock. `dvc repro` alone gives the same, in about twice the time.
set -euo pipefail
dvc status --quiet dvc.yaml && echo "Data and pipelines are up to date." && exit
named='2>&1 | sed "s#^#{} | #"'  # which collection or training a line belongs to
each() { xargs -P "${JOBS}" -I {} bash -o pipefail -c "dvc --wait-for-lock repro $1 $named"; }
JOBS=${1:-3}
dvc repro --quiet code
stages=$(dvc stage list --name-only)
sed -n 's/^partition@//p' <<< "$stages" | each "--single-item fetch@{} featurize@{} partition@{}"
# One method after the other: the first ones, networks, take long, and baselines fill the gaps at the end.
sed -n 's/^train@//p' <<< "$stages" |
  awk -F- '!($NF in place) { place[$NF] = ++methods } { print place[$NF], $0 }' | sort -sn | cut -d' ' -f2- |
  each "--single-item train@{} evaluate@{}"
! grep -Evq '^(code$|(fetch|featurize|partition|train|evaluate)@)' <<< "$stages" || dvc repro --quiet # stages that were added

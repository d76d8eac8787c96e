"""Resolvers of conf/config.yaml wherever Hydra composes it, `dvc exp run` included: the entries of dvc.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from omegaconf import DictConfig, ListConfig, OmegaConf


def _collections(layout: Sequence[str], tile: Sequence[str]) -> ListConfig:
    return OmegaConf.create([*layout, *tile])


def _trainings(
    layout: Sequence[str],
    methods: Sequence[str],
    tile: Sequence[str],
    tile_methods: Sequence[str],
    omit: Sequence[str],
) -> DictConfig:
    pairs = [*product(layout, methods), *product(tile, tile_methods)]
    named = {f"{collection}-{method}": {"collection": collection, "method": method} for collection, method in pairs}
    return OmegaConf.create({name: training for name, training in named.items() if name not in omit})


# DVC's matrix is a full product of lists, but the two kinds of collections have different methods.
OmegaConf.register_new_resolver("collections", _collections, replace=True)
OmegaConf.register_new_resolver("trainings", _trainings, replace=True)

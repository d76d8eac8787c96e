"""Section `pipeline`, and the OmegaConf resolvers that compute the entries of dvc.yaml from it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from omegaconf import DictConfig, ListConfig, OmegaConf

from hlorank.config.data import Address
from hlorank.config.section import Section


class Training(Section):
    """One training of the pipeline."""

    collection: str
    """Collection, as a path."""
    method: str
    """Method or baseline."""


class PipelineConfig(Section):
    """Collections that `dvc repro` runs, as paths, and the methods of each kind of collection."""

    layout: list[Address]
    """Layout collections."""
    tile: list[Address]
    """Tile collections."""
    methods: list[str]
    """Methods and baselines of layout collections."""
    tile_methods: list[str]
    """Methods of tile collections: full, as a kernel is one segment under any method, and baselines other than
    default_configuration."""
    omit: list[str]
    """Trainings that are left out, as `<collection>-<method>`, such as those that equal another one."""
    collections: list[str]
    """All collections; computed from `layout` and `tile`."""
    trainings: dict[str, Training]
    """Trainings by their name in dvc.yaml; computed from the other lists: each collection with each method of its
    kind, without `omit`."""


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

"""Resolvers of conf/ wherever Hydra composes it, `dvc exp run` included: the entries of dvc.yaml, and its overrides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from omegaconf import DictConfig, ListConfig, OmegaConf

BASELINES = frozenset(
    {"gradient_boosting", "xgboost", "linear_ranking", "analytical", "random", "default_configuration"}
)
"""Methods that are no networks; the module that has their code takes seconds to import."""
_NOT_PIPELINE = {
    "collection": "set pipeline.layout and pipeline.tile, such as -S 'pipeline.tile=[]'",
    "method": "set pipeline.methods and pipeline.tile_methods, such as -S 'pipeline.methods=[full]'",
    "output": "dvc.yaml names the folders",
    "paths": "dvc.yaml names the folders",
    "sweep": "start a sweep with python -m hlorank.stages.train -m",
    "hparams_search": "start a search with python -m hlorank.stages.train -m",
}
"""Keys of the command line of a stage, and what to do for the whole pipeline."""


def _paths(collections: Sequence[str]) -> list[str]:
    """Return collections as paths, in whatever form they are written: DVC names stages and folders by them."""
    from hlorank.config.root import path_of_address

    try:
        return [path_of_address(collection) for collection in collections]
    except ValueError as error:
        raise ValueError(f"{collections}: {error}") from None


def _collections(layout: Sequence[str], tile: Sequence[str]) -> ListConfig:
    return OmegaConf.create(_paths([*layout, *tile]))


def _trainings(
    layout: Sequence[str],
    methods: Sequence[str],
    tile: Sequence[str],
    tile_methods: Sequence[str],
    omit: Sequence[str],
    blended: Sequence[str],
) -> DictConfig:
    network = ["model", "baseline" if blended else "model"]
    pairs = [*product(_paths(layout), methods), *product(_paths(tile), tile_methods)]
    named = {
        f"{collection}-{method}": {
            "collection": collection,
            "method": method,
            "reads": ["baseline", "baseline"] if method in BASELINES else network,
        }
        for collection, method in pairs
    }
    omitted = {f"{_paths([name.rpartition('-')[0]])[0]}-{name.rpartition('-')[2]}" for name in omit}
    return OmegaConf.create({name: training for name, training in named.items() if name not in omitted})


def _check_overrides(overrides: Sequence[str]) -> ListConfig:
    """Refuse overrides of `dvc exp run -S` that no stage would read, as DVC would store an experiment that claims them.

    The result, an empty list, is that of a key that Hydra reads while it still has the overrides.
    """
    from hlorank.config.root import Config

    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        section = key.partition(".")[0].partition("@")[0]
        if section in _NOT_PIPELINE:
            raise ValueError(f"{key}: no stage of dvc.yaml reads it; {_NOT_PIPELINE[section]}")
        if section not in {*Config.model_fields, "experiment"}:
            raise ValueError(f"{key}: no such key; expected one of {', '.join(Config.model_fields)}")
    return OmegaConf.create([])


# DVC's matrix is a full product of lists, but the two kinds of collections have different methods.
OmegaConf.register_new_resolver("collections", _collections, replace=True)
OmegaConf.register_new_resolver("trainings", _trainings, replace=True)
OmegaConf.register_new_resolver("checked_overrides", _check_overrides, replace=True)

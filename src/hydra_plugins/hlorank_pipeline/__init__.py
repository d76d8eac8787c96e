"""Search path and resolvers of conf/ wherever Hydra composes it, `dvc exp run` included: of dvc.yaml, and checks."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from shlex import quote
from typing import Any

from hydra import compose
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf

Names = Sequence[str]
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


class BundledConf(SearchPathPlugin):
    """Search of the package's conf/ after that of the project, which may have less."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder, but not for another program that uses Hydra, whose environment has hlorank, too."""
        if {"hlorank", "dvc"} & {*sys.modules}:
            from hlorank.files import bundled

            search_path.append("hlorank", str(bundled("conf")))


def _paths(collections: Names) -> list[str]:
    """Return collections as paths, in whatever form they are written: DVC names stages and folders by them."""
    from hlorank.config.root import path_of_address

    try:
        return [path_of_address(collection) for collection in collections]
    except ValueError as error:
        raise ValueError(f"{collections}: {error}") from None


def _trainings(layout: Names, methods: Names, tile: Names, of_tile: Names, omit: Names, blended: Names) -> DictConfig:
    network = ["model", "baseline" if blended else "model"]
    pairs = [*product(_paths(layout), methods), *product(_paths(tile), of_tile)]
    named = {
        f"{collection}-{method}": {
            "collection": collection,
            "method": method,
            "reads": ["baseline", "baseline"] if method in BASELINES else network,
        }
        for collection, method in pairs
    }
    omitted = {f"{_paths([name.rpartition('-')[0]])[0]}-{name.rpartition('-')[2]}" for name in omit}
    if named and not named.keys() - omitted:
        raise ValueError(f"pipeline: no training is left, as pipeline.omit leaves out {', '.join(named)}")
    return OmegaConf.create({name: training for name, training in named.items() if name not in omitted})


def _check_overrides(overrides: Sequence[str], *, _root_: DictConfig) -> ListConfig:
    """Refuse overrides of `dvc exp run -S` that no stage would read; name edits of params.yaml that are replaced."""
    from hlorank.config.root import Config

    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    for key in keys:
        section = key.partition(".")[0].partition("@")[0]
        if section in _NOT_PIPELINE:
            raise ValueError(f"{key}: no stage of dvc.yaml reads it; {_NOT_PIPELINE[section]}")
        if section not in {*Config.model_fields, "experiment"}:
            raise ValueError(f"{key}: no such key; expected one of {', '.join(Config.model_fields)}")
    _warn_of_edits(keys, _root_)
    return OmegaConf.create([])


def _warn_of_edits(keys: Sequence[str], composed: DictConfig) -> None:
    """Name the values of params.yaml, other than those of conf/, that the composition is about to replace."""
    from hlorank.files import flatten, one_line

    def values(config: Any) -> dict[str, Any]:
        own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return flatten(OmegaConf.to_container(own, resolve=True))  # type: ignore[arg-type] # keys are texts

    with suppress(FileNotFoundError):
        edited, new, defaults = values(OmegaConf.load("params.yaml")), values(composed), values(compose("config"))
        named = tuple(f"{key}." for key in (*keys, "pipeline.collections", "pipeline.trainings"))  # these two follow
        lost = [key for key in edited if edited[key] not in (new.get(key), defaults.get(key))]
        if kept := [quote(f"{key}={json.dumps(edited[key])}") for key in lost if not f"{key}.".startswith(named)]:
            remedy = f"-S {' -S '.join(kept)} keeps these values, --no-hydra the file"
            sys.stderr.write(one_line(f"warning: params.yaml: replaced by conf/ and -S; {remedy}") + "\n")


# DVC's matrix is a full product of lists, but the two kinds of collections have different methods.
OmegaConf.register_new_resolver("collections", lambda layout, tile: ListConfig(_paths([*layout, *tile])), replace=True)
OmegaConf.register_new_resolver("trainings", _trainings, replace=True)
OmegaConf.register_new_resolver("checked_overrides", _check_overrides, replace=True)

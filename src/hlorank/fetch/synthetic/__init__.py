"""Origin `synthetic`: seeded graphs with an analytic runtime, for tests and scale simulations.

Every graph has a random generator of its own, from seed, collection, split and index: a repeated or resumed run, or one
with another number of graphs, writes the same bytes for each graph.
"""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from hlorank.config import ConfigError, Section
from hlorank.data.collection import SPLITS, Collection, Split, remove_stale, write_graph
from hlorank.data.configurations import MeasuredGraph
from hlorank.fetch.synthetic.graphs import MIN_NODES
from hlorank.fetch.synthetic.layouts import layout_graph
from hlorank.fetch.synthetic.runtime import layout_runtime
from hlorank.fetch.synthetic.tiles import MAX_NODES as MAX_KERNEL_NODES
from hlorank.fetch.synthetic.tiles import MIN_NODES as MIN_KERNEL_NODES
from hlorank.fetch.synthetic.tiles import tile_kernel, tile_runtime
from hlorank.files import DataError, code_digest, counted, fingerprint, read_json, write_json

__all__ = ["SyntheticConfig", "draw_graph", "fetch", "layout_graph", "layout_runtime", "tile_kernel", "tile_runtime"]

logger = logging.getLogger(__name__)

_SETTINGS_FILE = "synthetic.json"
_CODE = ("hlorank.fetch.synthetic", "hlorank.data")
# Real kernels have some hundreds of configurations where graphs have thousands.
_TILE_SHARE = 8


class SyntheticConfig(Section):
    """Settings of the origin `synthetic`."""

    seed: int
    """Seed of the generator."""
    train: NonNegativeInt
    """Graphs in the train split."""
    valid: NonNegativeInt
    """Graphs in the valid split."""
    test: NonNegativeInt
    """Graphs in the test split; their labels are known."""
    min_nodes: int = Field(ge=MIN_NODES)
    """Nodes of the smallest layout graph; kernels of tile collections have 2 to 60."""
    max_nodes: int
    """Nodes of the largest layout graph."""
    configurable_nodes: int | None = Field(ge=1)
    """Configurable nodes per layout graph; null places as many as real graphs of that size have."""
    configurations: int = Field(ge=1)
    """Configurations per graph, repeated ones included; kernels get an eighth."""
    repeated: float = Field(ge=0, le=1)
    """Share of the configurations that repeat another one."""
    noise: float = Field(ge=0)
    """Standard deviation of the multiplicative log-normal noise of a measurement."""

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        return self.require(
            self.min_nodes <= self.max_nodes, "max_nodes", f"a number of at least min_nodes={self.min_nodes}"
        )


def fetch(collection: Collection, config: SyntheticConfig, output: Path) -> None:
    """Write the collection's graphs as `<output>/<split>/synthetic_<split>_<index>.npz`.

    Complete files of an earlier run with the same settings and code are kept; all other files of the splits are
    removed. The settings are in synthetic.json next to the splits. Labels of the test split are not withheld.

    Args:
        collection: layout:synthetic:<search> or tile:synthetic.
        config: the settings. Layout graphs have between min_nodes and max_nodes nodes (log-uniform). Kernels have 2
            to 60 nodes and an eighth of the configurations, at least 2.
        output: the collection's folder.

    Raises:
        ConfigError: the collection has a source other than `synthetic`, which all generated data has.
    """
    if collection.source != "synthetic":
        expected = "layout/synthetic/<default or random> or tile/synthetic, as all generated data is named"
        raise ConfigError(f"collection={collection}: expected {expected}; or choose another origin with data=")
    settings = _settings(collection, config)
    settings_file = output / _SETTINGS_FILE
    try:
        known = read_json(settings_file) == settings
    except DataError:
        known = False
    paths = {(s, i): output / s / f"{_name(s, i)}.npz" for s in SPLITS for i in range(getattr(config, s))}
    remove_stale(output, set(paths.values()) if known else ())
    write_json(settings_file, settings)

    missing = [(key, path) for key, path in paths.items() if not path.exists()]
    logger.info("%s: %s, up to date %d", collection, counted(len(paths), "graph"), len(paths) - len(missing))

    from rich.progress import track  # a heavy import

    for (split, index), path in track(missing, description=str(collection), disable=not sys.stderr.isatty()):
        write_graph(path, draw_graph(collection, config, split, index))


def draw_graph(collection: Collection, config: SyntheticConfig, split: Split, index: int) -> MeasuredGraph:
    """Draw one graph of a synthetic collection; equal arguments give equal graphs."""
    rng = np.random.default_rng(int(fingerprint([config.seed, str(collection), split, index]), 16))
    name = _name(split, index)
    if collection.search is None:
        nodes = _log_uniform(rng, MIN_KERNEL_NODES, MAX_KERNEL_NODES)
        configurations = max(2, config.configurations // _TILE_SHARE)
        return tile_kernel(rng, nodes, configurations, config.repeated, config.noise, name)
    nodes = _log_uniform(rng, config.min_nodes, config.max_nodes)
    return layout_graph(
        rng,
        nodes,
        config.configurable_nodes,
        config.configurations,
        collection.search,
        config.repeated,
        config.noise,
        name,
    )


def _name(split: Split, index: int) -> str:
    return f"synthetic_{split}_{index:03d}"


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return min(high, math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _settings(collection: Collection, config: SyntheticConfig) -> dict[str, object]:
    """Return everything that the content of each graph depends on: the settings except the numbers, and the code."""
    plain = {key: value for key, value in config.model_dump(mode="json").items() if key not in SPLITS}
    return {"collection": str(collection), "code": code_digest(*_CODE), **plain}

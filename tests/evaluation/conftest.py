"""Graphs and runs for the tests of evaluation, made without files and trainings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import WRONG, Row, per_graph_columns
from hlorank.evaluation.report.trainings import TEXT, Run, Tracked
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.metrics import BEST_TAU
from tests.graphs import layout_features, make_features


def make_graph(
    row_of: Sequence[int], runtime: Sequence[int], normalizer: Sequence[int] | None = None, name: str = "g"
) -> GraphFeatures:
    """Return a graph of two nodes: a kernel with tiles given a normalizer, else with layouts."""
    distinct = max(row_of) + 1
    configurations: LayoutFeatures | TileFeatures
    if normalizer is None:
        codes = np.arange(distinct, dtype=np.uint8)[:, None]
        layouts, sizes = np.zeros((distinct, 18), dtype=np.int8), np.zeros((distinct, 18), dtype=np.float32)
        configurations = layout_features(np.array([1]), layouts, sizes, codes)
    else:
        configurations = TileFeatures(np.arange(distinct, dtype=np.float32)[:, None])
    return replace(
        make_features(nodes=2, distinct=1),
        name=name,
        configurations=configurations,
        row_of=np.array(row_of),
        runtime=np.array(runtime),
        normalizer=None if normalizer is None else np.array(normalizer),
    )


def graph_row(graph: str, tau: float | None, split: str = "valid", ceiling: float | None = 0.9, **changes: Any) -> Row:
    """Return a row of per_graph.csv of a layout collection, without metrics if `tau` is None."""
    row = dict.fromkeys(per_graph_columns("layout")) | {"split": split, "graph": graph, "family": "net"}
    row |= {"protocol": "all", "nodes": 27.0, "configurations": 64.0, "distinct": 60.0, "split_half_tau": 0.8}
    row |= {"noise_ceiling": ceiling, "noise_width": None if ceiling is None else 0.01, "note": ""}
    if tau is None:
        return {**row, "note": "labels withheld", **changes}
    row |= {"kendall_tau": tau, "kaggle": tau, "repeat_ceiling": 1.0, "opa": (tau + 1) / 2, "wrong": (1 - tau) / 2}
    row |= {"slowdown_1": 0.04, "slowdown_5": 0.02, "slowdown_10": 0.01, "slowdown_100": 0.0}
    return {**row, **dict.fromkeys(WRONG, None if ceiling is None else (1 - tau) / 8), **changes}


def table(rows: list[Row]) -> pd.DataFrame:
    """Return rows as a table that was read from a file."""
    found = pd.DataFrame(rows)
    return found.astype({name: "float64" for name in found if name not in TEXT})


def training(
    method: str = "gst", seed: int | None = 0, taus: Mapping[str, float | None] | None = None, **changes: Any
) -> Run:
    """Return a run with two epochs and the taus of graphs, tracked unless `seed` is None; tables are lists of rows."""
    taus = {"a": 0.5, "b": 0.7} if taus is None else taus
    settings = {"model.width": "64", "seed": str(seed), "output": f"models/{seed}", **changes.pop("settings", {})}
    costs = {"parameters": 62_685.0, "step_memory_bytes": 700 * 2**20, "seconds": 54.25, "step_seconds": 0.01}
    metrics = {BEST_TAU: 0.625, **{f"train/{name}": cost for name, cost in costs.items()}}
    tracked = Tracked(f"{seed or 0:032x}", settings, "c0ffee", metrics)
    counts = {"families": 3.0, "agreeing": 3.0, "graphs": 9.0}
    point = {"split": "valid", "configuration": 0.0, "predicted_rank": 0.25, "measured_rank": 0.0}
    values: dict[str, Any] = {
        "place": f"models/{method}/{seed}",
        "collection": Collection.parse("layout:cpu:random"),
        "method": method,
        "spec": {"version": "0.1.0", "data": "d" * 16, "weights_sha256": "a" * 64},
        "history": [{"member": 0.0, "epoch": n, "train_loss": 1 / n, "valid_kendall_tau": 0.5} for n in (1.0, 2.0)],
        "per_graph": [graph_row(graph, tau) for graph, tau in taus.items()],
        "predictions": [{"graph": graph, **point} for graph in taus],
        "properties": [
            {"split": "valid", "property": name, "effect": effect, **counts}
            for name, effect in (("tile[0]", -0.25), ("starts", 0.125))
        ],
        "tracked": None if seed is None else tracked,
    }
    values |= changes
    values |= {name: table(value) for name, value in values.items() if isinstance(value, list)}
    return Run(**values)

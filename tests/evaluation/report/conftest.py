"""Runs that were never trained, for reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.errors import WRONG
from hlorank.evaluation.report.trainings import TEXT, Row, Run, Tracked

MakeRun = Callable[..., Run]


def graph_row(
    graph: str, tau: float | None, split: str = "valid", protocol: str = "all", ceiling: float | None = 0.9
) -> Row:
    """Return a row of per_graph.csv of a layout collection."""
    known = tau is not None
    return {
        "split": split,
        "graph": graph,
        "family": "net",
        "protocol": protocol,
        "nodes": 27.0,
        "configurations": 64.0,
        "distinct": 60.0,
        "kendall_tau": tau,
        "repeat_ceiling": 1.0 if known else None,
        "opa": (tau + 1) / 2 if tau is not None else None,
        "slowdown_1": 0.04 if known else None,
        "slowdown_5": 0.02 if known else None,
        "slowdown_10": 0.01 if known else None,
        "slowdown_100": 0.0 if known else None,
        "kaggle": tau,
        "split_half_tau": 0.8,
        "noise_ceiling": ceiling,
        "noise_width": None if ceiling is None else 0.01,
        "wrong": (1 - tau) / 2 if tau is not None else None,
        **dict.fromkeys(WRONG, (1 - tau) / 8 if tau is not None and ceiling is not None else None),
        "note": "" if known else "labels withheld",
    }


def table(rows: list[Row]) -> pd.DataFrame:
    """Return rows as a table that was read from a file."""
    found = pd.DataFrame(rows)
    return found.astype({name: "float64" for name in found if name not in TEXT})


def training(
    method: str = "gst", seed: int | None = 0, taus: dict[str, float | None] | None = None, **changes: Any
) -> Run:
    """Return a run with two epochs and the taus of graphs, tracked unless `seed` is None; tables are lists of rows."""
    taus = {"a": 0.5, "b": 0.7} if taus is None else taus
    settings = {"model.width": "64", "seed": str(seed), "output": f"models/{seed}", **changes.pop("settings", {})}
    tracked = Tracked(f"{seed or 0:032x}", settings, "c0ffee", 62_685.0, 700 * 2**20, 54.25, 0.01, 0.625)
    values: dict[str, Any] = {
        "place": f"models/{method}/{seed}",
        "collection": Collection.parse("layout:cpu:random"),
        "method": method,
        "spec": {"version": "0.1.0", "data": "d" * 16, "weights_sha256": "a" * 64},
        "history": [
            {"member": 0.0, "epoch": epoch, "train_loss": 1 / epoch, "valid_kendall_tau": 0.5} for epoch in (1.0, 2.0)
        ],
        "per_graph": [graph_row(graph, tau) for graph, tau in taus.items()],
        "predictions": [
            {"split": "valid", "graph": graph, "configuration": 0.0, "predicted_rank": 0.25, "measured_rank": 0.0}
            for graph in taus
        ],
        "properties": [
            {"split": "valid", "property": name, "effect": effect, "families": 3.0, "agreeing": 3.0, "graphs": 9.0}
            for name, effect in (("tile[0]", -0.25), ("starts", 0.125))
        ],
        "tracked": None if seed is None else tracked,
    }
    values |= changes
    values |= {name: table(value) for name, value in values.items() if isinstance(value, list)}
    return Run(**values)


@pytest.fixture
def make_run() -> MakeRun:
    """Return `training`."""
    return training

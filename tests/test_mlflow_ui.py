"""Comparison of methods in MLflow's UI, as docs/how-to/compare-in-mlflow.md describes it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hlorank.config import Config
from tests.browser import Browser
from tests.servers import command, running

Settings = Callable[..., Config]
METHODS = ("full", "gst", "gradient_boosting")
TAU, BEST, TEST = "curves/valid_kendall_tau", "valid/best_kendall_tau", "evaluate/test/kendall_tau"

BARS = """[...document.querySelectorAll('.js-plotly-plot')].flatMap((chart) =>
  chart.data.map(({x}) => [...x].sort((one, other) => one - other)))"""


@pytest.fixture
def runs(settings: Settings, tmp_path: Path) -> dict[str, Any]:
    """Return the runs of three trained and evaluated methods by name."""
    from mlflow.tracking import MlflowClient

    from hlorank.evaluation.evaluate import evaluate
    from hlorank.runs.evaluation import EvaluationRun
    from hlorank.stages.train import train

    for method in METHODS:
        config = settings(method=method)
        train(config, tmp_path / method)
        metrics = evaluate(config, tmp_path / method, tmp_path / "reports" / method)
        EvaluationRun(config, tmp_path / method).log(metrics, tmp_path / "reports" / method)
    client = MlflowClient(config.tracking.uri)
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    assert experiment is not None
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def opened(browser: Browser, url: str) -> None:
    """Open a page of the UI by way of an empty one, as another fragment alone loads nothing."""
    browser.open("about:blank")
    browser.open(url)


def shows(browser: Browser, *texts: object) -> None:
    """Wait until the page contains all of these texts."""
    for text in texts:
        browser.wait_for(f"document.body.innerText.includes({json.dumps(str(text))})")


@pytest.mark.slow
def test_three_methods_are_compared(browser: Browser, runs: dict[str, Any], settings: Settings, tmp_path: Path) -> None:
    names = [f"{method} layout:synthetic:random" for method in METHODS]
    assert sorted(runs) == sorted(names)
    ids, experiment = [runs[name].info.run_id for name in names], runs[names[0]].info.experiment_id
    store = ("--backend-store-uri", settings().tracking.uri, "--workers", 1)
    browser.look((1900, 1000))
    with running("/health", dict(os.environ), tmp_path / "server.log", command("mlflow", "ui", *store)) as address:
        page = f"http://{address}/#/experiments/{experiment}/runs"

        # The list of runs, and MLflow's own charts: one of each metric.
        opened(browser, page)
        shows(browser, *names)
        opened(browser, f"{page}?compareRunsMode=CHART")
        shows(browser, *names, TEST)
        scores = sorted(run.data.metrics[TEST] for run in runs.values())
        browser.wait_for(f"{BARS}.some((bars) => String(bars) === String({scores}))")

        # The tables of graphs next to each other.
        with (tmp_path / "reports/gst/per_graph.csv").open(newline="") as file:
            graphs = list(csv.DictReader(file))
        opened(browser, f"{page}?compareRunsMode=ARTIFACT")
        shows(browser, "per_graph.json", *names, *(f"{row['split']}/{row['graph']}" for row in graphs))
        shows(browser, *(round(float(row["kendall_tau"]), 4) for row in graphs))

        # Two runs and more, parameter by parameter.
        both = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([experiment]))}"
        opened(browser, f"http://{address}/#/compare-runs?{both}")
        shows(browser, "Comparing 3 Runs from 1 Experiment", "Show diff only", *METHODS, *names, TAU, TEST)
        shown = f"metric=%22{TAU}%22&plot_metric_keys=[%22{TAU}%22]&x_axis=step"
        opened(browser, f"http://{address}/#/metric?{both}&{shown}")
        shows(browser, *(f"{runs[name].data.metrics[BEST]} (step=" for name in names))

        # One run.
        opened(browser, f"{page}/{ids[1]}/artifacts/report/per_graph.csv")
        shows(browser, "report/per_graph.csv", "kendall_tau", *(row["graph"] for row in graphs))
        shows(browser, *(row["kendall_tau"] for row in graphs))
        assert all(address in url for url in browser.requests), "nothing comes from the network"

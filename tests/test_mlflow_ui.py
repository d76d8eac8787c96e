"""Methods are compared in MLflow's UI, as docs/how-to/compare-in-mlflow.md says."""

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
from hlorank.models.baselines.baseline import BASELINES
from hlorank.tracking_view import VIEW, VIEW_TAG, comparison_view
from tests.browser import Browser
from tests.servers import running

Settings = Callable[..., Config]
METHODS = ("full", "gst", "gradient_boosting")
TAU, BEST, TEST, SECONDS = "valid/kendall_tau", "valid/best_kendall_tau", "evaluate/test/kendall_tau", "train/seconds"

CHARTS = """[...document.querySelectorAll('.js-plotly-plot')].map((chart) => ({
  axis: chart.layout.xaxis.title?.text,
  series: chart.data.filter((line) => line.mode !== 'lines').map(({name, x, y}) => ({name, x: [...x], y: [...y]})),
}))"""
ROWS = "[...document.querySelectorAll('[role=grid] [role=row]')].map((row) => row.innerText)"


def test_the_view_fits_into_a_tag() -> None:
    view = json.loads(comparison_view())
    assert len(comparison_view()) <= 5000, "MLflow refuses longer tags of experiments"
    state = json.loads(view["state"])
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {state["compareRunSections"][0]["uuid"]}
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(state["compareRunCharts"])


@pytest.fixture
def runs(settings: Settings, tmp_path: Path) -> dict[str, Any]:
    """The runs of three methods that were trained and evaluated, by name."""
    from mlflow.tracking import MlflowClient

    from hlorank.evaluation.evaluate_model import evaluate
    from hlorank.training.baselines.train_baseline import train_baseline
    from hlorank.training.run import train

    for method in METHODS:
        config = settings(method=method)
        (train_baseline if method in BASELINES else train)(config, tmp_path / method)
        evaluate(config, tmp_path / method, tmp_path / "reports" / method)
    client = MlflowClient(config.tracking.uri)
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    assert experiment is not None
    assert experiment.tags[VIEW_TAG] == comparison_view()
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def opened(browser: Browser, url: str) -> None:
    """Opens a page of the UI; by itself another fragment would not load it anew."""
    browser.open("about:blank")
    browser.open(url)


def shows(browser: Browser, *texts: object) -> None:
    """Waits until the page says all of these."""
    for text in texts:
        browser.wait_for(f"document.body.innerText.includes({json.dumps(str(text))})")


@pytest.mark.slow
def test_three_methods_are_compared(browser: Browser, runs: dict[str, Any], settings: Settings, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    names = [f"{method} seed 0 layout:synthetic:random" for method in METHODS]
    assert sorted(runs) == sorted(names)
    client = MlflowClient(settings().tracking.uri)
    ids, experiment = [runs[name].info.run_id for name in names], runs[names[0]].info.experiment_id
    ranked = sorted(names, key=lambda name: -runs[name].data.metrics[BEST])
    store = ("--backend-store-uri", settings().tracking.uri, "--workers", 1)
    browser.look((1900, 1000))
    with running("/health", dict(os.environ), tmp_path / "server.log", "ui", *store) as address:
        page = f"http://{address}/#/experiments/{experiment}/runs"

        # The table of runs: the best first.
        opened(browser, f"{page}?viewStateShareKey={VIEW}")
        shows(browser, *names, "method", "seed", BEST, TEST, SECONDS)
        browser.ask("[...document.querySelectorAll('button')].find((button) => button.ariaLabel === 'Close')?.click()")
        shows(browser, *(run.data.metrics[key] for run in runs.values() for key in (BEST, TEST, SECONDS)))
        listed = [row for row in browser.ask(ROWS) if "layout:synthetic:random" in row]
        assert [name for row in listed for name in names if name in row] == ranked
        browser.screenshot(tmp_path / "runs.png")

        # Its charts: tau over steps, over seconds, against seconds.
        opened(browser, f"{page}?viewStateShareKey={VIEW}&compareRunsMode=CHART")
        shows(browser, "methods", "(6)", *names)
        browser.wait_for(f"{CHARTS}.filter((chart) => chart.series.length).length === 6")
        steps, seconds, cost, *bars = browser.ask(CHARTS)
        histories = {
            name: {key: {m.step: m.value for m in client.get_metric_history(run, key)} for key in (TAU, SECONDS)}
            for name, run in zip(names, ids, strict=True)
        }
        assert (steps["axis"], seconds["axis"], cost["axis"]) == ("Step", SECONDS, SECONDS)
        assert {line["name"] for line in steps["series"]} == {line["name"] for line in seconds["series"]} == set(names)
        for over_steps, over_seconds in zip(steps["series"], seconds["series"], strict=True):
            taus, times = histories[over_steps["name"]].values()
            assert dict(zip(over_steps["x"], over_steps["y"], strict=True)) == taus
            expected = sorted((times[step], tau) for step, tau in taus.items())
            assert list(zip(over_seconds["x"], over_seconds["y"], strict=True)) == expected
        pairs = [[runs[name].data.metrics[key] for key in (SECONDS, BEST)] for name in names]
        assert sorted(zip(cost["series"][0]["x"], cost["series"][0]["y"], strict=True)) == sorted(map(tuple, pairs))
        for bar, key in zip(bars, (BEST, TEST, "train/peak_memory_bytes"), strict=True):
            shows(browser, key)
            assert sorted(bar["series"][0]["x"]) == sorted(run.data.metrics[key] for run in runs.values())
        browser.screenshot(tmp_path / "charts.png")

        # The tables of graphs side by side.
        with (tmp_path / "reports/gst/per_graph.csv").open(newline="") as file:
            graphs = list(csv.DictReader(file))
        opened(browser, f"{page}?compareRunsMode=ARTIFACT")
        shows(browser, "per_graph.json", *names, *(f"{row['split']}/{row['graph']}" for row in graphs))
        shows(browser, *(round(float(row["kendall_tau"]), 4) for row in graphs))
        browser.screenshot(tmp_path / "tables.png")

        # Two runs and more, parameter by parameter.
        both = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([experiment]))}"
        opened(browser, f"http://{address}/#/compare-runs?{both}")
        shows(browser, "Comparing 3 Runs from 1 Experiment", "Show diff only", *METHODS, *names, TAU, TEST)
        browser.screenshot(tmp_path / "compared.png")
        opened(
            browser, f"http://{address}/#/metric?{both}&metric=%22{TAU}%22&plot_metric_keys=[%22{TAU}%22]&x_axis=step"
        )
        shows(browser, *(f"{runs[name].data.metrics[BEST]} (step=" for name in names))
        browser.screenshot(tmp_path / "metric.png")

        # One run.
        opened(browser, f"{page}/{ids[1]}/artifacts/report/per_graph.csv")
        shows(browser, "report/per_graph.csv", "kendall_tau", *(row["graph"] for row in graphs))
        shows(browser, *(row["kendall_tau"] for row in graphs))
        browser.screenshot(tmp_path / "graphs.png")
        assert all(address in url for url in browser.requests), "nothing comes from the network"

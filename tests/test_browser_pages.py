"""Pages of others in a browser: `dvc plots show` with scripts/plots_page.py, and a comparison in MLflow's UI."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hlorank.config import Config
from tests.browser import DESKTOP, PHONE, Browser
from tests.conftest import Settings
from tests.servers import command, running

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[1] / "scripts/plots_page.py"
METHODS = ("gst", "gradient_boosting")
TAU, TEST = "curves/valid_kendall_tau", "evaluate/test/kendall_tau"
BARS = """[...document.querySelectorAll('.js-plotly-plot')].flatMap((chart) =>
  chart.data.map(({x}) => [...x].sort((one, other) => one - other)))"""


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of `dvc plots show` in a small repository with plots like ours."""
    root = tmp_path_factory.mktemp("plots")
    (root / "curve.csv").write_text("epoch,valid_kendall_tau\n1,0.5\n2,0.6\n3,0.65\n")
    (root / "ranks.csv").write_text("measured_rank,predicted_rank\n0,0.1\n0.5,0.4\n1,0.9\n")
    (root / "dvc.yaml").write_text(
        "plots:\n"
        "  - curve.csv: {x: epoch, y: valid_kendall_tau, title: Learning curves}\n"
        "  - ranks.csv: {template: scatter, x: measured_rank, y: predicted_rank, title: Ranks}\n"
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
    for line in ("git init -q", "dvc init -q", f"{sys.executable} {SCRIPT}", "dvc plots show -q"):
        subprocess.run(line.split(), cwd=root, env=environment, check=True)
    status = ["git", "status", "--porcelain", "--untracked-files", ".dvc"]
    untracked = subprocess.run(status, cwd=root, check=True, capture_output=True, text=True).stdout
    assert "??" not in untracked, "the page and its setting belong to this clone only"
    return root / "dvc_plots/index.html"


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_plots_are_drawn_without_a_network(browser: Browser, plots: Path, size: tuple[int, int], dark: bool) -> None:
    page = plots.read_text(encoding="utf-8")
    assert page.count("vegaEmbed('#") == 2
    assert re.findall(r"<(?:script|link)[^>]* (?:src|href)=", page) == []
    browser.open("about:blank")  # the page before would load again in its other colours
    browser.look(size, dark)
    browser.open(plots)
    browser.wait_for("document.querySelectorAll('.vega-embed canvas').length === 2")
    assert browser.requests == [plots.as_uri()]
    assert browser.errors == []
    assert browser.ask("document.documentElement.scrollWidth") <= size[0]
    ink = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 300, 300).data]"
    brightest = browser.ask(
        f"{ink}.reduce((max, value, at, all) => all[at | 3] > 200 ? Math.max(max, value * (at % 4 < 3)) : max, 0)"
    )
    assert (brightest > 240) == dark, "labels are light on dark"


def evaluated(config: Config, folder: Path) -> None:
    """Train and evaluate a method."""
    from hlorank.evaluation.evaluate import evaluate
    from hlorank.runs.evaluation import log_evaluation
    from hlorank.stages.train import train

    train(config, folder / "model")
    metrics = evaluate(config, folder / "model", folder / "report")
    log_evaluation(config, folder / "model", metrics, folder / "report")


def test_methods_are_compared_in_mlflow(browser: Browser, settings: Settings, runs: Any, tmp_path: Path) -> None:
    """As docs/how-to/compare-in-mlflow.md describes it."""
    for method in METHODS:
        evaluated(settings(method=method), tmp_path / method)
    found = {run.info.run_name: run for run in runs(settings())}
    names = [f"{method} layout:synthetic:random" for method in METHODS]
    assert found.keys() == {*names}
    ids, experiment = [found[name].info.run_id for name in names], found[names[0]].info.experiment_id
    with (tmp_path / "gst/report/per_graph.csv").open(newline="") as file:
        graphs = list(csv.DictReader(file))
    store = ("--backend-store-uri", settings().tracking.uri, "--workers", 1)
    browser.look((1900, 1000))
    with running("/health", dict(os.environ), tmp_path / "server.log", command("mlflow", "ui", *store)) as address:

        def shows(url: str, *texts: object) -> None:
            """Open a page of the UI by way of an empty one, as another fragment alone loads nothing."""
            browser.open("about:blank")
            browser.open(f"http://{address}/#/{url}")
            for text in texts:
                browser.wait_for(f"document.body.innerText.includes({json.dumps(str(text))})")

        shows("", "Recent Experiments")
        browser.click("Model training")
        browser.click(settings().tracking.experiment)
        browser.wait_for(f"location.hash.startsWith('#/experiments/{experiment}/runs?workflowType=machine_learning')")
        for name in names:
            browser.wait_for(f"document.body.innerText.includes({json.dumps(name)})")
        shows(f"experiments/{experiment}/runs?compareRunsMode=CHART", *names, TEST)
        scores = sorted(run.data.metrics[TEST] for run in found.values())
        browser.wait_for(f"{BARS}.some((bars) => String(bars) === String({scores}))")
        taus = [round(float(row["kendall_tau"]), 4) for row in graphs]
        cells = [*(f"{row['split']}/{row['graph']}" for row in graphs), *taus]
        shows(f"experiments/{experiment}/runs?compareRunsMode=ARTIFACT", "per_graph.json", *names, *cells)
        both = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([experiment]))}"
        shows(f"compare-runs?{both}", "Comparing 2 Runs from 1 Experiment", *METHODS, *names, TAU, TEST)
        table = f"experiments/{experiment}/runs/{ids[0]}/artifacts/report/per_graph.csv"
        shows(table, "report/per_graph.csv", *(row["kendall_tau"] for row in graphs))
        assert all(address in url for url in browser.requests), "nothing comes from the network"

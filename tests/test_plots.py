"""The page of `dvc plots show`, as scripts/plots_page.py sets it up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import DESKTOP, PHONE, Browser

SCRIPT = Path(__file__).parents[1] / "scripts/plots_page.py"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    for command in (
        ["git", "init", "-q"],
        ["dvc", "init", "-q"],
        [sys.executable, str(SCRIPT)],
        ["dvc", "plots", "show", "-q"],
    ):
        subprocess.run(command, cwd=root, env=environment, check=True)
    status = ["git", "status", "--porcelain", "--untracked-files", ".dvc"]
    untracked = subprocess.run(status, cwd=root, check=True, capture_output=True, text=True).stdout
    assert "??" not in untracked, "the page and its setting belong to this clone only"
    return root / "dvc_plots/index.html"


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_plots_are_drawn_without_a_network(browser: Browser, shown: Path, size: tuple[int, int], dark: bool) -> None:
    page = shown.read_text(encoding="utf-8")
    assert page.count("vegaEmbed('#") == 2
    assert re.findall(r"<(?:script|link)[^>]* (?:src|href)=", page) == []
    browser.open("about:blank")  # the page before would load again in its other colours
    browser.look(size, dark)
    browser.open(shown)
    browser.wait_for("document.querySelectorAll('.vega-embed canvas').length === 2")
    assert browser.requests == [shown.as_uri()]
    assert browser.errors == []
    assert browser.ask("document.documentElement.scrollWidth") <= size[0]
    ink = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 300, 300).data]"
    brightest = browser.ask(
        f"{ink}.reduce((max, value, at, all) => all[at | 3] > 200 ? Math.max(max, value * (at % 4 < 3)) : max, 0)"
    )
    assert (brightest > 240) == dark, "labels are light on dark"

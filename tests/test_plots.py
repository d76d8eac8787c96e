"""The template of `dvc plots show`, and the script that builds it."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hlorank.evaluation.report.write_report import vega
from tests.browser import DESKTOP, PHONE, Browser

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "src/hlorank/evaluation/report/vega.html"
LICENCES = ROOT / "src/hlorank/evaluation/report/vega.LICENSES.txt"


def test_dvc_finds_the_template() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".dvc/config")
    assert (ROOT / ".dvc" / config["plots"]["html_template"]).resolve() == PAGE
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("{plot_divs}") == page.count("{refresh_tag}") == 1
    assert "{scripts}" not in page, "they would come from the network"


def test_it_holds_the_packages_that_are_pinned_and_their_licences() -> None:
    pinned = json.loads((ROOT / "scripts/vega/package.json").read_text(encoding="utf-8"))["dependencies"]
    locked = json.loads((ROOT / "scripts/vega/package-lock.json").read_text(encoding="utf-8"))["packages"]
    scripts, licences = vega(), LICENCES.read_text(encoding="utf-8")
    for name, version in pinned.items():
        assert locked[f"node_modules/{name}"]["version"] == version
        assert f"{name} {version}" in licences
        assert f'"{version}"' in scripts
    assert scripts.startswith(f"\n/*!\n{licences}*/")
    assert not any("resolved" in package for package in locked.values()), "npm takes them from where it is set up for"


@pytest.fixture
def builder() -> ModuleType:
    """scripts/vega/build.py as a module."""
    spec = importlib.util.spec_from_file_location("build_vega", ROOT / "scripts/vega/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["a</script >b", "a<!--b", "a{plot_divs}b", "a{scripts}"])
def test_a_bundle_that_would_break_the_page_is_refused(text: str, builder: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "bundle.js"
    path.write_text(f"one\n{text}\n")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        builder.script(path)
    path.write_text("one();\n//# sourceMappingURL=one.js.map\n")
    assert builder.script(path) == "one();"


@pytest.mark.slow
def test_equal_packages_give_equal_bytes(builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setattr(builder, "TARGET", tmp_path)
    try:
        builder.main()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm can't get the packages: {error}")
    for path in (PAGE, LICENCES):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "run `make vega`"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `dvc plots show` in a small repository with plots like ours."""
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
        ["dvc", "config", "plots.html_template", str(PAGE)],
        ["dvc", "plots", "show", "-q"],
    ):
        subprocess.run(command, cwd=root, env=environment, check=True)
    return root / "dvc_plots/index.html"


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_plots_are_drawn_without_a_network(browser: Browser, shown: Path, size: tuple[int, int], dark: bool) -> None:
    browser.open("about:blank")  # the page before would load again in its other colours
    browser.look(size, dark)
    browser.open(shown)
    browser.wait_for("document.querySelectorAll('.vega-embed canvas').length === 2")
    assert browser.requests == [shown.as_uri()]
    assert browser.errors == []
    assert browser.ask("document.documentElement.scrollWidth") <= size[0]
    ink = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 300, 300).data]"
    brightest = browser.ask(
        f"{ink}.reduce((most, value, at, all) => all[at | 3] > 200 ? Math.max(most, value * (at % 4 < 3)) : most, 0)"
    )
    assert (brightest > 240) == dark, "labels are light on dark"

"""The documentation agrees with the code, as far as that can be tested."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.models import compression
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.cost_model import CostModel
from hlorank.models.layers.registry import LAYERS, RESIDUAL
from hlorank.training.methods import METHODS
from scripts.reference import keys

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("data/*/README.md"), *(ROOT / "docs").rglob("*.md")]
)

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = _HEADING.findall(_CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> str:
    """Return all shell blocks and inline code of a page."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*_SHELL.findall(text), *_INLINE.findall(_CODE.sub("", text))])


@every_page
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page for page in PAGES if page.name != "README.md"} <= linked


def test_every_method_is_documented() -> None:
    text = (ROOT / "docs/explanation/gst.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?:one segment|segments)", text, re.MULTILINE) == list(METHODS)
    assert re.findall(r"^\| `(\w+)` \| no segments", text, re.MULTILINE) == list(BASELINES)


def test_every_layer_is_documented() -> None:
    section = (ROOT / "docs/reference/layers.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    assert sorted(_INLINE.findall(" ".join(rows))) == sorted([*LAYERS, RESIDUAL])


def test_the_mixing_of_every_layer_is_documented(make_model: Callable[..., CostModel]) -> None:
    text, config = (ROOT / "docs/explanation/gst.md").read_text(encoding="utf-8"), make_model().config
    rows = re.findall(r"^\| [^|]*\(`(\w+)`\) \| ([^|]*) \|", text, re.MULTILINE)
    documented = {name: mixing for mixing, names in rows for name in _INLINE.findall(names)}
    assert documented == {name: kind.make(config, config.width).mixing.value for name, kind in LAYERS.items()}


def test_the_example_of_colour_refinement_is_that_of_the_code() -> None:
    text = (ROOT / "docs/explanation/gst.md").read_text(encoding="utf-8")
    table = [[int(cell) for cell in row.split("|")] for row in re.findall(r"^\| \d, \w+ \|(.*)\|$", text, re.MULTILINE)]
    text = compression.__doc__ or ""  # the colours before, after one and after two layers
    arrays = re.findall(r"^array\((\[\[.*?\]\])\)", text, re.MULTILINE | re.DOTALL)
    assert np.hstack([ast.literal_eval(array) for array in arrays]).tolist() == table


def test_every_dependency_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    rows = " ".join(line for line in text.splitlines() if line.startswith("|"))
    words = set(re.findall(r"[\w-]+", rows))
    assert {re.split(r"[<>=\[]", name)[0] for group in groups for name in group} <= words


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|&& )make ([a-z-]+)", commands(page), re.MULTILINE))
    assert named <= targets


@every_page
def test_modules_of_commands_exist(page: Path) -> None:
    for module in re.findall(r"python -m (hlorank[\w.]*)", commands(page).replace("$stage", "fetch")):
        assert importlib.util.find_spec(module.rstrip(".")) is not None, module


@every_page
def test_choices_of_groups_exist(page: Path) -> None:
    groups = "|".join(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())
    for group, choices in re.findall(rf"(?:^|[ '])({groups})=([\w,]+)", commands(page), re.MULTILINE):
        for choice in choices.split(","):
            folders = ROOT / "conf", ROOT / "examples/reproductions/reproductions/conf"
            assert any((folder / group / f"{choice}.yaml").is_file() for folder in folders), f"{group}={choice}"


@pytest.fixture(scope="module")
def known() -> set[str]:
    """All keys of the configuration, as the reference documents them."""
    return {key for table in keys().values() for key in re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE)}


@every_page
def test_overrides_name_keys_that_exist(page: Path, known: set[str]) -> None:
    overrides = re.findall(r"(?:^|[ '])([a-z_]+(?:\.[a-z_]+)+)=", commands(page), re.MULTILINE)
    assert {key for key in overrides if not key.startswith(("hydra.", "vm."))} <= known  # vm.: of sysctl

"""The notebooks of the documentation run, and the examples of pages that write files."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from hlorank.data.collection import read_graph
from tests.docs.blocks import ROOT, blocks

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the code cells."""
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")  # plt.show() without a screen
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(notebook.parent)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for cell in cells(notebook):
        exec("".join(cell["source"]), names)
        printed = capsys.readouterr().out
        shown = [line for output in cell["outputs"] for line in output.get("text", [])]
        assert len(printed.splitlines()) == len(shown), printed  # scores may differ from those shown in the last digits
        # Words and whole numbers do not differ, except for the ranking.
        pattern = r"[a-z_.]{3,}|\d+ (?=nodes|configurations)"
        assert re.findall(pattern, printed) == re.findall(pattern, "".join(shown))


def test_the_example_writes_a_valid_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [block.text for block in blocks("docs/how-to/use-your-own-npz.md") if block.language == "python"]
    (example,) = [text for text in texts if "write_graph" in text]
    exec(example, {})
    (path,) = tmp_path.rglob("*.npz")
    assert path.relative_to(tmp_path) == Path("mine/layout/own/random/product.npz")
    measured = read_graph(path, "layout")
    assert measured.graph.edge_index.tolist() == [[2, 0], [2, 1]]
    assert measured.measurements.runtime.tolist() == [700, 400]

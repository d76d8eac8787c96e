"""The tables of the reference agree with the sections, conf/ and the parsers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlorank.fetch.origins import ORIGINS
from hlorank.training.losses import LOSSES
from scripts import reference
from scripts.reference import GENERATED, ROOT, keys, rewritten


# The collection of models is measured in the background: new graphs come before the table.
@pytest.mark.parametrize("name", sorted(GENERATED.keys() - {"data/models/README.md"}))
def test_a_page_agrees_with_the_code(name: str) -> None:
    page = ROOT / name
    assert rewritten(name, page) == page.read_text(encoding="utf-8"), "run `make reference`"


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text("<!-- command: rank -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"'register'.*\['rank'\]"):
        rewritten("docs/reference/cli.md", page)


def test_a_row_has_type_default_and_meaning() -> None:
    assert (
        "| `segments.configs_per_graph` | whole number ≥ 2 or null | `1000` | Working set: configurations of a graph "
        "that are trained on at a time; null is all of them. |\n"
    ) in keys()["segments"]
    assert "| `data.synthetic.noise` | number ≥ 0 | `0.001` |" in keys()["origins"]
    assert "| `baseline.strengths` | list of numbers > 0, not empty | `[0.0001, " in keys()["baseline"]
    assert "| `evaluate.splits` | list of train, valid, test, not empty | `[valid, test]` |" in keys()["evaluate"]
    assert "| `trainer.precision` | one of 32-true, bf16-mixed, 16-mixed | `32-true` |" in keys()["trainer"]


def test_losses_have_their_weights_and_arguments() -> None:
    table = keys()["loss"]
    assert "Choices of `loss=`: `hinge`, `listmle` (default), " in table
    assert "| `loss.hinge.margin` | number | `0.1` |" in table
    assert {name for name in LOSSES if f"| `loss.{name}" in table} == set(LOSSES)
    assert r"\|" in table  # a bar in a meaning is no end of a cell


def test_every_origin_has_a_table() -> None:
    assert re.findall(r"^### data=(\w+)$", keys()["origins"], re.MULTILINE) == list(ORIGINS)


def test_entries_without_a_file_in_conf_have_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "ORIGINS", {"other": ORIGINS["hlo"]})
    monkeypatch.setattr(reference, "LOSSES", {"another": LOSSES["mse"]})
    assert "| `loss.another` | number ≥ 0 |  | Weight of this loss: mean squared" in keys()["loss"]
    assert "| `data.other.extra` | true or false |  | Also write" in keys()["origins"]

"""The reference says what the schema, conf/ and the parsers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.reference import GENERATED, REFERENCE, keys, rewritten


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert rewritten(REFERENCE / name) == (REFERENCE / name).read_text(encoding="utf-8"), "run `make reference`"


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text("<!-- command: rank -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"expected one place each for .*'register'.*, found \['rank'\]"):
        rewritten(page)


def test_a_row_has_type_default_and_meaning() -> None:
    assert (
        "| `segments.configs_per_graph` | whole number or null | `1000` | Working set: configurations of a graph that "
        "are trained on at a time; null is all of them. |\n"
    ) in keys()["segments"]
    assert "Choices of `loss=`: `differences`, `hinge`, `listmle` (default), " in keys()["loss"]
    assert "| `data.synthetic.noise` | number | `0.001` |" in keys()["data.synthetic"]
    assert r"Mean of \|exp(r) - 1\|, " in keys()["loss"]

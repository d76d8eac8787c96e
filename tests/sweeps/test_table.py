"""Tables and plots of sweeps."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from hlorank.sweeps.jobs import Row
from hlorank.sweeps.plot import make_axis, parallel_coordinates
from hlorank.sweeps.table import job_table, markdown, print_table, seed_table, varied_keys


def row(method: str, seed: int, tau: float | None, state: str = "finished", **values: str) -> Row:
    overrides = {"trainer.max_epochs": "3", "method": method, "seed": str(seed), **values}
    return Row(overrides, str(seed), tau, 1.25 if tau is not None else None, state, f"run {method} {seed}")


ROWS = [
    row("full", 0, 0.25),
    row("full", 1, 0.75),
    row("gst", 1, None, "failed"),
    row("gst", 0, 0.625),
    row("gst_e", 0, None, "pruned"),
]


def test_varied_keys() -> None:
    assert varied_keys(ROWS) == ["method"]
    assert varied_keys(ROWS[:2]) == []
    trials = [row("full", 0, 0.1, output="a", **{"sweep.trial": "1", "loss": "hinge"}), row("full", 0, 0.2)]
    assert varied_keys(trials) == ["loss"]  # where the other took the default


def test_one_row_for_each_job_the_best_first() -> None:
    table = job_table(ROWS)
    assert list(table.columns) == ["method", "seed", "valid_kendall_tau", "train_seconds", "state", "run_id"]
    found = list(zip(table["method"], table["seed"], table["valid_kendall_tau"], table["state"], strict=True))
    assert found[:3] == [
        ("full", "1", 0.75, "finished"),
        ("gst", "0", 0.625, "finished"),
        ("full", "0", 0.25, "finished"),
    ]
    assert [(method, state) for method, _, _, state in found[3:]] == [("gst", "failed"), ("gst_e", "pruned")]
    assert table["train_seconds"].isna().tolist() == [False, False, False, True, True]


def test_the_spread_over_seeds() -> None:
    seeds = seed_table(job_table(ROWS)).to_dict("records")
    assert [one["method"] for one in seeds] == ["gst", "full"]
    assert (seeds[1]["seeds"], seeds[1]["mean"]) == (2, 0.5)
    assert seeds[1]["standard_deviation"] == pytest.approx(math.sqrt(0.125))
    assert seeds[0]["seeds"] == 1
    assert math.isnan(seeds[0]["standard_deviation"])


def test_a_run_counts_once() -> None:
    """Two trials of a search may be the same training, which is done once."""
    trials = [row("gst", 0, 0.5, **{"sweep.trial": trial}) for trial in "01"]
    assert len(job_table([*trials, row("gst", 1, 0.75)])) == 3
    (one,) = seed_table(job_table([*trials, row("gst", 1, 0.75)])).to_dict("records")
    assert (one["seeds"], one["mean"]) == (2, 0.625)


def test_where_nothing_varies_but_the_seed() -> None:
    (one,) = seed_table(job_table(ROWS[:2])).to_dict("records")
    assert one == {"seeds": 2, "mean": 0.5, "standard_deviation": pytest.approx(math.sqrt(0.125))}


def test_where_nothing_has_a_result() -> None:
    table = job_table([ROWS[2], ROWS[4]])
    assert table["state"].tolist() == ["failed", "pruned"]
    assert seed_table(table).empty


def test_markdown_and_console(capsys: pytest.CaptureFixture[str]) -> None:
    table = job_table([row("a|b", 0, 0.123456, x="0.021219958513921902"), row("c", 1, None, "pruned", x="12")])
    assert markdown(table).splitlines() == [
        "| method | x | seed | valid_kendall_tau | train_seconds | state | run_id |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        r"| a\|b | 0.02122 | 0 | 0.1235 | 1.2 | finished | run a\|b 0 |",
        "| c | 12 | 1 |  |  | pruned | run c 1 |",
    ]
    print_table(table, "a title")
    shown = capsys.readouterr().out
    assert "a title" in shown
    assert "run a|b 0" in shown


def test_axes() -> None:
    words = make_axis("k", ["b", "a", "c", "a"])
    assert words.places == [0.5, 0.0, 1.0, 0.0]
    assert words.ticks == [(0.0, "a"), (0.5, "b"), (1.0, "c")]
    numbers = make_axis("k", ["10", "2", "4"])
    assert numbers.places == [1.0, 0.0, 0.25]
    assert numbers.ticks == [(0.0, "2"), (0.25, "4"), (1.0, "10")]
    wide = make_axis("k", ["0.0001", "0.01", "1"])
    assert wide.name == "k (log)"
    assert wide.places == pytest.approx([0.0, 0.5, 1.0])
    many = make_axis("k", [str(number) for number in range(101)])
    assert [label for _, label in many.ticks] == ["0", "25", "50", "75", "100"]
    assert make_axis("k", ["same", "same"]).places == [0.5, 0.5]
    assert make_axis("k", ["3", "3"]).places == [0.5, 0.5]
    assert make_axis("k", ["1", "null", "nan"]).ticks[1] == (0.5, "nan")
    assert make_axis("k", ["x" * 99, "y"]).ticks[0][1] == "x" * 23 + "…"


def test_the_plot_names_what_varies() -> None:
    table = job_table([*ROWS, row("gst", 2, 0.5)])
    svg = parallel_coordinates(table)
    assert svg == parallel_coordinates(table)
    words = {text for text in ET.fromstring(svg).itertext() if text.strip()}
    assert {"method", "full", "gst", "seed", "0", "1", "2", "validation Kendall tau"} <= words
    assert "gst_e" not in words  # it has no result


def test_a_plot_of_one_training() -> None:
    assert "validation Kendall tau" in parallel_coordinates(job_table(ROWS[:1]))

"""Tables of sweeps."""

from __future__ import annotations

import math

import pytest

from hlorank.runs.sweeps import Row, job_table, markdown, print_rows, seed_table, varied_keys


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
    print_rows(table, "a title")
    shown = capsys.readouterr().out
    assert "a title" in shown
    assert "run a|b 0" in shown
    print_rows(job_table([row("gst", 0, 0.5, x="[linear]"), row("gst", 0, 0.25, x="[linear,gelu]")]), "")
    assert "[linear,gelu]  " in capsys.readouterr().out

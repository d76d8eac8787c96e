"""Tables of a sweep: one row for each job, and the spread over seeds."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd

from hlorank.runs.jobs import Row
from hlorank.terminal import Column, print_table

TAU = "valid_kendall_tau"
_SEED, _SECONDS = "seed", "train_seconds"
_NOT_VARIED = ("sweep.", "output")  # number of the job, and its folder
_LONG_FRACTION = re.compile(r"\d\.\d{5,}(e-?\d+)?")  # drawn by a sampler
_DIGITS = {TAU: 4, "mean": 4, "standard_deviation": 4, _SECONDS: 1}


def varied_keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys, other than the seed, whose values differ between jobs, in the order of their overrides."""
    keys = dict.fromkeys(key for row in rows for key in row.values if not key.startswith(_NOT_VARIED) and key != _SEED)
    return [key for key in keys if len({row.values.get(key) for row in rows}) > 1]


def job_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one row for each job, the best first and those without a result last.

    Returns:
        The varied keys as columns of text, then seed, valid_kendall_tau, train_seconds, state, run_id.
    """
    keys = varied_keys(rows)
    columns = [*keys, _SEED, TAU, _SECONDS, "state", "run_id"]
    cells = [
        [*(row.values.get(key, "") for key in keys), row.seed, row.tau, row.seconds, row.state, row.run_id]
        for row in rows
    ]
    table = pd.DataFrame(cells, columns=columns).astype({TAU: float, _SECONDS: float})
    return table.sort_values([TAU, *keys, _SEED], ascending=[False, *[True] * (len(keys) + 1)], ignore_index=True)


def seed_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sample standard deviation of the Kendall tau over seeds, the best combination of keys first.

    Args:
        table: the result of `job_table`; jobs without a result are left out, and a run that several trials of a search
            share counts once.

    Returns:
        The varied keys, then seeds (their number), mean, standard_deviation (missing for one seed).
    """
    keys = list(table.columns[: list(table.columns).index(_SEED)])
    finished = table[table[TAU].notna()].drop_duplicates("run_id")
    by = finished[keys] if keys else pd.DataFrame({"": ""}, index=finished.index)
    groups = finished.groupby([by[key] for key in by], sort=False)[TAU]
    means = groups.agg(seeds="count", mean="mean", standard_deviation="std").reset_index()
    return means[[*keys, "seeds", "mean", "standard_deviation"]].sort_values("mean", ascending=False, ignore_index=True)


def short_value(value: str) -> str:
    """Return the value of an override as tables show it: a long fraction with four digits."""
    return f"{float(value):.4g}" if _LONG_FRACTION.fullmatch(value) else value


def _text(value: Any, column: str) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{_DIGITS[column]}f}"
    return short_value(str(value))


def cells(table: pd.DataFrame) -> list[list[str]]:
    """Return a table's rows as text: numbers rounded, missing ones empty."""
    rows = table.to_dict("records")
    return [[_text(row[column], column) for column in table.columns] for row in rows]


def markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown."""
    lines = [list(table.columns), ["---"] * len(table.columns), *cells(table)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def print_rows(table: pd.DataFrame, title: str) -> None:
    """Print a table on the console."""
    numbers, ranks = {*_DIGITS, _SEED, "seeds"}, {"run_id": 1, "state": 2, _SECONDS: 3}
    columns = [Column(column, ranks.get(column, 0), number=column in numbers) for column in table.columns]
    sys.stdout.write(f"\n{title}\n")
    print_table(columns, cells(table), option="sweep/summary.md of the run")

"""Tables of errors: what methods rank wrongly, by family, and which properties of configurations they misjudge."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hlorank.data.collection import SPLITS
from hlorank.evaluation.errors import WRONG
from hlorank.evaluation.report.groups import Group
from hlorank.evaluation.report.runs import Row

ALL = "all families"
_MEANS = ("kendall_tau", "noise_ceiling", "noise_width", "wrong", *WRONG, "slowdown_1", "slowdown_5")
_SHOWN = 8  # properties of a method
_MIN_EFFECT, _MIN_GRAPHS = 0.1, 3


class FamilyErrors(NamedTuple):
    """Errors of a group on the graphs of one family in one split: means over the ranked graphs.

    Attributes:
        group: the group.
        split: the split.
        family: the family; `ALL` for those of the whole split.
        graphs: number of ranked graphs.
        means: columns of per_graph.csv, None if the value of one graph is unknown.
    """

    group: Group
    split: str
    family: str
    graphs: int
    means: Row


def family_errors(groups: Sequence[Group]) -> list[FamilyErrors]:
    """Return the errors by split, group and family, the family with the most wrong pairs first."""
    found = []
    for group in groups:
        parts: dict[tuple[str, str], list[Row]] = {}
        for row in group.rows:
            if row["protocol"] == "all" and row.get("wrong") is not None:
                for family in (ALL, row["family"]):
                    parts.setdefault((row["split"], family), []).append(row)
        of_group = [FamilyErrors(group, *part, len(rows), _means(rows)) for part, rows in parts.items()]
        found += sorted(of_group, key=lambda one: (one.family != ALL, -one.means["wrong"]))
    return sorted(found, key=lambda one: SPLITS.index(one.split))


def _means(rows: Sequence[Row]) -> Row:
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in _MEANS}
    return {name: None if None in values else fmean(values) for name, values in columns.items()}


def misjudged(groups: Sequence[Group]) -> list[tuple[Group, Row]]:
    """Return the rows of properties.csv with the largest effects, of valid or else of the first evaluated split.

    Properties of fewer than three graphs are left out, and those whose families disagree on the sign.
    """
    found = []
    for group in groups:
        splits = {row["split"] for row in group.properties}
        split = "valid" if "valid" in splits else min(splits, key=SPLITS.index, default=None)
        clear = [
            row
            for row in group.properties
            if row["split"] == split
            and abs(row["effect"]) >= _MIN_EFFECT
            and row["graphs"] >= _MIN_GRAPHS
            and row["agreeing"] == row["families"]
        ]
        found += [(group, row) for row in sorted(clear, key=lambda row: -abs(row["effect"]))[:_SHOWN]]
    return found

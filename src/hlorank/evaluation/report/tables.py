"""Tables of a report: groups of seeds and folds with intervals, costs, and errors by family."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean, stdev

import numpy as np
import pandas as pd

from hlorank.data.collection import SPLITS, Collection, Kind
from hlorank.evaluation.graph_report import WRONG, Row, metric_names
from hlorank.evaluation.report.trainings import GRAPHS, TEXT, Run, compared, records
from hlorank.metrics import interval

ALL = "all families"
_MEANS = ["kendall_tau", "noise_ceiling", "noise_width", "wrong", *WRONG, "slowdown_1", "slowdown_5"]
_SHOWN = 8  # misjudged properties of a method
_MIN_EFFECT, _MIN_GRAPHS = 0.1, 3


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one method on one collection that differ only in their seed and in the fold that is valid, at least one.

    The label is the method, with the settings that distinguish it from other groups of the method; `style` is the
    number of its colour, shape and dash, equal for equal labels in all collections.
    """

    label: str
    style: int
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> int | None:
        """The number of different seeds, None if they are not recorded."""
        seeds = {run.seed for run in self.runs}
        return None if None in seeds else len(seeds)

    @property
    def folds(self) -> int:
        """The number of different divisions of the graphs into splits."""
        return len({run.spec.get("data") for run in self.runs})

    @property
    def repeated(self) -> str:
        """The name of the repetitions in which the runs differ."""
        return "seeds" if self.folds == 1 else "folds" if self.seeds == 1 else "seeds and folds"

    @property
    def one_segment(self) -> bool:
        """True if the models were trained on segments, and each graph is one."""
        return any(run.one_segment for run in self.runs)

    @property
    def length(self) -> str:
        """Epochs and steps of the trainings; empty for baselines, which have no epochs."""
        if "settings" in self.runs[0].spec:
            return ""
        epochs = [run.history["epoch"].max() for run in self.runs if len(run.history)]
        steps = [run.spec["steps"] for run in self.runs if "steps" in run.spec]
        return ", ".join(_range(values, name) for values, name in ((epochs, "epochs"), (steps, "steps")) if values)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Rows of per_graph.csv, numbers as means over the evaluated runs."""
        return _merged([run.per_graph for run in self.runs], "split", "graph", "protocol")

    def mean_tracked(self, metric: str) -> float | None:
        """Return the mean of a metric over the runs that have recorded it, None if none has."""
        known = [run.tracked.metrics[metric] for run in self.runs if run.tracked and metric in run.tracked.metrics]
        return fmean(known) if known else None


def _range(values: Sequence[float], name: str) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f} {name}" if low == high else f"{low:,.0f} to {high:,.0f} {name}"


def _merged(tables: Sequence[pd.DataFrame], *keys: str) -> pd.DataFrame:
    """Merge rows that agree in the keys, with means over the tables that have a number."""
    if not (filled := [table for table in tables if len(table)]):
        return pd.DataFrame()
    rows = pd.concat(filled)
    kinds = {name: "first" if name in TEXT else "mean" for name in rows if name not in keys}
    return rows.groupby([*keys], sort=False, as_index=False).agg(kinds)


def _settings(run: Run) -> dict[str, str]:
    """Return the settings that distinguish a run, without seed and fold; its place if they are not recorded."""
    data = {"data": str(run.spec.get("data"))}
    if run.tracked is None:
        return {**data, "run": run.place}
    return ({} if GRAPHS in run.tracked.settings else data) | compared(run.tracked.settings)


def group_runs(runs: Sequence[Run]) -> dict[Collection, list[Group]]:
    """Return the groups of each collection, in the order of the runs; labels name the settings that differ."""
    members: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        members.setdefault((run.collection, run.method, *sorted(_settings(run).items())), []).append(run)
    styles: dict[str, int] = {}
    groups: dict[Collection, list[Group]] = {}
    for key, (first, *others) in members.items():
        found = _settings(first)
        rest = [_settings(other[0]) for name, other in members.items() if name != key and name[:2] == key[:2]]
        differing = [f"{name}={found[name]}" for name in found if any(other.get(name) != found[name] for other in rest)]
        label = f"{first.method} ({', '.join(differing)})" if differing else first.method
        group = Group(label, styles.setdefault(label, len(styles)), (first, *others))
        groups.setdefault(first.collection, []).append(group)
    return groups


@dataclass(frozen=True)
class Estimate:
    """Mean over graphs of a metric's means over `runs`, and its 95 % interval, None for a single graph."""

    mean: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]

    @property
    def deviation(self) -> float | None:
        """Standard deviation over runs, None for a single run."""
        return stdev(self.runs) if len(self.runs) > 1 else None


@dataclass(frozen=True)
class SplitScores:
    """Scores of a group on one split under one protocol, over the graphs that all its runs of a fold ranked."""

    runs: int
    graphs: int
    left_out: int
    estimates: Mapping[str, Estimate]
    noise_ceiling: float | None

    @property
    def tau(self) -> Estimate | None:
        """Kendall tau, None if no graph was ranked."""
        return self.estimates.get("kendall_tau")


Results = dict[tuple[str, str], list[tuple[Group, SplitScores]]]
"""Groups and scores by split and protocol (`all` or `indexed`), in the order of the splits, the best tau first."""


def scores(groups: Sequence[Group]) -> Results:
    """Return the scores of groups of one collection on each evaluated split and protocol."""
    found: Results = {}
    for group in groups:
        tables = [
            run.per_graph.assign(run=number, fold=str(run.spec.get("data")))
            for number, run in enumerate(group.runs)
            if len(run.per_graph)
        ]
        for _, table in pd.concat(tables).groupby(["split", "protocol"]) if tables else ():
            split, protocol = table[["split", "protocol"]].iloc[0]
            score = _split_scores(group.runs[0].collection.kind, table)
            found.setdefault((split, protocol), []).append((group, score))
    places = sorted(found, key=lambda place: (SPLITS.index(place[0]), place[1]))
    return {it: sorted(found[it], key=lambda pair: inf if pair[1].tau is None else -pair[1].tau.mean) for it in places}


def _split_scores(kind: Kind, table: pd.DataFrame) -> SplitScores:
    """Return scores on the graphs that all runs of a fold have ranked, so that these runs are comparable."""
    by_run = table.pivot(index="graph", columns="run").reindex(table["graph"].unique())
    has = pd.DataFrame(by_run["kendall_tau"]).notna()
    wanted = has.T.groupby(table.groupby("run")["fold"].first()).transform("any").T
    ranked = by_run.loc[(has == wanted).all(axis=1) & has.any(axis=1)]
    estimates = {}
    for metric in metric_names(kind):
        columns = pd.DataFrame(ranked[metric] if metric in table else None)
        columns = columns.loc[:, (columns.notna() == wanted.loc[columns.index, columns.columns]).all()]
        if columns.size:
            values = columns.mean(axis=1).dropna().to_numpy()
            estimates[metric] = Estimate(float(values.mean()), *interval(values), tuple(columns.mean().tolist()))
    ceiling = pd.DataFrame(ranked["noise_ceiling"]).mean(axis=1).mean(skipna=False)
    return SplitScores(
        runs=table["run"].nunique(),
        graphs=len(ranked),
        left_out=len(by_run) - len(ranked),
        estimates=estimates,
        noise_ceiling=None if np.isnan(ceiling) else float(ceiling),
    )


def preferred(splits: Iterable[str]) -> str:
    """Return valid, the split to choose models on, or else the first of the splits."""
    return min(splits, key=lambda split: (split != "valid", SPLITS.index(split)))


def family_errors(groups: Sequence[Group]) -> list[tuple[Group, Row]]:
    """Return means by split, group and family or `ALL`, the family with the most wrong pairs first."""
    found = list[tuple[Group, Row]]()
    for group in groups:
        if "wrong" in group.rows:
            rows = group.rows[(group.rows["protocol"] == "all") & group.rows["wrong"].notna()]
            rows = rows.reindex(columns=["split", "family", *_MEANS])
            families = pd.concat([rows.assign(family=ALL), rows]).groupby(["split", "family"])
            known = families.count().eq(families.size(), axis=0)
            means = families.mean().where(known).assign(graphs=families.size())
            found += [(group, row) for row in records(means.reset_index())]

    def place(row: tuple[Group, Row]) -> tuple[int, int, bool, float]:
        group, means = row
        return SPLITS.index(means["split"]), groups.index(group), means["family"] != ALL, -means["wrong"]

    return sorted(found, key=place)


def misjudged(groups: Sequence[Group]) -> list[tuple[Group, Row]]:
    """Return the rows of properties.csv with the largest effects, as means over runs, of the `preferred` split.

    Properties of fewer than three graphs, or of families that disagree on the sign, are left out.
    """
    found = []
    for group in groups:
        table = _merged([run.properties for run in group.runs], "split", "property")
        if len(table):
            size = table["effect"].abs()
            clear = (table["split"] == preferred(table["split"])) & (size >= _MIN_EFFECT)
            clear &= (table["graphs"] >= _MIN_GRAPHS) & (table["agreeing"] == table["families"])
            largest = size[clear].sort_values(ascending=False, kind="stable").index[:_SHOWN]
            found += [(group, row) for row in records(table.loc[largest])]
    return found

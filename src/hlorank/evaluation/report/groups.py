"""Groups of runs that differ only in their seed, with their mean scores and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import SPLITS, Collection
from hlorank.evaluation.graph_report import metric_names
from hlorank.evaluation.report.runs import Row, Run

RESAMPLES, LEVEL = 2_000, 0.95
_BATCH = 1_000_000  # numbers drawn at a time
# Settings that do not change what is trained, and the seed.
_IGNORED = ("output", "seed", "paths.", "pipeline.", "sweep.", "tracking.")


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one method on one collection that differ only in their seed.

    Attributes:
        label: the method, with the settings that distinguish it from other groups of the method.
        style: number of its colour, shape and dash, equal for equal labels in all collections.
        runs: at least one run.
    """

    label: str
    style: int
    runs: tuple[Run, ...]

    @property
    def collection(self) -> Collection:
        """The collection that the runs were trained on."""
        return self.runs[0].collection

    @property
    def seeds(self) -> int | None:
        """The number of different seeds, None if they are not recorded."""
        seeds = {run.seed for run in self.runs}
        return None if None in seeds else len(seeds)

    @property
    def on_segments(self) -> bool:
        """True if the models rank graphs by their segments."""
        return bool(self.runs[0].spec.get("partition"))

    @property
    def validation(self) -> float | None:
        """Mean Kendall tau of the kept epochs on valid, as the trainings measured it; None if it is not recorded."""
        return _mean([run.tracked.best_tau for run in self.runs if run.tracked is not None])

    @property
    def length(self) -> str:
        """Epochs, steps and bound of CPU time of the trainings; empty for baselines, which have no epochs."""
        if "settings" in self.runs[0].spec:
            return ""
        bounds = [None if run.tracked is None else run.tracked.settings.get("trainer.cpu_seconds") for run in self.runs]
        bound = None if bounds[0] in (None, "None") else f"at most {float(bounds[0]):g} s of CPU time"
        epochs = [max((row["epoch"] for row in run.history), default=None) for run in self.runs]
        steps = [run.spec.get("steps") for run in self.runs]
        return ", ".join(filter(None, [_range(epochs, "epochs"), _range(steps, "steps"), bound]))

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of per_graph.csv, numbers as means over the evaluated runs."""
        return _merged([row for run in self.runs for row in run.per_graph], "split", "graph", "protocol")

    @cached_property
    def properties(self) -> list[Row]:
        """Rows of properties.csv, numbers as means over the evaluated runs."""
        return _merged([row for run in self.runs for row in run.properties], "split", "property")


@dataclass(frozen=True)
class Estimate:
    """Mean of a metric over graphs, with its interval and its runs.

    Attributes:
        mean: mean over graphs of means over runs.
        low: lower end of the 95 % interval over graphs, None for a single graph.
        high: upper end of the interval.
        runs: mean over graphs of each run that has the metric for all graphs; at least one run.
    """

    mean: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """Standard deviation over runs, None for a single run."""
        return stdev(self.runs) if len(self.runs) > 1 else None


@dataclass(frozen=True)
class Score:
    """Scores of a group on one split under one protocol.

    Attributes:
        split: the split.
        protocol: `all` or `indexed`, as in per_graph.csv.
        runs: number of evaluated runs.
        graphs: number of graphs that all of these runs have ranked.
        left_out: number of other graphs.
        estimates: estimates by metric, without metrics that no run has for every graph.
        noise_ceiling: mean over the ranked graphs, None if the ceiling of one graph is unknown.
    """

    split: str
    protocol: str
    runs: int
    graphs: int
    left_out: int
    estimates: Mapping[str, Estimate]
    noise_ceiling: float | None


def _settings(run: Run) -> dict[str, str]:
    """Return the settings that distinguish a run, without its seed; its place if the configuration is not recorded."""
    data = {"data": str(run.spec.get("data"))}
    if run.tracked is None:
        return {**data, "run": run.place}
    return data | {key: value for key, value in run.tracked.settings.items() if not key.startswith(_IGNORED)}


def group_runs(runs: Sequence[Run]) -> dict[Collection, list[Group]]:
    """Return the groups of each collection, in the order of the runs."""
    members: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        key = (str(run.collection), run.method, *sorted(_settings(run).items()))
        members.setdefault(key, []).append(run)
    styles: dict[str, int] = {}
    groups: dict[Collection, list[Group]] = {}
    for equal in members.values():
        first = equal[0]
        others = [other[0] for other in members.values() if other is not equal]
        label = _label(
            first, [one for one in others if (one.collection, one.method) == (first.collection, first.method)]
        )
        group = Group(label, styles.setdefault(label, len(styles)), tuple(equal))
        groups.setdefault(first.collection, []).append(group)
    return groups


def _label(run: Run, others: Sequence[Run]) -> str:
    """Return the method, with the settings that distinguish the run from others of this method."""
    own, rest = _settings(run), [_settings(other) for other in others]
    differing = [key for key in own if any(other.get(key) != own[key] for other in rest)]
    return f"{run.method} ({', '.join(f'{key}={own[key]}' for key in differing)})" if differing else run.method


def interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of a mean over graphs, None for fewer than two graphs.

    The ends are percentiles of 2,000 bootstrap resamples from a fixed seed.

    Args:
        values: (graphs,) a metric.
    """
    if len(values) < 2:
        return None
    from scipy.stats import bootstrap

    ends = bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH // len(values)),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(ends.low), float(ends.high)


def scores(group: Group) -> list[Score]:
    """Return the scores on each evaluated split and protocol, in the order of the splits."""
    places = {(row["split"], row["protocol"]) for row in group.rows}
    return [_score(group, *place) for place in sorted(places, key=lambda place: (SPLITS.index(place[0]), place[1]))]


def _score(group: Group, split: str, protocol: str) -> Score:
    """Return scores on the graphs that all runs have ranked, so that runs are comparable."""
    found = [
        {row["graph"]: row for row in run.per_graph if (row["split"], row["protocol"]) == (split, protocol)}
        for run in group.runs
    ]
    tables = [table for table in found if table]
    graphs = dict.fromkeys(name for table in tables for name in table)
    ranked = [
        name for name in graphs if all(name in table and table[name]["kendall_tau"] is not None for table in tables)
    ]
    estimates = {}
    for metric in metric_names(group.collection.kind) if ranked else ():
        columns: list[list[Any]] = [[table[name].get(metric) for name in ranked] for table in tables]
        if known := [column for column in columns if None not in column]:
            values = np.mean(np.array(known), axis=0)
            low, high = interval(values) or (None, None)
            estimates[metric] = Estimate(float(values.mean()), low, high, tuple(map(fmean, known)))
    ceilings: list[Any] = [_mean([table[name]["noise_ceiling"] for table in tables]) for name in ranked]
    ceiling = fmean(ceilings) if ceilings and None not in ceilings else None
    return Score(split, protocol, len(tables), len(ranked), len(graphs) - len(ranked), estimates, ceiling)


@dataclass(frozen=True)
class Cost:
    """Cost of a group: means over the runs that recorded it, None if no run did.

    Attributes:
        seconds: seconds of all epochs, validation included.
        step_seconds: seconds of one step.
        parameters: number of trained parameters.
        step_memory_bytes: largest memory of a training step; see `hlorank.training.step_memory`.
    """

    seconds: float | None
    step_seconds: float | None
    parameters: float | None
    step_memory_bytes: float | None


def cost(group: Group) -> Cost:
    """Return the cost of a group."""
    tracked = [run.tracked for run in group.runs if run.tracked is not None]
    return Cost(
        seconds=_mean([one.seconds for one in tracked]),
        step_seconds=_mean([one.step_seconds for one in tracked]),
        parameters=_mean([one.parameters for one in tracked]),
        step_memory_bytes=_mean([one.step_memory_bytes for one in tracked]),
    )


def _merged(rows: Sequence[Row], *keys: str) -> list[Row]:
    """Merge rows that agree in some columns, with means over those that have a number."""
    equal: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        equal.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [{name: _joined([row.get(name) for row in some]) for one in some for name in one} for some in equal.values()]


def _joined(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return fmean(known) if known and isinstance(known[0], float) else next(iter(known), None)


def _range(values: Sequence[float | None], name: str) -> str | None:
    """Return the range of numbers as text, None without a known one."""
    if not (known := [value for value in values if value is not None]):
        return None
    low, high = min(known), max(known)
    return f"{low:,.0f} {name}" if low == high else f"{low:,.0f} to {high:,.0f} {name}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

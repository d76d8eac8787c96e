"""Results of one graph: its row of per_graph.csv, points of the plot of ranks, and properties that explain errors.

docs/reference/metrics.md defines the columns of the tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank import metrics as measures
from hlorank.data.collection import Kind, Split
from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.data.graph import Int64
from hlorank.datasets.graphs import GraphView
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.featurize.tile_columns import tile_names
from hlorank.files import DataError
from hlorank.hlo.node_features import OPCODES
from hlorank.metrics import Float64

SLOWDOWN_AT: dict[Kind, tuple[int, ...]] = {"layout": (1, 5, 10, 100), "tile": (1, 5, 10)}
PER_GRAPH, PREDICTIONS, PROPERTIES = "per_graph.csv", "predictions.csv", "properties.csv"
PREDICTIONS_PER_GRAPH = 200
PREDICTION_COLUMNS = ("split", "graph", "configuration", "predicted_rank", "measured_rank")
PROPERTY_COLUMNS = ("split", "property", "effect", "families", "agreeing", "graphs")
ANALYSED = 500
"""Configurations of a graph whose pairs are counted: 124,750 pairs."""
WRONG = ("wrong_below_1", "wrong_1_to_2", "wrong_2_to_4", "wrong_above_4")
"""Shares of pairs by the noise widths between their runtimes, in per_graph.csv."""

Row = dict[str, Any]
"""Row of a table, by column; None where a value is unknown."""

_WITHHELD = "labels withheld"
_BOUNDS = (*(f"[{i}]" for i in range(LAYOUT_DIMS)), " sum", " product")
_OFFICIAL = [f"{part} bounds{place}" for part in ("kernel", "output", "input") for place in _BOUNDS]
_WIDTHS = (1, 2, 4)
_MIN_CONFIGURATIONS = 10  # of a graph; correlations of fewer are chance
_CONSTANT = 1e-9  # share of the variance of a property that the score leaves
_NAMES = {number: name for name, number in OPCODES.items()}


def metric_names(kind: Kind) -> list[str]:
    """Return the keys of `rank_metrics`, in order."""
    return ["kendall_tau", "repeat_ceiling", "opa", *(f"slowdown_{k}" for k in SLOWDOWN_AT[kind]), "kaggle"]


def per_graph_columns(kind: Kind) -> list[str]:
    """Return the columns of per_graph.csv."""
    identity = ["split", "graph", "family", "protocol", "nodes", "configurations", "distinct"]
    noise = ["split_half_tau", "noise_ceiling", "noise_width"]
    return [*identity, *metric_names(kind), *noise, "wrong", *WRONG, "note"]


def rank_metrics(kind: Kind, row_of: Int64, score: Float64, label: Float64) -> dict[str, float]:
    """Return all metrics of one graph's ranking, whose labels must have at least two different values."""
    tau = measures.kendall_tau(score, label)
    slowdown = {f"slowdown_{k}": measures.top_k_slowdown(score, label, k) for k in SLOWDOWN_AT[kind]}
    return {
        "kendall_tau": tau,
        "repeat_ceiling": measures.repeat_ceiling(np.unique(row_of, return_inverse=True)[1], label),
        "opa": measures.ordered_pair_accuracy(score, label),
        **slowdown,
        "kaggle": 1.0 - slowdown["slowdown_5"] if kind == "tile" else tau,
    }


def report_graph(
    kind: Kind, split: Split, graph: GraphFeatures | GraphView, scores: Float64, listed: Int64 | None = None
) -> Row:
    """Return a graph's row of per_graph.csv, over all configurations or over the `listed` ones, (listed,) with repeats.

    `scores` are (configurations,), larger = slower, equal for repeated configurations. Metrics and errors are None if
    labels are withheld or all runtimes are equal; noise ceiling and width if nothing was measured twice.
    """
    rows = np.arange(len(graph.row_of)) if listed is None else listed
    row_of, label = graph.row_of[rows], graph.label[rows]
    distinct, repeated = len(np.unique(row_of)), len(rows) - len(np.unique(rows))
    rankable, half = bool(label.min() < label.max()), graph.split_half_tau
    notes = {
        _WITHHELD: graph.withheld,
        "fewer than two distinct runtimes": not graph.withheld and not rankable,
        "one distinct configuration": distinct == 1,
        f"{repeated} of {len(rows)} listed indices are repeats": repeated > 0,
    }
    row = dict.fromkeys(per_graph_columns(kind)) | {
        "split": split,
        "graph": graph.name,
        "family": graph.family,
        "protocol": "all" if listed is None else "indexed",
        "nodes": len(graph.opcode),
        "configurations": len(rows),
        "distinct": distinct,
        "split_half_tau": half,
        "noise_ceiling": None if half is None else measures.noise_ceiling(half),
        "note": "; ".join(note for note, holds in notes.items() if holds),
    }
    if rankable:
        shown = subsample(label, ANALYSED)
        row["noise_width"] = width = None if half is None else noise_width(label[shown], half)
        row |= rank_metrics(kind, row_of, scores[rows], label) | wrong_pairs(scores[rows][shown], label[shown], width)
    return row


def predictions(split: Split, graph: GraphFeatures, scores: Float64) -> list[Row]:
    """Return rows of predictions.csv: the ranks of at most 200 configurations as shares, 0 = fastest, 1 = slowest."""
    from scipy.stats import rankdata

    shown = subsample(graph.label, PREDICTIONS_PER_GRAPH)
    last = len(graph.label) - 1
    ranks = (((rankdata(values) - 1) / last)[shown].round(5).tolist() for values in (scores, graph.label))
    rows = zip(shown.tolist(), *ranks, strict=True)
    return [dict(zip(PREDICTION_COLUMNS, (split, graph.name, *row), strict=True)) for row in rows]


def check_scores(scores: Float64, key: str, count: int, noun: str) -> Float64:
    """Return scores that are one finite number for each of `count` configurations; `key` and `noun` are for errors."""
    if scores.shape != (count,):
        raise DataError(key, f"shape ({count},), one for each {noun}", scores.shape)
    if not np.isfinite(scores).all():
        place = int(np.argmin(np.isfinite(scores)))
        raise DataError(key, "finite numbers", f"{scores[place]} for {noun} {place}")
    return scores


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None without values or if a value is unknown."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def mean_metrics(kind: Kind, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the metrics of a split for metrics.json: means over ranked graphs, None without any, and counts."""

    def means(protocol: str) -> dict[str, Any]:
        listed = [row for row in rows if row["protocol"] == protocol]
        ranked = [row for row in listed if row["kendall_tau"] is not None]
        withheld = sum(row["note"].startswith(_WITHHELD) for row in listed)
        counts = {"graphs": len(ranked), "skipped": len(listed) - len(ranked) - withheld, "withheld": withheld}
        return counts | {name: _mean([row[name] for row in ranked]) for name in (*metric_names(kind), "noise_ceiling")}

    indexed = {"indexed": means("indexed")} if any(row["protocol"] == "indexed" for row in rows) else {}
    return means("all") | indexed


def properties(graph: GraphFeatures, rows: Int64, spec: FeatureSpec) -> dict[str, Float64]:
    """Return the properties of distinct configurations, (rows,) numbers by name, in words of the compiler.

    Columns of tiles that have the order of another column within a kernel, and zeros of layouts, are left out.
    """
    configurations = graph.configurations
    if isinstance(configurations, LayoutFeatures):
        opcodes = graph.opcode[configurations.node_ids]
        names = ["unknown", *(_NAMES.get(opcode, f"opcode {opcode}") for opcode in spec.opcodes.tolist())]
        of_opcodes = (_layouts(names[opcode], configurations, rows, opcodes == opcode) for opcode in np.unique(opcodes))
        return {name: values for found in of_opcodes for name, values in found.items() if values.any()}
    assert spec.tile_columns is not None  # of tiles
    columns = [*_OFFICIAL, *tile_names(spec.options.derived)]
    kept = (columns[column] for column in spec.tile_columns.columns.tolist())
    found = zip(kept, configurations.feat[rows].T.astype(np.float64), strict=True)
    return {name: values for name, values in found if not name.endswith("/ dims") and not name.startswith("log st")}


def _layouts(opcode: str, configurations: LayoutFeatures, rows: Int64, nodes: NDArray[np.bool_]) -> dict[str, Float64]:
    """Return the properties of the nodes of one opcode."""
    codes = configurations.codes[rows][:, nodes]
    shape = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)
    book = configurations.codebook.reshape(shape)
    rank = (book >= 0).sum(axis=2)
    elements = np.where(rank > 0, np.maximum(configurations.sizes.reshape(shape), 1).prod(axis=2, dtype=np.float64), 0)
    found = {f"{opcode} moved": configurations.costs[:, 0].astype(np.float64)[codes].sum(axis=1)}
    for place, tensor in enumerate(LAYOUT_TENSORS):
        last = rank[:, place] - book[:, place, 0]  # 1 where the last dimension is contiguous
        for back in range(1, LAYOUT_DIMS + 1):
            having = np.where(last == back, elements[:, place], 0)
            found[f"{opcode} {tensor} minor -{back}"] = having[codes].sum(axis=1)
    return found


def subsample(label: Float64, count: int) -> Int64:
    """Return at most `count` configurations, from the fastest to the slowest, evenly spaced in the measured ranking."""
    last = len(label) - 1
    return measures.ranking(label)[np.linspace(0, last, min(last + 1, count)).astype(np.int64)]


def noise_width(label: Float64, tau_half: float) -> float:
    """Estimate the standard deviation of the noise in the logarithm of the ratio of two measured runtimes.

    If all measurements give a pair the log ratio d, its two halves give d + e and d - e, where e is distributed as the
    noise of d, and agree on the order if |e| < |d|. The result is the width that gives `tau_half`, and for a tau of 1
    that of half a pair in another order. At least two labels differ.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    first, second = np.triu_indices(len(label), 1)
    apart = np.abs(np.log(label[first] / label[second]))
    apart = apart[apart > 0]
    tau = np.clip(tau_half, -0.99, 1 - 1 / len(apart))
    low, high = np.log(apart.min() / 40), np.log(apart.max() * 1000)  # a tau of 1, and of less than -0.99
    return float(np.exp(brentq(lambda log_s: (4 * ndtr(apart / np.exp(log_s)) - 3).mean() - tau, low, high)))


def wrong_pairs(score: Float64, label: Float64, width: float | None) -> dict[str, float]:
    """Return `wrong`, the share of pairs in the wrong order, and with a noise width its parts `WRONG`."""
    first, second = np.triu_indices(len(label), 1)
    apart = np.log(label[first] / label[second])
    different = apart != 0
    order = np.sign(score[first] - score[second]) * np.sign(apart)
    wrong = np.where(different, (1 - order) / 2, 0) / different.sum()
    shares = {"wrong": float(wrong.sum())}
    if width is not None:
        parts = np.bincount(np.digitize(np.abs(apart) / width, _WIDTHS), wrong, minlength=len(WRONG))
        shares |= dict(zip(WRONG, parts.tolist(), strict=True))
    return shares


def partial_correlations(properties: Mapping[str, Float64], score: Float64, label: Float64) -> dict[str, float]:
    """Return the partial Spearman correlation of each property, (configurations,), and the runtime, given the score.

    The ranks of both are reduced by what is linear in the ranks of the score. Properties that are constant or follow
    from the score are left out, and all of them for fewer than ten configurations.
    """
    from scipy.stats import rankdata

    if len(label) < _MIN_CONFIGURATIONS:
        return {}
    ranks = rankdata(np.stack([score, label, *properties.values()]), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    scored = ranks[0] / (np.linalg.norm(ranks[0]) or 1)
    rest = ranks[1:] - np.outer(ranks[1:] @ scored, scored)
    norms = np.linalg.norm(rest, axis=1)
    known = norms > _CONSTANT * len(label) ** 1.5
    rest[known] /= norms[known, None]
    found = zip(properties, known[1:], rest[1:] @ rest[0], strict=True)
    return {name: float(value) for name, varies, value in found if varies and known[0]}


def misjudged_properties(graph: GraphFeatures, scores: Float64, spec: FeatureSpec) -> dict[str, float]:
    """Return the partial correlations of the properties of a graph's configurations."""
    shown = subsample(graph.label, ANALYSED)
    return partial_correlations(properties(graph, graph.row_of[shown], spec), scores[shown], graph.label[shown])


def mean_effects(graphs: Sequence[tuple[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return rows of properties.csv, without the split, of family and correlations of graphs, the largest first."""
    by_property: dict[str, dict[str, list[float]]] = {}
    for family, found in graphs:
        for name, value in found.items():
            by_property.setdefault(name, {}).setdefault(family, []).append(value)
    rows = list[dict[str, Any]]()
    for name, families in by_property.items():
        means = np.array([np.mean(values) for values in families.values()])
        effect, agreeing = float(means.mean()), int((np.sign(means) == np.sign(means.mean())).sum())
        counts = {"families": len(means), "agreeing": agreeing, "graphs": sum(map(len, families.values()))}
        rows.append({"property": name, "effect": effect, **counts})
    return sorted(rows, key=lambda row: (-abs(row["effect"]), row["property"]))

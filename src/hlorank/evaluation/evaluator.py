"""The public Evaluator: metrics of any system's scores of a collection."""

import csv
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Split
from hlorank.datasets import GraphView, load
from hlorank.evaluation.graph_report import check_scores, mean_metrics, report_graph
from hlorank.evaluation.submission import check_orders
from hlorank.evaluation.summary import metric_text
from hlorank.files import DataError, counted, csv_cell, fingerprint, sha256_file
from hlorank.metrics import interval

LEADERBOARD = ("system", "split", "graphs", "tau", "low", "high", "seeds", "data", "commit", "command")
"""Columns of a row; `low` and `high` are the 95 % interval over graphs, `data` a fingerprint of their files."""


class Metrics(dict[str, Any]):
    """Metrics of a split as a dictionary, printed as Kendall tau with its ceiling, and slowdowns."""

    def __repr__(self) -> str:
        about = f"{self.get('collection')}, mean of {counted(self.get('graphs', 0), 'graph')} of {self.get('split')}"
        ceiling = "repeat_ceiling" if self.get("noise_ceiling") is None else "noise_ceiling"
        names = {"kendall_tau": "Kendall tau", ceiling: ceiling.replace("_", " ")}
        names |= {"slowdown_1": "slowdown@1", "slowdown_5": "@5"}
        shown = (f"{name} {metric_text(self.get(key), key) or 'unknown'}" for key, name in names.items())
        return f"{about}: {', '.join(shown)}"


class Evaluator:
    """Metrics of scores of one split of a collection, as the stage evaluate computes them for hlorank's own models.

    Args:
        collection: its address, such as `layout/cpu/random`.
        root: the npz tree, as of `hlorank.datasets.load`; by default that of the package, or a download of TpuGraphs.
        split: train, valid or test.
        cache: folder of downloads, as of `hlorank.datasets.load`.

    Attributes:
        collection: the address.
        split: the split.
        configurations: the number of configurations of each graph, by name; `eval` expects scores of all of them.

    Raises:
        ConfigError: there is no such collection or split.
        DataError: `root` does not have the collection, the split has no graphs, or a file is damaged.
        OSError: as of `hlorank.datasets.load`.
    """

    def __init__(
        self, collection: str, root: str | Path | None = None, split: Split = "test", cache: str | Path | None = None
    ) -> None:
        if split not in SPLITS:
            raise ConfigError(f"split={split!r}: expected one of {', '.join(get_args(Split))}")
        data = load(collection, root, labels=True, cache=cache)
        self.collection, self.split, self._data = data.collection, split, data
        # What is read of the graphs is kept, for evaluations during a training.
        self._graphs: dict[str, GraphView] = {graph.name: graph for graph in getattr(data, split)}
        self.configurations: dict[str, int] = {name: one.num_configurations for name, one in self._graphs.items()}
        if not self._graphs:
            found = ", ".join(f"{len(getattr(data, other))} in {other}" for other in SPLITS)
            raise DataError(split, f"at least one graph of {self.collection}", found, file=data.root)

    @property
    def expected_input_format(self) -> str:
        """Description of the argument of `eval`."""
        shown = [f'"{name}": {count:,} scores' for name, count in list(self.configurations.items())[:3]]
        return (
            f"A dictionary with the scores of each of the {len(self.configurations)} graphs of the split {self.split} "
            f"of {self.collection} by name, {{{', '.join(shown)}, ...}}.\n"
            "Scores are an array, a list or a tensor of shape (configurations,), in the order of the npz file, of "
            "finite numbers.\n"
            "A lower score means faster, so predicted runtimes are scores; scores are only compared inside one graph."
        )

    def eval(self, scores: Mapping[str, ArrayLike], file: Path | None = None) -> Metrics:
        """Compute the metrics of scores; docs/reference/metrics.md defines them.

        Args:
            scores: `expected_input_format` describes them.
            file: the file that they were read from, which may name the order of configurations that it is of.

        Returns:
            The values of one split of metrics.json: `graphs` (ranked), `skipped`, `withheld`, and means over the ranked
            graphs, None without any: kendall_tau, repeat_ceiling, opa, slowdown_<K>, kaggle and noise_ceiling. In
            addition collection, split, and `per_graph`, the rows of per_graph.csv as dictionaries; their metrics are
            None where labels are withheld, as in the official test files, or all runtimes are equal.

        Raises:
            DataError: `scores` is no mapping, or the scores of a graph are missing, of another number, NaN or infinite,
                or of an unknown graph, or `file` names another order than that of the npz files.
        """
        if not isinstance(scores, Mapping):
            raise DataError("scores", "a mapping of the names of graphs to their scores", type(scores).__name__)
        self._check_graphs(scores)
        if file is not None:
            check_orders(file, self.collection, self._graphs.values())
        kind, rows = self.collection.kind, []
        for name, count in self.configurations.items():
            key = f"scores of {name}"
            checked = check_scores(_as_array(scores[name], key), key, count, "configuration")
            rows.append(report_graph(kind, self.split, self._graphs[name], checked))
        about = {"collection": str(self.collection), "split": self.split}
        return Metrics({**about, **mean_metrics(kind, rows), "per_graph": rows})

    def row(self, system: str, result: Metrics, command: str) -> str:
        """Return the result of a system of one seed as a line of leaderboard/, with the commit of the current folder.

        Raises:
            DataError: no graph was ranked, as of a split whose labels are withheld.
        """
        taus = [graph["kendall_tau"] for graph in result["per_graph"] if graph["kendall_tau"] is not None]
        if not taus:
            raise DataError("--row", "a split with labels", f"{self.split}, whose labels are withheld")
        figures = (np.mean(taus), *interval(np.array(taus)))
        data = fingerprint({name: sha256_file(graph.path) for name, graph in self._graphs.items()})
        git, commit = ["git", "rev-parse", "--short=9", "HEAD"], ""
        with suppress(OSError):  # no git
            commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()  # noqa: S603 - own words
        shown = ["" if figure is None else f"{figure:.3f}" for figure in figures]
        cells = [system, self.split, len(taus), *shown, 1, data, commit, command]
        csv.writer(line := StringIO(), lineterminator="\n").writerow(map(csv_cell, cells))
        return line.getvalue()

    def _check_graphs(self, scores: Mapping[str, ArrayLike]) -> None:
        place = f"{self.split} of {self.collection}"
        if unknown := sorted(scores.keys() - self.configurations.keys()):
            others = [split for split in SPLITS if unknown[0] in getattr(self._data, split).names]
            remedy = f"{unknown[0]} is in the split {others[0]}" if others else "leave the others out"
            raise DataError("graphs", f"only graphs of the split {place}; {remedy}", ", ".join(unknown))
        if missing := sorted(self.configurations.keys() - scores.keys()):
            expected = f"scores of all {len(self.configurations)} graphs of the split {place}; add the missing ones"
            raise DataError("graphs", expected, f"none of {', '.join(missing)}")


def _as_array(values: Any, key: str) -> NDArray[np.float64]:
    """Return numbers as float64; tensors may need gradients, and be on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(key, "an array of numbers", type(values).__name__) from None

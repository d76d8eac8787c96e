"""Files of scores: CSV, npz, or a submission of the Kaggle competition "Google - Fast or Slow?".

A submission has rankings of graphs with withheld labels. The releases of TpuGraphs hold the same configurations in
different orders: `<file>.orders.json` next to a file says which order its indices refer to, <collection>:<graph> ->
`order_fingerprint`, as in the MANIFEST.json of fetch.
"""

import csv
import logging
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import TPU_SOURCES, Collection
from hlorank.data.configurations import order_fingerprint
from hlorank.data.npz import NpzFile
from hlorank.datasets.graphs import GraphView
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.files import DataError, atomic_path, open_file, read_json, write_json

log = logging.getLogger(__name__)

HEADER = "ID,TopConfigs"
TILE_TOP = 5

Scores = dict[str, NDArray[np.float64]]
"""Scores of graphs by name, (configurations,) float64 each, lower = faster."""

_COLUMNS = ("graph", "configuration", "score")
_INDICES = re.compile(r"[0-9]{1,18}(;[0-9]{1,18})*")  # of at most 18 digits, which int64 holds
_UNSAFE = re.compile(r'[,"\s]')
_SHOWN = 60
_ROWS, _ORDERS = 256, ".orders.json"


def graph_order(graph: GraphFeatures | GraphView) -> str:
    """Return the `order_fingerprint` of a graph's configurations; features must be of layouts."""
    if isinstance(graph, GraphView):
        starts = range(0, graph.num_configurations, _ROWS)
        return order_fingerprint(graph.configurations(slice(start, start + _ROWS)) for start in starts)
    parts, rows = graph.configurations, np.array_split(graph.row_of, 1 + len(graph.row_of) // _ROWS)
    assert isinstance(parts, LayoutFeatures)
    return order_fingerprint(parts.codebook[parts.codes[row]] for row in rows)


def check_orders(path: Path, collection: Collection, graphs: Iterable[GraphFeatures | GraphView]) -> None:
    """Refuse a file that names another order than a graph has; warn once of TpuGraphs graphs that it does not name."""
    beside, unnamed = path.with_name(path.name + _ORDERS), 0
    named = read_json(beside) if beside.is_file() else {}
    for graph in graphs:
        if (stated := named.get(f"{collection}:{graph.name}")) is None:
            unnamed += collection.source in TPU_SOURCES
        elif stated != (order := graph_order(graph)):
            expected = f"configurations in the order {order}, as here; use the release of the data that the file is of"
            raise DataError(graph.name, expected, f"{stated} in {path.name}{_ORDERS}", file=path)
    if unnamed:
        log.warning("%s: names no order of configurations, in which releases of TpuGraphs differ (see docs)", path)


@contextmanager
def open_submission(path: Path, collection: Collection) -> Iterator[Callable[..., None]]:
    """Yield a function that adds a graph's (configurations,) ranking to a submission, which then replaces `path`."""
    added, orders = set[str](), dict[str, str]()
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{HEADER}\n")

        def add(graph: str, ranking: NDArray[np.int64], order: str | None = None) -> None:
            row_id = f"{collection}:{graph}"
            kept = ranking[:TILE_TOP] if collection.kind == "tile" else ranking
            if _UNSAFE.search(row_id):
                raise DataError("graph", "a name without commas, quotes and blanks", repr(graph))
            _check(row_id, kept, added)
            file.write(f"{row_id},{';'.join(map(str, kept.tolist()))}\n")
            orders.update({row_id: order} if order else {})

        yield add
    (beside := path.with_name(path.name + _ORDERS)).unlink(missing_ok=True)
    if orders:
        write_json(beside, orders)


def _check(row_id: str, indices: NDArray[np.int64], seen: set[str]) -> None:
    """Add a row to `seen`, unless it has wrong indices or an ID that was seen before."""
    count = len(indices)
    if row_id in seen:
        raise DataError(row_id, "each ID once", "it again; leave one of its rows out")
    if row_id.startswith("tile") and not len(np.unique(indices)) == count <= TILE_TOP:
        raise DataError(row_id, f"at most {TILE_TOP} different indices", str(indices.tolist())[:_SHOWN])
    if row_id.startswith("layout") and not np.array_equal(np.sort(indices), np.arange(count)):
        raise DataError(row_id, f"each of 0..{count - 1} once", str(indices.tolist())[:_SHOWN])
    seen.add(row_id)


def read_submission(path: Path) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield ID and indices, int64, of each row: for layouts all of 0..n-1 once, for tiles up to five different ones."""
    seen = set[str]()
    with path.open(encoding="utf-8", errors="replace") as file:
        if (header := file.readline().rstrip("\n")) != HEADER:
            raise DataError("line 1", f"the header {HEADER}", repr(header[:_SHOWN]), file=path)
        for number, line in enumerate(file, start=2):
            row_id, _, text = line.rstrip("\n").partition(",")
            if not row_id.startswith(("layout:", "tile:")) or not _INDICES.fullmatch(text):
                expected = "layout:<source>:<search>:<graph> or tile:<source>:<graph>, then indices as in ,3;0;1"
                raise DataError(f"line {number}", expected, repr(line.rstrip("\n")[:_SHOWN]), file=path)
            indices = np.array([int(index) for index in text.split(";")], dtype=np.int64)
            try:
                _check(row_id, indices, seen)
            except DataError as error:
                raise error.in_file(path) from None
            yield row_id, indices


def read_scores(path: Path, collection: Collection) -> Scores:
    """Read a file of scores, by its suffix and its header.

    It is `.npz`, with an array for each graph under its name; or CSV with the columns graph, configuration (its index
    in the npz file of the graph) and score, in any order of rows; or a submission of layouts, whose rankings become
    scores 0, 1, ..., and whose rows of other collections are ignored.
    """
    if path.suffix == ".npz":
        with NpzFile(path) as file:
            return {name: file.read(name).astype(np.float64) for name in sorted(file.keys)}
    with open_file(path, "a CSV or npz file of scores") as opened:
        header = opened.readline(100).decode("utf-8-sig", errors="replace").strip()
    if header == HEADER:
        return _read_submission_scores(path, collection)
    if tuple(header.split(",")) != _COLUMNS:
        expected = f"the header {','.join(_COLUMNS)}, or that of a submission, {HEADER}"
        raise DataError("line 1", expected, repr(header[:_SHOWN]), file=path)
    return _read_table(path)


def _read_table(path: Path) -> Scores:
    columns: dict[str, tuple[array[int], array[float]]] = defaultdict(lambda: (array("q"), array("d")))
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.reader(file)
        line = next(lines)
        try:
            for line in filter(None, lines):
                graph, configuration, score = line
                indices, scores = columns[graph]
                indices.append(int(configuration))
                scores.append(float(score))
        except (ValueError, OverflowError, csv.Error):
            expected = "the name of a graph, an index and a number, as in encoder.bt.b2.forward,0,1.5"
            raise DataError(f"line {lines.line_num}", expected, repr(",".join(line)[:_SHOWN]), file=path) from None
    found = {}
    for graph, (indices, scores) in columns.items():
        order = np.argsort(indices, kind="stable")
        index = np.array(indices)[order]
        if (wrong := np.flatnonzero(index != np.arange(len(index)))).size:
            expected = f"each configuration once, from 0 on: {wrong[0]} next"
            raise DataError(graph, expected, index[wrong[0]], file=path)
        found[graph] = np.array(scores)[order]
    return found


def _read_submission_scores(path: Path, collection: Collection) -> Scores:
    if collection.kind == "tile":
        expected = f"scores of all tiles (a CSV with the columns {', '.join(_COLUMNS)})"
        raise DataError("file", expected, "a submission, which has five tiles of each kernel", file=path)
    prefix = f"{collection}:"
    rows = ((row_id, ranking) for row_id, ranking in read_submission(path) if row_id.startswith(prefix))
    return {row_id.removeprefix(prefix): np.argsort(ranking).astype(np.float64) for row_id, ranking in rows}

"""Files of scores: CSV, npz, or a submission in the form of Kaggle."""

from __future__ import annotations

import csv
from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Collection
from hlorank.data.npz import NpzFile
from hlorank.evaluation import submission
from hlorank.files import DataError, open_file

HEADER = ("graph", "configuration", "score")
_FORM = f"the header {','.join(HEADER)}, or that of a submission, {submission.HEADER}"

Scores = dict[str, NDArray[np.float64]]
"""Scores of graphs by name, (configurations,) float64 each, lower = faster."""


def read_scores(path: Path, collection: Collection) -> Scores:
    """Read a file of scores, by its suffix and its header.

    Args:
        path: `.npz`, an array for each graph under its name; else CSV: the columns graph, configuration (its index in
            the npz file of the graph) and score, in any order of rows; or a submission of layouts, whose rankings
            become scores 0, 1, ..., and whose rows of other collections are ignored.
        collection: the collection of the scores.

    Raises:
        DataError: the file is none of these, or does not have each configuration of a graph once; or it is a submission
            of tiles, which has five configurations of each kernel only.
    """
    if path.suffix == ".npz":
        with NpzFile(path) as file:
            return {name: file.read(name).astype(np.float64) for name in sorted(file.keys)}
    with open_file(path, "a CSV or npz file of scores") as opened:
        header = opened.readline(100).decode("utf-8-sig", errors="replace").strip()
    if header == submission.HEADER:
        return _from_submission(path, collection)
    if tuple(header.split(",")) != HEADER:
        raise DataError("line 1", _FORM, repr(header[:60]), file=path)
    return _from_table(path)


def _from_table(path: Path) -> Scores:
    columns: dict[str, tuple[array[int], array[float]]] = defaultdict(lambda: (array("q"), array("d")))
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.reader(file)
        line = next(lines)
        try:
            for line in lines:
                if not line:  # a blank line
                    continue
                graph, configuration, score = line
                indices, scores = columns[graph]
                indices.append(int(configuration))
                scores.append(float(score))
        except (ValueError, OverflowError, csv.Error):
            expected = "the name of a graph, an index and a number, as in encoder.bt.b2.forward,0,1.5"
            raise DataError(f"line {lines.line_num}", expected, repr(",".join(line)[:60]), file=path) from None
    found = {}
    for graph, (indices, scores) in columns.items():
        index = np.array(indices)
        order = np.argsort(index, kind="stable")
        if (wrong := np.flatnonzero(index[order] != np.arange(len(index)))).size:
            at, there = int(wrong[0]), int(index[order][wrong[0]])
            expected = f"each index once, from 0 to the highest, {max(index.max(), 0)}"
            found_instead = f"no {at}" if there > at else f"{there}" if there < 0 else f"{there} twice"
            raise DataError(graph, expected, found_instead, file=path)
        found[graph] = np.array(scores)[order]
    return found


def _from_submission(path: Path, collection: Collection) -> Scores:
    if collection.kind == "tile":
        expected = f"scores of all tiles (a CSV with the columns {', '.join(HEADER)})"
        raise DataError("file", expected, "a submission, which has five tiles of each kernel", file=path)
    prefix, found = f"{collection}:", {}
    for row_id, ranking in submission.read_submission(path):
        if row_id.startswith(prefix):
            scores = np.empty(len(ranking))
            scores[ranking] = np.arange(len(ranking))
            found[row_id.removeprefix(prefix)] = scores
    return found

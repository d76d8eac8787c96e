"""The request of the HTTP server: what a client sends for each graph, and how the server reads it, within limits."""

from __future__ import annotations

import base64
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from hlorank.config import ConfigError
from hlorank.data.npz import NpzFile
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import DataError
from hlorank.hlo.extra import extra_path
from hlorank.serving.inputs import CHOICES, Input, Reader

TOP = 10
"""Configurations of a graph that the answer holds, unless the request says how many."""
COLUMNS = ("npz", "graph", "extra")
"""What a request holds for a graph: its npz file in base64, its name, and its `.extra.npz` in base64; all but the first
may be left out."""

_LAYOUTS = "node_config_feat"


def request(graphs: Sequence[Path], top: int = TOP) -> dict[str, Any]:
    """The body of a request, as JSON values.

    Args:
        graphs: npz files; `<graph>.extra.npz` beside one goes along.
        top: configurations of each graph that the answer holds.
    """
    records = []
    for path in graphs:
        record = {"npz": _encoded(path), "graph": path.stem}
        if (extra := extra_path(path)).is_file():
            record["extra"] = _encoded(extra)
        records.append(record)
    return {"dataframe_records": records, "params": {"top": top}}


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@dataclass(frozen=True)
class Limits:
    """What the server takes; the variable HLORANK_MAX_<NAME>, such as HLORANK_MAX_NODES, sets another bound.

    Attributes:
        requests: that a worker reads or answers at a time.
        request_bytes: of the body.
        graphs: of a request.
        top: configurations that an answer may hold, of all graphs together.
        configurations: of a graph.
        nodes: of a graph.
        edges: of a graph.
        choices: layouts of a graph's configurations, one for each configurable node of each.
        unpacked_bytes: of the other arrays of a graph, together.
    """

    requests: int = 8
    request_bytes: int = 2**26
    graphs: int = 1000
    top: int = 200_000
    configurations: int = 200_000
    nodes: int = 100_000
    edges: int = 1_000_000
    choices: int = CHOICES
    unpacked_bytes: int = 2**28

    @classmethod
    def of_environment(cls) -> Self:
        """The bounds that the environment sets, and the usual ones for the rest.

        Raises:
            ConfigError: a variable holds no positive number.
        """
        bounds = {}
        for field in fields(cls):
            name = f"HLORANK_MAX_{field.name.upper()}"
            if text := os.environ.get(name):
                if not text.isdecimal() or int(text) == 0:
                    raise ConfigError(f"{name}={text}: expected a positive whole number")
                bounds[field.name] = int(text)
        return cls(**bounds)

    def check_request(self, graphs: int, top: int) -> None:
        """Refuses a request by what it asks for, before any of its graphs is decoded.

        Args:
            graphs: how many it holds.
            top: configurations of each that the answer is to hold.

        Raises:
            DataError: names what is too many, or too few.
        """
        self._check("graphs", graphs, self.graphs, "graphs", "request")
        if top < 1:
            raise DataError("top", "at least 1", top, file="params")
        self._check("top", graphs * top, self.top, "configurations of all graphs", "params")

    def check_graph(self, path: Path) -> None:
        """Refuses an npz file by the headers of its arrays, before any is read; its layouts are for `Reader` to refuse.

        Raises:
            DataError: an array has too many rows, or all but the layouts are too large, or the file is damaged.
        """
        unpacked = 0
        with NpzFile(path) as file:
            for key in sorted(file.keys):
                shape, dtype = file.header(key)
                rows = self.edges if key == "edge_index" else self.nodes
                if key.startswith("config_") or key == _LAYOUTS:
                    rows = self.configurations
                self._check(key, shape[0], rows, "rows", path)
                if key != _LAYOUTS:  # which are read in chunks
                    unpacked += math.prod(shape) * dtype.itemsize
        self._check("arrays", unpacked, self.unpacked_bytes, "bytes", path)

    @staticmethod
    def _check(key: str, found: int, most: int, what: str, place: Path | str) -> None:
        if found > most:
            raise DataError(key, f"at most {most:,} {what}", f"{found:,}", file=place)


def read_graph(npz: object, extra: object, spec: FeatureSpec, limits: Limits) -> Input:
    """Reads one graph of a request.

    Args:
        npz: the value of the column `npz`.
        extra: the value of the column `extra`; what is not text counts as left out.
        spec: what the model reads of a graph.
        limits: what is taken.

    Raises:
        DataError: names the column, the array and what is wrong with it.
    """
    with tempfile.TemporaryDirectory(prefix="hlorank-request-") as folder:
        path = Path(folder) / "graph.npz"
        parts = {path: ("npz", npz)}
        if isinstance(extra, str):
            parts[extra_path(path)] = "extra", extra
        try:
            for file, (column, text) in parts.items():
                file.write_bytes(_decoded(column, text))
                limits.check_graph(file)
            reader = Reader(spec, limits.configurations, candidates=1, seed=0, choices=limits.choices)
            (given,) = reader.read(path)
        except DataError as error:
            raise (
                error if error.file is None else error.in_file(parts.get(Path(error.file), ("extra", None))[0])
            ) from None
    return given


def _decoded(column: str, text: object) -> bytes:
    expected = "the bytes of an npz file in base64"
    if not isinstance(text, str):
        raise DataError(column, expected, type(text).__name__)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DataError(column, expected, error) from None

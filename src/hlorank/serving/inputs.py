"""Files that a model is to rank: npz files, tuning records, and dumps of a compiler, for which candidates are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hlorank.collect import search
from hlorank.collect.layout import LayoutSpace, layout_space
from hlorank.collection import Kind, NpzFile, read_graph
from hlorank.featurize.spec import FeatureSpec
from hlorank.graph import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.hlo.extra import Extra, extra_features, read_extra
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.io import DataError

_KEY: dict[Kind, str] = {"layout": "node_config_feat", "tile": "config_feat"}


@dataclass(frozen=True, eq=False)
class Input:
    """A graph to rank.

    Attributes:
        file: that it comes from.
        measured: the graph, its configurations, and their runtimes, all 0 where they are unknown.
        extra: its extra features of the protobuf, where the model needs them.
        drawn: what the candidates configure that were drawn for it; None where the file holds its configurations.
    """

    file: Path
    measured: MeasuredGraph
    extra: Extra | None
    drawn: LayoutSpace | None


@dataclass(frozen=True)
class Reader:
    """Reads graphs for one model.

    Attributes:
        spec: what the model reads of a graph.
        most: configurations of a graph; a file with more is refused before they are read.
        candidates: that are drawn for a dump, at most; the first one is the compiler's default.
        seed: of the draw, in which each graph has random numbers of its own.
    """

    spec: FeatureSpec
    most: int
    candidates: int
    seed: int

    def read(self, path: Path) -> Iterator[Input]:
        """The graphs of a file, one at a time: an npz file holds one, a file of tuning records one for each.

        Raises:
            DataError: names the file and what is wrong with it: there is none, a folder, another kind of configurations
                than the model ranks, too many of them, extra features that are missing, or whatever `read_graph` and
                `read_records` refuse.
        """
        if path.is_dir():
            raise DataError("file", "an npz file or a protobuf", "a folder; name the files in it", file=path)
        if not path.exists():
            raise DataError("file", "an npz file or a protobuf", "no such file", file=path)
        if path.suffix == ".npz":
            yield self._npz(path)
        else:
            for record in read_records(path):
                yield self._record(record)

    def _check_count(self, key: str, count: int, path: Path) -> None:
        if count > self.most:
            raise DataError(key, f"at most {self.most:,} configurations of a graph", f"{count:,}", file=path)

    def _check_kind(self, key: str, kind: Kind, path: Path) -> None:
        if kind != self.spec.kind:
            expected = f"{self.spec.kind} configurations, as the model of {self.spec.collection} ranks"
            raise DataError(key, expected, f"{kind} configurations", file=path)

    def _npz(self, path: Path) -> Input:
        with NpzFile(path) as file:
            held = [(kind, key) for kind, key in _KEY.items() if key in file.keys]
            if len(held) == 1:  # all else is for `read_graph` to refuse
                ((kind, key),) = held
                self._check_kind(key, kind, path)
                self._check_count(key, file.header(key)[0][0], path)
        measured = read_graph(path, self.spec.kind)
        extra = read_extra(path, measured.graph.nodes) if self.spec.options.protobuf else None
        return Input(path, measured, extra, None)

    def _record(self, record: Record) -> Input:
        path, drawn = record.path, None
        if record.tuning is not None:
            if record.kind is not None:
                self._check_kind(f"{record.place}runs", record.kind, path)
            self._check_count(f"{record.place}runs", len(record.tuning.runs), path)
        elif self.spec.kind == "tile":
            expected = "a tuning record or an npz file, with tiles to rank"
            raise DataError("file", expected, "a compiler's dump, which holds none", file=path)
        measured, program = featurize(record, self.spec.kind)
        if record.tuning is None:
            drawn = layout_space(record.module)
            measured = self._with_candidates(measured, drawn)
        return Input(path, measured, extra_features(program) if self.spec.options.protobuf else None, drawn)

    def _with_candidates(self, measured: MeasuredGraph, space: LayoutSpace) -> MeasuredGraph:
        rng = np.random.default_rng([self.seed, zlib.crc32(measured.name.encode())])
        rows = search.random(space, self.candidates, rng, lambda rows: np.zeros(len(rows)))
        layouts = LayoutConfigurations.from_chunks(space.node_ids, [rows])
        unknown = Measurements(np.zeros(len(rows), dtype=np.int64))
        return MeasuredGraph(measured.name, measured.graph, layouts, unknown)

"""Files that a model is to rank: npz files, tuning records, and dumps of a compiler, for which candidates are drawn."""

from __future__ import annotations

import math
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hlorank.data.collection import Kind, read_graph
from hlorank.data.graph import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.npz import NpzFile
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import DataError
from hlorank.hlo import layout_search as search
from hlorank.hlo.extra import Extra, extra_features, read_extra
from hlorank.hlo.layout_space import LayoutSpace, layout_space
from hlorank.hlo.reader import Record, featurize, read_records

CHOICES = 2**27
"""Layouts of a graph's configurations, one for each configurable node of each, that are taken unless told otherwise;
held in memory, they are 128 MiB to 512 MiB."""

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


def _parts(path: Path) -> Iterator[Path | Record]:
    """What holds a graph each: an npz file, or the records of a protobuf."""
    expected = "an npz file or a protobuf"
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise DataError("file", expected, "a folder; name the files in it", file=path)
        if path.suffix == ".npz":
            yield path
        else:
            yield from read_records(path)
    except FileNotFoundError:
        raise DataError("file", expected, "no such file", file=path) from None
    except OSError as error:
        raise DataError("file", expected, error.strerror or error, file=path) from None


@dataclass(frozen=True)
class Reader:
    """Reads graphs for one model.

    Attributes:
        spec: what the model reads of a graph.
        most: configurations of a graph; a file with more is refused before they are read.
        candidates: that are drawn for a dump, at most; the first one is the compiler's default.
        seed: of the draw, in which each graph has random numbers of its own.
        choices: layouts of a graph's configurations, one for each configurable node of each; checked as `most` is.
    """

    spec: FeatureSpec
    most: int
    candidates: int
    seed: int
    choices: int = CHOICES

    def read(self, path: Path) -> Iterator[Input]:
        """The graphs of a file, one at a time: an npz file holds one, a file of tuning records one for each.

        After the error of one record `next` gives the one that follows.

        Raises:
            DataError: names the file and what is wrong with it: there is none, a folder, not to be read, another kind
                of configurations than the model ranks, too many of them, extra features that are missing, or whatever
                `read_graph` and `read_records` refuse.
        """
        # An error ends a generator, but no map.
        return map(self._input, _parts(path))

    def _input(self, part: Path | Record) -> Input:
        return self._record(part) if isinstance(part, Record) else self._npz(part)

    def _check_size(self, key: str, configurations: int, nodes: int, path: Path) -> None:
        """Refuses more configurations, or more configurable nodes (0 for tiles) of all of them, than are taken."""
        if configurations > self.most:
            raise DataError(key, f"at most {self.most:,} configurations of a graph", f"{configurations:,}", file=path)
        if (choices := configurations * nodes) > self.choices:
            expected = f"at most {self.choices:,} configurable nodes of all configurations"
            raise DataError(key, expected, f"{choices:,} ({configurations:,} x {nodes:,})", file=path)

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
                shape, _ = file.header(key)
                self._check_size(key, shape[0], math.prod(shape[1:2]) if kind == "layout" else 0, path)
        measured = read_graph(path, self.spec.kind)
        extra = read_extra(path, measured.graph.nodes) if self.spec.options.protobuf else None
        return Input(path, measured, extra, None)

    def _record(self, record: Record) -> Input:
        path, drawn = record.path, None
        if record.tuning is not None:
            if record.kind is not None:
                self._check_kind(f"{record.place}runs", record.kind, path)
            nodes = len(record.tuning.config_index_to_node)
            self._check_size(f"{record.place}runs", len(record.tuning.runs), nodes, path)
        elif self.spec.kind == "tile":
            expected = "a tuning record or an npz file, with tiles to rank"
            raise DataError("file", expected, "a compiler's dump, which holds none", file=path)
        measured, program = featurize(record, self.spec.kind)
        if record.tuning is None:
            drawn = layout_space(record.module)
            self._check_size("candidates", self.candidates, len(drawn.node_ids), path)
            measured = self._with_candidates(measured, drawn)
        return Input(path, measured, extra_features(program) if self.spec.options.protobuf else None, drawn)

    def _with_candidates(self, measured: MeasuredGraph, space: LayoutSpace) -> MeasuredGraph:
        rng = np.random.default_rng([self.seed, zlib.crc32(measured.name.encode())])
        rows = search.random(space, self.candidates, rng, lambda rows: np.zeros(len(rows)))
        layouts = LayoutConfigurations.from_chunks(space.node_ids, [rows])
        unknown = Measurements(np.zeros(len(rows), dtype=np.int64))
        return MeasuredGraph(measured.name, measured.graph, layouts, unknown)

"""Graphs to rank, read from files: npz files, tuning records, and compiler dumps, for which candidates are drawn."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Kind, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.npz import NpzFile
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import layout_space, random, tpu_layout_space
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.hlo.stage import TRAINED, before_layout_assignment, needs_compilation, other_backend, stage_of

MAX_CHOICES = 2**27
"""Limit of layouts of a graph (configurations times configurable nodes); in memory, they take 128 MiB to 512 MiB."""
_KEY: dict[Kind, str] = {"layout": "node_config_feat", "tile": "config_feat"}


@dataclass(frozen=True, eq=False)
class InputGraph:
    """Graph to rank.

    Attributes:
        file: the file that holds the graph.
        measured: the graph, its configurations, and their runtimes, all 0 where they are unknown.
        module: the module of the program; None for an npz file.
        stage: None if the file holds configurations, else `found`, the stage of the module, for which candidates were
            drawn; that of the modules that the model was `trained` on; `compiled`, true if the module was compiled from
            that in the file; `not_compiled`, the reason if it could not be, or None; `backend`, that of the model's
            collection, empty if unknown; and `other_backend`, the backend that dumped the module if it is another, or
            None.
    """

    file: Path
    measured: MeasuredGraph
    module: HloModuleProto | None
    stage: dict[str, Any] | None

    @property
    def drawn(self) -> bool:
        """True if the configurations are drawn candidates."""
        return self.stage is not None

    def candidates(self, option: str) -> tuple[HloModuleProto, LayoutConfigurations, str]:
        """Return module, drawn layouts and backend; a DataError names the option that needs them."""
        module, stage, configurations = self.module, self.stage, self.measured.configurations
        if module is None or stage is None or not isinstance(configurations, LayoutConfigurations):
            expected = "a program, for which candidates are drawn"
            raise DataError(option, expected, "measured configurations", file=self.file)
        return module, configurations, stage["backend"]


@dataclass(frozen=True)
class GraphReader:
    """Reader of graphs for one model.

    Attributes:
        spec: the features that the model reads.
        max_configurations: limit of configurations of a graph, checked before they are read.
        candidates: limit of candidates that are drawn for a dump; the first candidate is the compiler's default.
        seed: seed of the candidates; they depend on it and on the program, not on the name of the file.
        max_choices: limit of configurations times configurable nodes of a graph, checked before they are read.
        max_layouts: limit of distinct layouts of a graph, checked while they are read.
        compile_dumps: compile a module that `needs_compilation`; a module that cannot be compiled is read as it is.
    """

    spec: FeatureSpec
    max_configurations: int
    candidates: int
    seed: int
    max_choices: int = MAX_CHOICES
    max_layouts: int | None = None
    compile_dumps: bool = False

    def read(self, path: Path) -> Iterator[InputGraph]:
        """Read a file's graphs one at a time; after the error of a record, `next` continues with the next record."""
        # An error ends a generator, but not a map.
        return map(self._npz, [path]) if path.suffix == ".npz" else map(self._record, read_records(path))

    def _check_size(self, key: str, configurations: int, nodes: int, path: Path) -> None:
        """Refuse too many configurations, or too many choices of their configurable nodes (0 for tiles)."""
        if configurations > self.max_configurations:
            expected = f"at most {self.max_configurations:,} configurations of a graph"
            raise DataError(key, expected, f"{configurations:,}", file=path)
        if (choices := configurations * nodes) > self.max_choices:
            expected = f"at most {self.max_choices:,} configurable nodes of all configurations"
            raise DataError(key, expected, f"{choices:,} ({configurations:,} x {nodes:,})", file=path)

    def _check_kind(self, key: str, kind: Kind, path: Path) -> None:
        if kind != self.spec.kind:
            expected = f"{self.spec.kind} configurations, as the model of {self.spec.collection} ranks"
            raise DataError(key, expected, f"{kind} configurations", file=path)

    def _npz(self, path: Path) -> InputGraph:
        with NpzFile(path) as file:
            present = [(kind, key) for kind, key in _KEY.items() if key in file.keys]
            if len(present) == 1:  # `read_graph` refuses other files
                ((kind, key),) = present
                self._check_kind(key, kind, path)
                shape, _ = file.header(key)
                self._check_size(key, shape[0], math.prod(shape[1:2]) if kind == "layout" else 0, path)
        measured = read_graph(path, self.spec.kind, max_layouts=self.max_layouts)
        return InputGraph(path, measured, None, None)

    def _record(self, record: Record) -> InputGraph:
        path = record.path
        stage: dict[str, Any] | None = None
        if record.tuning is not None:
            if record.kind is not None:
                self._check_kind(f"{record.place}runs", record.kind, path)
            nodes = len(record.tuning.config_index_to_node)
            self._check_size(f"{record.place}runs", len(record.tuning.runs), nodes, path)
        elif self.spec.kind == "tile":
            expected = "a tuning record or an npz file, with tiles to rank"
            raise DataError("file", expected, "a compiler dump, which holds none", file=path)
        else:
            found = stage_of(path, record.module)
            backend = self.spec.backend
            stage = {"found": found, "trained": TRAINED, "compiled": False, "not_compiled": None, "backend": backend}
            stage["other_backend"] = other_backend(path, record.module, backend)
            if self.compile_dumps and needs_compilation(path, record.module, backend):
                layout_space(record.module)  # refuses a broken module, and one with nothing to configure, in no time
                try:
                    record = replace(record, module=before_layout_assignment(record.module, backend))
                    stage |= {"found": TRAINED, "compiled": True, "other_backend": None}
                except DataError as error:
                    stage["not_compiled"] = str(error.found)
        measured, _ = featurize(record, self.spec.kind)
        if record.tuning is None:
            space = (tpu_layout_space if self.spec.on_tpu else layout_space)(record.module)
            self._check_size("candidates", self.candidates, space.nodes, path)
            rows = random(space, self.candidates, np.random.default_rng(self.seed), lambda rows: np.zeros(len(rows)))
            drawn = LayoutConfigurations.from_chunks(space.node_ids, [rows])
            unknown = Measurements(np.zeros(len(rows), dtype=np.int64))
            measured = replace(measured, configurations=drawn, measurements=unknown)
        return InputGraph(path, measured, record.module, stage)

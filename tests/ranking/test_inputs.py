"""Graphs of files, one at a time, with candidates where a file has no configurations."""

import errno
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.npz import NpzFile
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData
from hlorank.ranking.inputs import GraphReader, InputGraph


@pytest.fixture(scope="module")
def spec(tiny_collections: Path) -> FeatureSpec:
    return FeatureStore(tiny_collections / "features/layout/synthetic/random").spec


def reader(spec: FeatureSpec, limit: int = 100, candidates: int = 9, seed: int = 0) -> GraphReader:
    return GraphReader(spec, limit, candidates, seed)


def module(*opcodes: str, rank: int = 2) -> HloModuleProto:
    """Return a chain of operations, each of which has its predecessor as operand, and if not a reshape twice."""
    made = HloModuleProto(name="m")
    computation = made.computations.add(name="main", id=1, root_id=len(opcodes))
    for number, opcode in enumerate(opcodes, start=1):
        operands = [number - 1] * (1 if opcode == "reshape" else 2) if number > 1 else []
        instruction = computation.instructions.add(opcode=opcode, id=number, operand_ids=operands)
        instruction.shape.dimensions[:] = [8] * rank
        if opcode == "dot":
            instruction.dot_dimension_numbers.lhs_batch_dimensions.extend(range(rank))
            instruction.dot_dimension_numbers.rhs_batch_dimensions.extend(range(rank))
    return made


def layouts(given: InputGraph) -> LayoutConfigurations:
    assert isinstance(given.measured.configurations, LayoutConfigurations)
    return given.measured.configurations


@pytest.mark.parametrize(("opcode", "rank", "count"), [("reshape", 2, 9), ("dot", 1, 1), ("add", 2, 0)])
def test_few_configurations_are_all(opcode: str, rank: int, count: int, spec: FeatureSpec, tmp_path: Path) -> None:
    """9: of two layouts of two dimensions, the default of the compiler, or each of two orders; 1: the default."""
    path = tmp_path / "f.pb"
    path.write_bytes(module("parameter", opcode, rank=rank).SerializeToString())
    if count == 0:
        with pytest.raises(DataError, match=r"f\.pb: no convolution, dot or reshape"):
            list(reader(spec).read(path))
    else:
        (given,) = reader(spec, candidates=100).read(path)
        assert (given.measured.name, given.file, given.drawn) == ("f", path, True)
        assert len(np.unique(layouts(given).values(), axis=0)) == len(layouts(given)) == count
        assert (layouts(given).values()[0] == -1).all()


def tuning(program: HloModuleProto, runs: int, *configurable: int, fingerprint: int = 1) -> ModuleTuningData:
    """Return a record of runs of 1,000 ns and more, the first of which leaves all layouts to the compiler."""
    record = ModuleTuningData(module=program, fingerprint=fingerprint, config_index_to_node=configurable)
    for number in range(runs):
        run = record.runs.add()
        for _ in configurable:
            run.module_config.layout_config.nodes.add().tensors.add(dims=[1, 0] if number else [])
        run.profile.compute_time_ns = 1000 + number
    return record


def test_records_are_read_one_at_a_time(spec: FeatureSpec, tmp_path: Path) -> None:
    program, path = module("parameter", "dot"), tmp_path / "all.pb"
    records = [tuning(program, runs, 1, fingerprint=runs - 1).SerializeToString() for runs in (2, 3)]
    path.write_bytes(TuningData(modules=records).SerializeToString())
    given = list(reader(spec).read(path))
    assert [(graph.measured.name, len(layouts(graph)), graph.drawn) for graph in given] == [
        ("all_1", 2, False),
        ("all_2", 3, False),
    ]
    assert given[1].measured.measurements.runtime.tolist() == [1000, 1001, 1002]
    reading = reader(spec, limit=2).read(path)
    assert next(reading).measured.name == "all_1"
    with pytest.raises(DataError, match=r"all\.pb: modules\[1\]\.runs: expected at most 2 configurations .*, found 3"):
        next(reading)


def test_configurations_of_another_kind_and_too_many_are_refused_by_the_header(
    spec: FeatureSpec, tiny_collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tiny_collections / "raw"
    layout, tile = next(raw.glob("layout/*/*/valid/*.npz")), next(raw.glob("tile/*/valid/*.npz"))
    dump = tmp_path / "dump.pb"
    dump.write_bytes(module("parameter", "dot").SerializeToString())
    tiles = FeatureStore(tiny_collections / "features/tile/synthetic").spec
    monkeypatch.setattr(NpzFile, "read", lambda *_: pytest.fail("an array was read"))
    for path, read, key, expected in (
        (tile, reader(spec), "config_feat", "layout configurations"),
        (layout, reader(tiles), "node_config_feat", "tile configurations"),
        (dump, reader(tiles), "file", "a tuning record or an npz file"),
        (layout, reader(spec, limit=59), "node_config_feat", "at most 59 configurations"),
    ):
        with pytest.raises(DataError) as caught:
            list(read.read(path))
        assert (str(caught.value.file), caught.value.key) == (str(path), key)
        assert caught.value.expected.startswith(expected)


def test_choices(spec: FeatureSpec, tiny_collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz = next(tiny_collections.glob("raw/layout/*/*/valid/*.npz"))
    with NpzFile(npz) as file:
        (count, nodes, _), _ = file.header("node_config_feat")
    program, record = module("parameter", "dot", "dot"), tmp_path / "record.pb"
    record.write_bytes(tuning(program, 3, 1, 2).SerializeToString())
    dump = tmp_path / "dump.pb"
    dump.write_bytes(program.SerializeToString())
    for path, key, configurations, nodes_ in (
        (npz, "node_config_feat", count, nodes),
        (record, "runs", 3, 2),
        (dump, "candidates", 9, 2),
    ):
        choices = configurations * nodes_
        (given,) = GraphReader(spec, 100, 9, 0, choices).read(path)
        assert layouts(given).codes.size == choices
        with monkeypatch.context() as patch:
            patch.setattr(NpzFile, "read", lambda *_: pytest.fail("an array was read"))
            with pytest.raises(DataError) as caught:
                list(GraphReader(spec, 100, 9, 0, choices - 1).read(path))
        assert (str(caught.value.file), caught.value.key) == (str(path), key)
        assert caught.value.expected.startswith(f"at most {choices - 1:,} ")
        assert caught.value.found == f"{choices:,} ({configurations:,} x {nodes_:,})"


def test_files_that_cannot_be_read(spec: FeatureSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        with pytest.raises(DataError) as caught:
            list(reader(spec).read(path))
        assert str(caught.value).startswith(f"{path}: file: expected ")

    def denied(path: Path, *_: object, **__: object) -> None:  # root can read every file
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for suffix in (".npz", ".pb"):
        (tmp_path / f"folder{suffix}").mkdir()
        empty = tmp_path / f"empty{suffix}"
        empty.touch()
        (tmp_path / f"failing{suffix}").symlink_to("/proc/self/mem")  # a file with an error of input and output
        for name in ("folder", "empty", "failing", "none", f"empty{suffix}/inside", "x" * 256):
            refused(tmp_path / f"{name}{suffix}")
        for method in ("open", "stat"):  # the file, or its folder
            with monkeypatch.context() as patch:
                patch.setattr(Path, method, denied)
                refused(empty)

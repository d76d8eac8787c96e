"""Graphs of files, one at a time, with candidates where a file has no configurations."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import Collection, graph_files, write_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.npz import NpzFile
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError
from hlorank.hlo.extra import extra_path, write_extra
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto, ModuleTuningData, TuningData
from hlorank.hlo.reader import featurize, read_records
from hlorank.ranking.inputs import GraphReader, InputGraph


@pytest.fixture(scope="module")
def spec(tiny_collections: Path) -> FeatureSpec:
    return FeatureStore(tiny_collections / "features/layout/synthetic/random").spec


def reader(spec: FeatureSpec, limit: int = 100, candidates: int = 9, seed: int = 0) -> GraphReader:
    return GraphReader(spec, limit, candidates, seed)


def module(*opcodes: str, rank: int = 2) -> HloModuleProto:
    """Return a chain of operations, each of which has its predecessor as operand twice."""
    made = HloModuleProto(name="m")
    computation = made.computations.add(name="main", id=1, root_id=len(opcodes))
    for number, opcode in enumerate(opcodes, start=1):
        operands = [number - 1] * 2 if number > 1 else []
        instruction = computation.instructions.add(opcode=opcode, id=number, operand_ids=operands)
        instruction.shape.dimensions[:] = [8] * rank
    return made


def layouts(given: InputGraph) -> LayoutConfigurations:
    assert isinstance(given.measured.configurations, LayoutConfigurations)
    return given.measured.configurations


@pytest.mark.parametrize("wrap", [lambda made: made, lambda made: HloProto(hlo_module=made)], ids=["module", "proto"])
def test_candidates_of_a_dump(
    wrap: Callable[[HloModuleProto], HloModuleProto | HloProto], spec: FeatureSpec, tmp_path: Path
) -> None:
    path = tmp_path / "f.hlo.pb"
    path.write_bytes(wrap(module("parameter", "dot", "dot")).SerializeToString())
    (given,) = reader(spec).read(path)
    assert (given.measured.name, given.file, given.extra) == ("f", path, None)
    assert (given.drawn, given.stage) == (True, "before_layout_assignment")
    assert given.measured.measurements.withheld
    values = layouts(given).values()
    assert values.shape == (9, 2, 18)
    assert len(np.unique(values, axis=0)) == 9
    assert (values[0] == -1).all()
    (again,) = reader(spec).read(path)
    np.testing.assert_array_equal(layouts(again).values(), values)


def test_all_configurations_of_a_program_with_few(spec: FeatureSpec, tmp_path: Path) -> None:
    path = tmp_path / "f.pb"
    path.write_bytes(module("parameter", "reshape").SerializeToString())
    (given,) = reader(spec, candidates=100).read(path)
    assert (
        len(layouts(given)) == 27
    )  # three layouts of two dimensions: the default of the compiler, or one of two orders


def test_a_program_without_layouts_has_only_the_default(spec: FeatureSpec, tmp_path: Path) -> None:
    path = tmp_path / "f.pb"
    path.write_bytes(module("parameter", "dot", rank=1).SerializeToString())
    (given,) = reader(spec).read(path)
    assert (layouts(given).values() == -1).all()
    assert len(layouts(given)) == 1


def test_a_program_without_configurable_nodes_is_refused(spec: FeatureSpec, tmp_path: Path) -> None:
    path = tmp_path / "f.pb"
    path.write_bytes(module("parameter", "add").SerializeToString())
    with pytest.raises(DataError, match=r"f\.pb: no convolution, dot or reshape"):
        list(reader(spec).read(path))


def test_records_are_read_one_at_a_time(spec: FeatureSpec, tmp_path: Path) -> None:
    records = []
    for fingerprint, runs in ((1, 2), (2, 3)):
        program = module("parameter", "dot")
        record = ModuleTuningData(module=program, fingerprint=fingerprint, config_index_to_node=[1])
        for number in range(runs):
            run = record.runs.add()
            run.module_config.layout_config.nodes.add().tensors.add(dims=[1, 0] if number else [])
            run.profile.compute_time_ns = 1000 + number
        records.append(record.SerializeToString())
    path = tmp_path / "all.pb"
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
    layout, tile = (
        graph_files(tiny_collections / "raw", Collection.parse(address), "valid")[0]
        for address in ("layout:synthetic:random", "tile:synthetic")
    )
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


def test_extra_features_are_in_a_protobuf_and_next_to_an_npz_file(spec: FeatureSpec, tmp_path: Path) -> None:
    needing = reader(spec.model_copy(update={"options": spec.options.model_copy(update={"protobuf": True})}))
    dump, npz = tmp_path / "dump.pb", tmp_path / "graph.npz"
    dump.write_bytes(module("parameter", "dot").SerializeToString())
    (record,) = read_records(dump)
    graph, program = featurize(record)
    write_graph(npz, graph)
    with pytest.raises(DataError) as caught:
        list(needing.read(npz))
    assert str(caught.value.file) == str(extra_path(npz))
    write_extra(npz, program)
    (given,), (drawn,) = needing.read(npz), needing.read(dump)
    assert given.extra is not None
    assert drawn.extra is not None
    np.testing.assert_equal(dict(given.extra), dict(drawn.extra))


def test_too_many_choices_are_refused(
    spec: FeatureSpec, tiny_collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")[0]
    with NpzFile(npz) as file:
        (count, nodes, _), _ = file.header("node_config_feat")
    program, record = module("parameter", "dot", "dot"), tmp_path / "record.pb"
    tuning = ModuleTuningData(module=program, fingerprint=1, config_index_to_node=[1, 2])
    for _ in range(3):
        run = tuning.runs.add()
        run.module_config.layout_config.nodes.add()
        run.module_config.layout_config.nodes.add()
        run.profile.compute_time_ns = 1000
    record.write_bytes(tuning.SerializeToString())
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
        assert str(caught.value) == (
            f"{path}: {key}: expected at most {choices - 1:,} configurable nodes of all configurations, "
            f"found {choices:,} ({configurations:,} x {nodes_:,})"
        )


def test_files_that_cannot_be_read_are_named(
    spec: FeatureSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(DataError) as caught:
            list(reader(spec).read(path))
        assert str(caught.value).startswith(f"{path}: file: expected ")
        return str(caught.value.found)

    for suffix, empty in ((".npz", "a truncated file, or not a zip file"), (".pb", "an empty file")):
        path = tmp_path / f"empty{suffix}"
        path.touch()
        assert refusal(path) == empty
        assert refusal(tmp_path / f"none{suffix}") == "no such file"
        assert refusal(path / f"inside{suffix}") == "Not a directory"
        assert refusal(tmp_path / ("x" * 300 + suffix)) == "File name too long"
        with monkeypatch.context() as patch:  # root can read every file

            def denied(path: Path, *_: object, **__: object) -> None:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))

            patch.setattr(Path, "open", denied)
            assert "Permission denied" in refusal(path)
            patch.setattr(Path, "stat", denied)  # as in a folder without permission
            assert refusal(path) == "Permission denied"

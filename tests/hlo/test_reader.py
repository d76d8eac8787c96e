"""Reading of protobuf files."""

from __future__ import annotations

import gzip
import logging
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from numpy.typing import NDArray

from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.npz import NpzFile
from hlorank.files import DataError
from hlorank.hlo import forms, wire
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto, ModuleTuningData, TuningData
from hlorank.hlo.reader import featurize, graph_name, program_files, read_records

LAYOUT_PB = "official/module_tuning_data_layout.pb"
LAYOUT_NPZ = "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
TILE_PB = "official/op_tuning_data.pb"


def only(path: Path) -> MeasuredGraph:
    (record,) = read_records(path)
    return featurize(record)[0]


def test_the_official_layout_record_gives_the_official_arrays_bit_for_bit(shared_data: Path) -> None:
    measured = only(shared_data / LAYOUT_PB)
    graph = measured.graph
    assert isinstance(measured.configurations, LayoutConfigurations)
    arrays: dict[str, NDArray[Any]] = {
        "node_opcode": graph.node_opcode,
        "node_feat": graph.node_feat,
        "edge_index": graph.edge_index,
        "node_splits": graph.node_splits[None],
        "node_config_ids": measured.configurations.node_ids,
    }
    with NpzFile(shared_data / LAYOUT_NPZ) as official:
        for key, array in arrays.items():
            expected = official.read(key)
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape), key
            assert array.tobytes() == expected.tobytes(), key


def test_the_official_runs_are_rows_of_the_official_file(shared_data: Path) -> None:
    measured = only(shared_data / LAYOUT_PB)
    assert isinstance(measured.configurations, LayoutConfigurations)
    with NpzFile(shared_data / LAYOUT_NPZ) as official:
        features = official.read("node_config_feat").astype(np.int8)
        runtimes = official.read("config_runtime").tolist()
    rows = {(row.tobytes(), runtime) for row, runtime in zip(features, runtimes, strict=True)}
    values = measured.configurations.values()
    assert len(values) == 112
    for row, runtime in zip(values, measured.measurements.runtime.tolist(), strict=True):
        assert (row.tobytes(), runtime) in rows


def test_the_official_tile_record_gives_fifteen_kernels(shared_data: Path) -> None:
    records = list(read_records(shared_data / TILE_PB))
    graphs = [featurize(record)[0] for record in records]
    assert {record.kind for record in records} == {"tile"}
    assert len(graphs) == len({graph.name for graph in graphs}) == 15
    assert sum(len(graph.configurations) for graph in graphs) == 752
    # A fingerprint of 64 bits with the highest one set is negative, as in the dataset's names.
    assert graphs[0].name == "op_tuning_data_579e7b2c540f0929"
    assert graphs[2].name == "op_tuning_data_-8a7557b856e7b3b"
    for record, graph in zip(records, graphs, strict=True):
        assert record.tuning is not None
        (default,) = [run.profile.compute_time_ns for run in record.tuning.runs if run.is_default]
        assert graph.measurements.normalizer is not None
        assert set(graph.measurements.normalizer.tolist()) == {default}
        assert graph.graph.node_splits.tolist() == [0, graph.graph.nodes]


def test_the_four_messages_are_distinguished(
    tmp_path: Path, module: HloModuleProto, layout_record: ModuleTuningData, tile_record: ModuleTuningData
) -> None:
    several = TuningData(modules=[layout_record.SerializeToString(), tile_record.SerializeToString()])
    messages: dict[str, Message] = {
        "a.b.hlo.pb": module,
        "wrapped.hlo.pb": HloProto(hlo_module=module),
        "layout.pb": layout_record,
        "tile.pb": tile_record,
        "several.pb": several,
    }
    found = {}
    for name, message in messages.items():
        (tmp_path / name).write_bytes(message.SerializeToString())
        for record in read_records(tmp_path / name):
            assert record.module == module
            found[record.name] = record.kind
    assert found == {
        "a.b": None,
        "wrapped": None,
        "layout": "layout",
        "tile": "tile",
        "several_1": "layout",
        "several_-1a": "tile",
    }


def test_a_dump_with_a_buffer_assignment_is_no_tuning_record(tmp_path: Path, module: HloModuleProto) -> None:
    # HloProto's buffer_assignment (3) has the number of a record's runs.
    data = HloProto(hlo_module=module).SerializeToString() + bytes([3 << 3 | 2, 6, 1 << 3 | 2, 4, 8, 1, 16, 9])
    (tmp_path / "a.hlo.pb").write_bytes(data)
    (record,) = read_records(tmp_path / "a.hlo.pb")
    assert record.tuning is None


def test_fields_of_other_versions_are_ignored(tmp_path: Path, module: HloModuleProto) -> None:
    (tmp_path / "a.pb").write_bytes(module.SerializeToString())
    plain = only(tmp_path / "a.pb")
    future = bytes([0xFA, 0x3F, 3]) + b"new"  # field 1023
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.MergeFromString(future)
    (tmp_path / "a.pb").write_bytes(module.SerializeToString() + future)
    again = only(tmp_path / "a.pb")
    np.testing.assert_array_equal(plain.graph.node_feat, again.graph.node_feat)
    np.testing.assert_array_equal(plain.graph.edge_index, again.graph.edge_index)


def test_what_the_features_cannot_represent_is_logged(
    tmp_path: Path, module: HloModuleProto, caplog: pytest.LogCaptureFixture
) -> None:
    module.computations[0].instructions[0].opcode = "ragged-dot"
    module.computations[0].instructions[0].shape.dimensions.extend([1] * 7)
    module.computations[1].instructions[0].shape.element_type = 21
    module.computations[1].instructions[1].shape.is_dynamic_dimension.extend([True, False])
    (tmp_path / "a.pb").write_bytes(module.SerializeToString())
    with caplog.at_level(logging.WARNING):
        measured = only(tmp_path / "a.pb")
    assert measured.graph.node_opcode.tolist() == [0, 63, 34, 14]
    opcodes, types, dynamic, dimensions = caplog.messages
    assert all(message.startswith(f"{tmp_path}/a.pb: ") for message in caplog.messages)
    assert opcodes.endswith(": 'ragged-dot' (1)")
    assert types.endswith(": 's4' (1)")
    assert " 1 node" in dynamic
    assert " 6 " in dimensions


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "found an empty file"),
    "truncated": (lambda data: data[:-3], "found a truncated file or another message"),
    "another message": (lambda data: HloModuleProto.DESCRIPTOR.file.serialized_pb, "found a truncated file or another"),
    "zeros": (lambda data: bytes(100), "found a truncated file or another message"),
    "a zip file": (lambda data: b"PK\x03\x04" + bytes(range(256)), "found a truncated file or another message"),
}


@pytest.mark.parametrize("what", BAD)
def test_files_without_hlo_are_refused(what: str, tmp_path: Path, module: HloModuleProto) -> None:
    change, found = BAD[what]
    (tmp_path / "bad.pb").write_bytes(change(module.SerializeToString()))
    expected = "bad.pb: file: expected .* HloModuleProto, HloProto, ModuleTuningData or TuningData.*"
    with pytest.raises(DataError, match=expected + found):
        list(read_records(tmp_path / "bad.pb"))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.pb: file: "):
        list(read_records(tmp_path / "none.pb"))
    with pytest.raises(DataError, match=r": file: "):
        list(read_records(tmp_path))


def test_errors_name_the_record_of_the_file(tmp_path: Path, layout_record: ModuleTuningData) -> None:
    good = layout_record.SerializeToString()
    layout_record.module.computations[0].root_id = 99
    several = TuningData(modules=[good, layout_record.SerializeToString(), b"\xff"])
    (tmp_path / "a.pb").write_bytes(several.SerializeToString())
    records = read_records(tmp_path / "a.pb")
    assert featurize(next(records))[0].graph.nodes == 4
    with pytest.raises(DataError, match=r"a\.pb: modules\[1\]\.computations\[0\]\.root_id: .* found 99"):
        featurize(next(records))
    with pytest.raises(DataError, match=r"a\.pb: modules\[2\]\.computations: "):
        featurize(next(records))


def test_names_and_files_of_a_folder(tmp_path: Path) -> None:
    assert (
        graph_name(Path("x/module_0001.jit_f.before_optimizations.hlo.pb")) == "module_0001.jit_f.before_optimizations"
    )
    assert graph_name(Path("unet_3d.4x4.bf16.pb")) == "unet_3d.4x4.bf16"
    (tmp_path / "memory-usage-report.pb").touch()
    assert [path.name for path in program_files(tmp_path)] == ["memory-usage-report.pb"]
    (tmp_path / "b.hlo.pb").touch()
    (tmp_path / "a.hlo.pb").touch()
    assert [path.name for path in program_files(tmp_path)] == ["a.hlo.pb", "b.hlo.pb"]


def test_hlo_texts_of_a_folder(tmp_path: Path) -> None:
    for suffix in (".txt", ".hlo", ".hlo.txt", ".hlo.txt.xz", ".hlo.gz", ".hlo.pb.xz", ".pb.gz", ""):
        assert graph_name(Path(f"module_0001.jit_f{suffix}")) == "module_0001.jit_f"
    text = b"// a comment\nHloModule m\n"
    for name in ("a.txt", "b.hlo", "c.hlo.txt"):
        (tmp_path / name).write_bytes(text)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "e.hlo.xz").write_bytes(lzma.compress(text))
    others = {
        "a.hlo.pb": b"",
        "notes.txt": b"HloModules",
        "cut.txt.gz": b"\x1f\x8bx",
        "buffer-assignment.txt": b"Buffers:",
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.hlo").mkdir()
    assert [path.name for path in program_files(tmp_path)] == ["a.hlo.pb", "b.hlo", "c.hlo.txt", "d.txt.gz", "e.hlo.xz"]


def entry(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + TuningData(modules=[payload]).SerializeToString()[1:]


ADD = entry(2, b"add")
EMPTY = {1: entry(1, b""), 2: entry(2, b""), 3: entry(3, b"")}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide all limits by a thousand, but for 8 runs."""
    for name, limit in (("MAX_MODULES", 100), ("MAX_INSTRUCTIONS", 500), ("MAX_RUNS", 8)):
        monkeypatch.setattr(wire, name, limit)


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (EMPTY[1] * 200, 100),
        (entry(3, entry(2, ADD)) + EMPTY[3] * 600, 8),  # as runs
        (entry(3, entry(2, ADD) + EMPTY[2] * 600), 500),
        (entry(1, entry(3, entry(2, ADD) + EMPTY[2] * 600)), 500),
        (entry(1, entry(3, entry(2, ADD) + EMPTY[2] * 300)) * 2, 500),  # which a parser merges
        (entry(3, b"\x53\x54" + entry(2, ADD) + EMPTY[2] * 600), 500),
        (entry(1, entry(3, entry(2, ADD))) + b"\x10\x07" + EMPTY[3] * 9, 8),
    ],
    ids=["modules", "computations", "instructions", "of a record", "merged", "group", "runs"],
)
@pytest.mark.usefixtures("small_limits")
def test_empty_messages_are_counted_before_they_are_parsed(tmp_path: Path, data: bytes, limit: int) -> None:
    (tmp_path / "a.pb").write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.pb: .*at most {limit:,}"):
        next(read_records(tmp_path / "a.pb"))


@pytest.mark.usefixtures("small_limits")
def test_as_many_messages_as_the_limits_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(entry(1, entry(3, entry(2, ADD) * 498)) + b"\x10\x07" + EMPTY[3] * 8)
    (record,) = read_records(tmp_path / "a.pb")
    assert record.tuning is not None
    assert (len(record.module.computations[0].instructions), len(record.tuning.runs)) == (498, 8)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("data", [EMPTY[3] * 600 + b"\x1a\x05", entry(3, EMPTY[2] * 600 + b"\x12\x05")])
def test_a_truncated_message_is_not_parsed_up_to_its_end(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pb").write_bytes(data)
    with pytest.raises(DataError, match=r"truncated|at most"):
        next(read_records(tmp_path / "a.pb"))


def test_a_file_above_the_limit_is_not_parsed(
    tmp_path: Path, module: HloModuleProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module.SerializeToString()
    (tmp_path / "a.pb").write_bytes(data)
    monkeypatch.setattr(forms, "MAX_BYTES", len(data))
    assert len([*read_records(tmp_path / "a.pb")]) == 1
    monkeypatch.setattr(forms, "MAX_BYTES", len(data) - 1)
    with pytest.raises(DataError, match=f"at most {len(data) - 1} bytes"):
        next(read_records(tmp_path / "a.pb"))

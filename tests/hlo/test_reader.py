"""Reading of protobuf files: programs, tuning records with their configurations, and damaged files."""

import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

import hlorank.hlo
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, TileConfigurations
from hlorank.data.npz import NpzFile
from hlorank.files import MAX_NAME, DataError
from hlorank.hlo import forms, wire
from hlorank.hlo.configurations import layouts, tiles
from hlorank.hlo.hlo_pb2 import (
    ConfigProfile,
    HloModuleProto,
    HloProto,
    ModuleTuningData,
    TensorLayoutConfig,
    TuningData,
)
from hlorank.hlo.node_features import OPCODES
from hlorank.hlo.program import flatten
from hlorank.hlo.reader import featurize, graph_name, program_files, read_records

LAYOUT_PB = "official/module_tuning_data_layout.pb"
LAYOUT_NPZ = "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz"
TILE_PB = "official/op_tuning_data.pb"
Change = Callable[[ModuleTuningData], object]


def only(path: Path) -> MeasuredGraph:
    (record,) = read_records(path)
    return featurize(record)[0]


def read_layouts(record: ModuleTuningData) -> tuple[LayoutConfigurations, list[int]]:
    configurations, measurements = layouts(record, flatten(record.module))
    return configurations, measurements.runtime.tolist()


def test_the_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools (extra dev)")
    package = Path(hlorank.hlo.__file__).parent
    targets = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([sys.argv[0], f"-I{package.parents[1]}", *targets, str(package / "hlo.proto")]) == 0
    for name in ("hlo_pb2.py", "hlo_pb2.pyi"):
        assert (tmp_path / "hlorank" / "hlo" / name).read_text() == (package / name).read_text(), "run make proto"


def test_the_official_layout_record_gives_the_official_arrays_bit_for_bit(shared_data: Path) -> None:
    measured = only(shared_data / LAYOUT_PB)
    graph, configurations = measured.graph, measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    with NpzFile(shared_data / LAYOUT_NPZ) as file:
        official = {key: file.read(key) for key in file.keys}
    for key, array in {
        "node_opcode": graph.node_opcode,
        "node_feat": graph.node_feat,
        "edge_index": graph.edge_index,
        "node_splits": graph.node_splits[None],
        "node_config_ids": configurations.node_ids,
    }.items():
        np.testing.assert_array_equal(array, official[key], key, strict=True)
    features = official["node_config_feat"].astype(np.int8)
    rows = {(row.tobytes(), time) for row, time in zip(features, official["config_runtime"].tolist(), strict=True)}
    found = zip(configurations.values(), measured.measurements.runtime.tolist(), strict=True)
    assert len(configurations) == 112
    assert rows.issuperset((row.tobytes(), time) for row, time in found)


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


def test_the_modules_of_the_installed_xla_are_read(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

    def program(x: Any, w: Any) -> Any:
        y = jax.lax.conv(x, w, (1, 1), "SAME").reshape(64, -1)[:, :64]
        _, y = jax.lax.while_loop(lambda one: one[0] < 3, lambda s: (s[0] + 1, jax.numpy.tanh(s[1]) @ s[1]), (0, y))
        return jax.numpy.sort(y.sum(0)), y[jax.numpy.arange(3)]

    lowered = jax.jit(program).lower(jax.numpy.zeros((1, 4, 32, 32)), jax.numpy.zeros((4, 4, 3, 3)))
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True})
    (before,), (after,) = program_files(tmp_path), program_files(tmp_path, "after_optimizations")
    assert next(read_records(before)).module.name == "jit_program"
    for path in (before, after):
        measured = only(path)
        graph, configurations = measured.graph, measured.configurations
        assert measured.measurements.withheld
        assert isinstance(configurations, LayoutConfigurations)
        opcodes = set(graph.node_opcode.tolist())
        assert {OPCODES[opcode] for opcode in ("convolution", "while", "parameter")} <= opcodes
        assert (OPCODES["fusion"] in opcodes) == (path == after)
        assert set(graph.node_opcode[configurations.node_ids].tolist()) <= {26, 34, 75}
        (convolution,) = graph.node_feat[graph.node_opcode == OPCODES["convolution"]]
        # The kernel of 3 x 3 with its spatial axes, in any order of the others.
        assert convolution[37:45].tolist() == [3, 3, 0, 0, 0, 0, 6, 9]
        assert sorted(convolution[21:25].tolist()) == [1, 4, 32, 32]


def test_the_messages_are_distinguished(
    tmp_path: Path, module: HloModuleProto, layout_record: ModuleTuningData, tile_record: ModuleTuningData
) -> None:
    future = bytes([0xFA, 0x3F, 3]) + b"new"  # field 1023 of another version
    # HloProto's buffer_assignment (3) has the number of a record's runs.
    buffers = bytes([3 << 3 | 2, 6, 1 << 3 | 2, 4, 8, 1, 16, 9])
    several = TuningData(modules=[layout_record.SerializeToString(), tile_record.SerializeToString()])
    snapshot = TuningData(modules=[HloProto(hlo_module=module).SerializeToString() + buffers])
    messages: dict[str, tuple[Message, bytes]] = {
        "a.b.hlo.pb": (module, future),
        "wrapped.hlo.pb": (HloProto(hlo_module=module), buffers),
        "layout.pb": (layout_record, future),
        "tile.pb": (tile_record, b""),
        "several.pb": (several, b""),
        "snapshot.pb": (snapshot, entry(2, b"\x0a\x02\x10\x0b") + entry(4, b"CPU")),
    }
    found = {}
    for name, (message, more) in messages.items():
        (tmp_path / name).write_bytes(message.SerializeToString() + more)
        for record in read_records(tmp_path / name):
            assert record.module.computations == module.computations
            assert featurize(record)[0].graph.nodes == 4
            found[record.name] = record.kind
    kinds = (None, None, "layout", "tile", "layout", "tile", None)
    names = ["a.b", "wrapped", "layout", "tile", "several_1", "several_-1a", "snapshot"]
    assert found == dict(zip(names, kinds, strict=True))


def test_lossy_features_are_logged(tmp_path: Path, module: HloModuleProto, caplog: pytest.LogCaptureFixture) -> None:
    module.computations[0].instructions[0].opcode = "ragged-dot"
    module.computations[0].instructions[0].shape.dimensions.extend([1] * 7)
    module.computations[1].instructions[0].shape.element_type = 21
    module.computations[1].instructions[1].shape.is_dynamic_dimension.extend([True, False])
    (tmp_path / "a.pb").write_bytes(module.SerializeToString())
    assert only(tmp_path / "a.pb").graph.node_opcode.tolist() == [0, 63, 34, 14]
    opcodes, types, dynamic, dimensions = caplog.messages
    assert all(message.startswith(f"{tmp_path}/a.pb: ") for message in caplog.messages)
    assert opcodes.endswith(": 'ragged-dot' (1)")
    assert types.endswith(": 's4' (1)")
    assert " 1 node" in dynamic
    assert " 6 " in dimensions


def test_layouts_are_output_input_and_kernel_of_nodes_in_their_order(layout_record: ModuleTuningData) -> None:
    layout_record.config_index_to_node[:] = [3, 1]  # the call and main's parameter
    for run, dims in zip(layout_record.runs, ([0], [1]), strict=True):
        run.module_config.layout_config.nodes.add().tensors.add(dims=dims)
    node = layout_record.runs[1].module_config.layout_config.nodes[0]
    node.tensors.add(dims=[1, 0])
    node.tensors.add(dims=[2])
    configurations, runtime = read_layouts(layout_record)
    assert configurations.node_ids.tolist() == [1, 3]
    assert configurations.values()[0].tolist() == [[0, *[-1] * 17], [-1] * 18]
    assert configurations.values()[1].tolist() == [
        [1, *[-1] * 17], [0, 1, *[-1] * 4, 1, 0, *[-1] * 4, 2, *[-1] * 5],
    ]  # fmt: skip
    assert runtime == [100, 90]
    # The same record whose caller is stored first: positions count as stored, nodes as sorted.
    moved = HloModuleProto(computations=[*layout_record.module.computations][::-1])
    layout_record.module.CopyFrom(moved)
    layout_record.config_index_to_node[:] = [2, 0]
    again, _ = read_layouts(layout_record)
    assert again.node_ids.tolist() == [1, 3]
    np.testing.assert_array_equal(again.values(), configurations.values())


def test_tiles_have_bounds_with_sum_and_product_and_the_default_as_normalizer(tile_record: ModuleTuningData) -> None:
    tile_record.runs[0].op_config.tile_size_config.kernel_bounds.extend([1, 2, 3, 4, 5, 6, 7])
    configurations, measurements = tiles(tile_record)
    assert configurations.feat[0].tolist() == [
        1, 2, 3, 4, 5, 6, 28, 5040, 2, 3, 0, 0, 0, 0, 5, 6, *[0] * 8,
    ]  # fmt: skip
    assert configurations.feat[1, 8:16].tolist() == [4, 0, 0, 0, 0, 0, 4, 4]
    assert measurements.runtime.tolist() == [500, 400]
    assert measurements.normalizer is not None
    assert measurements.normalizer.tolist() == [500, 500]


def test_runs_that_failed_or_were_not_measured_are_dropped(layout_record: ModuleTuningData) -> None:
    good = layout_record.runs[1]
    failed, unmeasured, instant = ConfigProfile(), ConfigProfile(), ConfigProfile()
    for run in (failed, unmeasured, instant):
        run.CopyFrom(good)
    failed.error = True
    unmeasured.ClearField("profile")
    instant.profile.compute_time_ns = 1
    layout_record.runs.extend([failed, unmeasured, instant])
    assert read_layouts(layout_record)[1] == [100, 90]


def test_without_any_time_labels_are_withheld_and_without_runs_there_is_the_default(
    layout_record: ModuleTuningData, tile_record: ModuleTuningData, tmp_path: Path
) -> None:
    for run in [*layout_record.runs, *tile_record.runs]:
        run.ClearField("profile")
    layout_record.runs[0].error = True
    assert read_layouts(layout_record)[1] == [0]
    _, measurements = tiles(tile_record)
    assert measurements.withheld
    assert measurements.normalizer is not None
    assert measurements.normalizer.tolist() == [1, 1]
    (tmp_path / "a.pb").write_bytes(layout_record.module.SerializeToString())
    (record,) = read_records(tmp_path / "a.pb")
    layout, tile = (featurize(record, kind)[0] for kind in ("layout", "tile"))
    assert isinstance(layout.configurations, LayoutConfigurations)
    assert layout.configurations.node_ids.tolist() == [2]
    assert layout.configurations.values().tolist() == [[[-1] * 18]]
    assert isinstance(tile.configurations, TileConfigurations)
    assert tile.configurations.feat.tolist() == [[0.0] * 24]
    assert layout.measurements.withheld
    assert tile.measurements.withheld


def tensors(record: ModuleTuningData) -> Any:
    """Return the layouts of the second run's node."""
    return record.runs[1].module_config.layout_config.nodes[0].tensors


def fail_all(record: ModuleTuningData) -> None:
    for run in record.runs:
        run.error = True


NODES = "runs[1].module_config.layout_config.nodes[0]"
WRONG: list[tuple[Change, str, object]] = [
    (lambda one: one.ClearField("config_index_to_node"), "config_index_to_node", "none"),
    (lambda one: one.config_index_to_node.append(4), "config_index_to_node", 4),
    (lambda one: one.config_index_to_node.append(2**64 - 1), "config_index_to_node", 2**64 - 1),
    (lambda one: one.config_index_to_node.append(2), "config_index_to_node", "a repeated node"),
    (lambda one: one.config_index_to_node.append(1), "runs[0].module_config.layout_config.nodes", 1),
    (lambda one: tensors(one)[0].dims.append(6), "node_config_feat", None),
    (lambda one: tensors(one)[0].dims.extend(range(2, 7)), f"{NODES}.tensors[0].dims", 7),
    (lambda one: tensors(one).extend([TensorLayoutConfig()] * 3), f"{NODES}.tensors", 4),
    (lambda one: one.ClearField("runs"), "runs", "none among 0"),
    (fail_all, "runs", "none among 2"),
    (lambda one: one.module.computations[1].instructions[1].shape.dimensions.extend([1] * 5),
     "shape.dimensions of node 2", 7),
    (lambda one: setattr(one.module.computations[0], "root_id", 99), "computations[0].root_id", 99),
]  # fmt: skip


@pytest.mark.parametrize(("change", "key", "found"), WRONG)
def test_a_broken_record_is_named_with_its_field_and_the_others_are_read(
    change: Change, key: str, found: object, layout_record: ModuleTuningData, tmp_path: Path
) -> None:
    good = layout_record.SerializeToString()
    change(layout_record)
    several = TuningData(modules=[good, layout_record.SerializeToString(), b"\xff", good])
    (tmp_path / "a.pb").write_bytes(several.SerializeToString())
    first, wrong, damaged, last = read_records(tmp_path / "a.pb")
    assert [featurize(record)[0].graph.nodes for record in (first, last)] == [4, 4]
    with pytest.raises(DataError) as caught:
        featurize(wrong)
    assert (caught.value.file, caught.value.key) == (tmp_path / "a.pb", f"modules[1].{key}")
    assert found in (None, caught.value.found)
    with pytest.raises(DataError, match=r"a\.pb: modules\[2\]\.computations: "):
        featurize(damaged)


def test_tiles_without_a_measured_default_are_refused(tile_record: ModuleTuningData) -> None:
    tile_record.runs[0].error = True
    with pytest.raises(DataError, match=r"runs.is_default: "):
        tiles(tile_record)
    tile_record.runs[1].error = True
    with pytest.raises(DataError, match=r"runs: .*none among 2"):
        tiles(tile_record)


BAD: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-3],
    "another message": lambda data: HloModuleProto.DESCRIPTOR.file.serialized_pb,
    "zeros": lambda data: bytes(100),
    "other bytes": lambda data: b"RK\x03\x04" + bytes(range(256)),
}


@pytest.mark.parametrize("what", BAD)
def test_files_without_hlo_are_refused(what: str, tmp_path: Path, module: HloModuleProto) -> None:
    (tmp_path / "bad.pb").write_bytes(BAD[what](module.SerializeToString()))
    found = "an empty file" if what == "empty" else "a truncated file, another message"
    expected = "bad.pb: file: expected .* HloModuleProto, HloProto, ModuleTuningData or TuningData.*"
    with pytest.raises(DataError, match=expected + found):
        list(read_records(tmp_path / "bad.pb"))
    for other in (tmp_path / "none.pb", tmp_path):  # missing, and a folder
        with pytest.raises(DataError, match=f"{other}: file: "):
            list(read_records(other))


def test_names_and_files_of_a_folder(tmp_path: Path, module: HloModuleProto, caplog: pytest.LogCaptureFixture) -> None:
    named = "module_0001.jit_f.before_optimizations"
    for suffix in (".hlo.pb", ".txt", ".hlo", ".hlo.txt", ".hlo.txt.xz", ".hlo.gz", ".hlo.pb.xz", ".pb.gz", ""):
        assert graph_name(tmp_path / f"{named}{suffix}") == named
    assert graph_name(Path("unet_3d.4x4.bf16.pb")) == "unet_3d.4x4.bf16"
    long = {graph_name(Path(f"module_{number}.{80 * letter}.txt")) for number in "12" for letter in ("é", "fg")}
    assert (len(long), max(len(name.encode()) for name in long)) == (4, MAX_NAME)
    (tmp_path / "memory-usage-report.pb").touch()
    assert [path.name for path in program_files(tmp_path)] == ["memory-usage-report.pb"]
    text = b"// a comment\nHloModule m\n"
    programs = dict.fromkeys(("a.hlo.pb", "b.hlo", "c.hlo.txt"), text)
    programs |= {"d.txt.gz": gzip.compress(text), "e.hlo.xz": lzma.compress(text)}
    cut = module.SerializeToString()
    module.computations[0].root_id = 99
    programs |= {"f.pb": cut, "g.pb.xz": lzma.compress(module.SerializeToString()), "h.stablehlo": b"module @m {}"}
    others = {"a.txt": text, "notes.txt": b"HloModules", "cut.txt.gz": b"\x1f\x8bx", "buffers.txt": b"Buffers:"}
    others |= {"cut.pb": cut[:-3], "page.md": b"A module:\n```\n" + text, "data.npz": b"PK\x03\x04"}
    for name, data in {**programs, **others}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.hlo").mkdir()
    assert [path.name for path in program_files(tmp_path)] == [*programs]
    assert {one for one in (*others, "folder.hlo/", "memory-usage-report.pb") if one in caplog.text} == {
        *others, "folder.hlo/", "memory-usage-report.pb",
    }  # fmt: skip


def entry(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + TuningData(modules=[payload]).SerializeToString()[1:]


ADD = entry(2, b"add")
EMPTY = {1: entry(1, b""), 2: entry(2, b""), 3: entry(3, b"")}


@pytest.mark.parametrize("nest", [[3, 2, 3], [1, 3, 2, 3], [1, 1, 3, 2, 3]], ids=["module", "HloProto", "TuningData"])
def test_a_file_nested_deeper_than_protobuf_reads_is_refused(tmp_path: Path, nest: list[int]) -> None:
    data = b""
    for number in [*nest, *[4] * 150][::-1]:  # the instruction's shape is a tuple of tuples
        data = entry(number, data)
    (tmp_path / "a.pb").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.pb: .*nests too deep"):
        list(read_records(tmp_path / "a.pb"))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide all limits by a thousand, but for 8 runs."""
    for name, limit in (("MAX_MODULES", 100), ("MAX_INSTRUCTIONS", 500), ("MAX_RUNS", 8)):
        monkeypatch.setattr(wire, name, limit)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (EMPTY[1] * 200, "at most 100 "),
        (entry(3, entry(2, ADD)) + EMPTY[3] * 600, "at most 8 "),  # as runs
        (entry(3, entry(2, ADD) + EMPTY[2] * 600), "at most 500 "),
        (entry(1, entry(3, entry(2, ADD) + EMPTY[2] * 600)), "at most 500 "),
        (entry(1, entry(3, entry(2, ADD) + EMPTY[2] * 300)) * 2, "at most 500 "),  # which a parser merges
        (entry(3, b"\x53\x54" + entry(2, ADD) + EMPTY[2] * 600), "at most 500 "),
        (entry(1, entry(3, entry(2, ADD))) + b"\x10\x07" + EMPTY[3] * 9, "at most 8 "),
        # Truncated messages are not parsed up to their ends.
        (EMPTY[3] * 600 + b"\x1a\x05", "truncated|at most"),
        (entry(3, EMPTY[2] * 600 + b"\x12\x05"), "truncated|at most"),
    ],
    ids=["modules", "computations", "instructions", "of a record", "merged", "group", "runs", "cut", "cut inside"],
)
@pytest.mark.usefixtures("small_limits")
def test_empty_messages_are_counted_before_they_are_parsed(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / "a.pb").write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.pb: .*({found})"):
        next(read_records(tmp_path / "a.pb"))


@pytest.mark.usefixtures("small_limits")
def test_as_many_messages_and_bytes_as_the_limits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = entry(1, entry(3, entry(2, ADD) * 498)) + b"\x10\x07" + EMPTY[3] * 8
    (tmp_path / "a.pb").write_bytes(data)
    monkeypatch.setattr(forms, "MAX_BYTES", len(data))
    (record,) = read_records(tmp_path / "a.pb")
    assert record.tuning is not None
    assert (len(record.module.computations[0].instructions), len(record.tuning.runs)) == (498, 8)
    monkeypatch.setattr(forms, "MAX_BYTES", len(data) - 1)
    with pytest.raises(DataError, match=f"at most {len(data) - 1:,} bytes"):
        next(read_records(tmp_path / "a.pb"))

"""Modules that XLA's verifier refuses, that several devices run, or that are for GPUs only."""

import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from hlorank.files import DataError
from hlorank.hlo.checks import check_module
from hlorank.hlo.hlo_pb2 import HloModuleProto, OpSharding, ShapeProto
from hlorank.hlo.reader import read_records
from hlorank.hlo.xla_process import has_jaxlib

Change = Callable[[Any], object]


@pytest.fixture
def dot() -> HloModuleProto:
    """f32[2,4] = dot(f32[2,3], f32[4,3]), with an entry computation."""
    module = HloModuleProto(entry_computation_id=1)
    computation = module.computations.add(id=1, root_id=3)
    for number, sizes in enumerate(([2, 3], [4, 3], [2, 4]), 1):
        node = computation.instructions.add(id=number, opcode="parameter", name=f"n{number}")
        node.parameter_number = number - 1
        node.shape.CopyFrom(ShapeProto(element_type=11, dimensions=sizes))
        node.shape.layout.minor_to_major.extend([1, 0])
    node.opcode, node.operand_ids[:] = "dot", [1, 2]
    node.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    node.dot_dimension_numbers.rhs_contracting_dimensions.append(1)
    return module


def becomes(opcode: str, operands: list[int], sizes: list[int], dimensions: tuple[int, ...] = ()) -> Change:
    def change(node: Any) -> None:
        node.opcode, node.operand_ids[:], node.shape.dimensions[:] = opcode, operands, sizes
        node.dimensions[:], node.parameter_number = dimensions, 2

    return change


def made_of(opcode: str, field: str, value: str | bytes) -> Change:
    def change(node: Any) -> None:
        becomes(opcode, [1], [7, 7])(node)
        setattr(node, field, value)

    return change


def numbered(number: int) -> Change:
    return lambda module: setattr(module.computations[0].instructions[1], "parameter_number", number)


def shards(**fields: Any) -> Change:
    return lambda node: node.sharding.CopyFrom(OpSharding(type=3, **fields))


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.shape.dimensions.__setitem__(0, 9),
        lambda node: node.dot_dimension_numbers.rhs_contracting_dimensions.__setitem__(0, 0),
        lambda node: node.dot_dimension_numbers.rhs_contracting_dimensions.__setitem__(0, 7),
        becomes("parameter", [], [2**62, 1]),
        becomes("parameter", [], [2**32, 2**32]),
        becomes("add", [1, 2], [2, 3]),
        becomes("tanh", [1], [2, 4]),
        becomes("reshape", [1], [2, 4]),
        becomes("transpose", [1], [2, 3], (1, 0)),
        becomes("get-tuple-element", [1], [2, 3]),
        becomes("tuple", [1], []),
        lambda node: node.shape.layout.minor_to_major.__setitem__(0, 0),
        lambda node: setattr(node.shape, "element_type", 77),
        lambda node: setattr(node.shape, "element_type", 4),  # integers of floats
        lambda node: setattr(node.shape, "element_type", 13),
        lambda node: node.ClearField("dot_dimension_numbers"),
        lambda node: node.operand_ids.append(1),
        lambda node: node.ClearField("operand_ids"),
        shards(tile_assignment_dimensions=[2, 3], tile_assignment_devices=[0, 1, 2, 3]),
        shards(tile_assignment_dimensions=[2, 2], tile_assignment_devices=[0, 1, 2, 2]),
        shards(tile_assignment_dimensions=[2, 3], iota_reshape_dims=[4]),
        made_of("custom-call", "custom_call_target", "__cublas$gemm"),
        made_of("fusion", "backend_config", b'"__triton_gemm"'),
    ],
)
def test_an_instruction_that_no_program_of_any_device_has_is_named(change: Change, dot: HloModuleProto) -> None:
    change(dot.computations[0].instructions[2])
    with pytest.raises(DataError) as caught:
        check_module(dot)
    assert caught.value.key == "computations[0].instructions[2] (n3)"


def test_a_dot_of_integers_may_have_floats_as_its_result(dot: HloModuleProto) -> None:
    for node in dot.computations[0].instructions[:2]:
        node.shape.element_type = 2  # s8
    check_module(dot)


@pytest.mark.parametrize(
    "change",
    [
        lambda node: None,
        becomes("add", [1, 1], [2, 3]),
        becomes("reshape", [1], [3, 2]),
        becomes("transpose", [1], [3, 2], (1, 0)),
        made_of("custom-call", "custom_call_target", "tpu_custom_call"),
        shards(tile_assignment_dimensions=[1, 1, 4], iota_reshape_dims=[4], replicate_on_last_tile_dim=True),
    ],
)
def test_a_valid_instruction_of_one_device_is_none_of_them(change: Change, dot: HloModuleProto) -> None:
    change(dot.computations[0].instructions[2])
    check_module(dot)
    dot.entry_computation_id = 9
    with pytest.raises(DataError, match=r"entry_computation_id: .*9"):
        check_module(dot)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda module: None, None),
        (lambda module: module.host_program_shape.parameters[1].dimensions.__setitem__(0, 5), "entry_comp"),
        (lambda module: setattr(module.host_program_shape.parameters[0], "element_type", 10), "entry_comp"),
        (lambda module: module.host_program_shape.parameters.__delitem__(1), "entry_comp"),
        (lambda module: module.host_program_shape.result.dimensions.append(1), "entry_comp"),
        (numbered(2), "computations[0] (main)"),
        (numbered(0), "computations[0] (main)"),
    ],
)
def test_what_callers_see_fits_the_entry_computation(change: Change, key: str | None, dot: HloModuleProto) -> None:
    nodes, dot.computations[0].name = dot.computations[0].instructions, "main"
    dot.host_program_shape.parameters.extend(node.shape for node in nodes[:2])
    dot.host_program_shape.result.CopyFrom(nodes[2].shape)
    change(dot)
    with nullcontext() if key is None else pytest.raises(DataError, match=f"^{re.escape(key)}"):
        check_module(dot)


@pytest.mark.parametrize(
    ("opcodes", "partitions", "divided", "refused"),
    [
        (("dot",), 0, False, True),
        (("dot",), 2, False, True),
        (("dot",), 1, False, False),
        (("parameter",), 2, False, True),
        (("parameter",), 2, True, False),
        (("parameter", "all-reduce"), 2, False, False),
        ((), 2, False, False),
    ],
)
def test_a_program_of_several_devices_is_read_after_the_partitioner(
    opcodes: tuple[str, ...], partitions: int, divided: bool, refused: bool, dot: HloModuleProto
) -> None:
    tiles = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])
    for opcode in opcodes:
        if opcode == "all-reduce":
            dot.computations[0].instructions.add(id=9, opcode=opcode)
        else:
            dot.computations[0].instructions[2 * (opcode == "dot")].sharding.CopyFrom(tiles)
    dot.device_assignment.computation_count = partitions
    dot.spmd_parameters_shardings.extend([tiles] * divided)
    with pytest.raises(DataError, match="sharding: ") if refused else nullcontext():
        check_module(dot)


@pytest.mark.skipif(not has_jaxlib(), reason="needs jaxlib (extra collect)")
def test_partitions_of_texts_and_the_verifier(tmp_path: Path) -> None:
    node = "ROOT d = f32[{},4] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, sharding={{{}}}"
    text = "HloModule m{}\nENTRY e {{\n x = f32[4,4] parameter(0)\n {}\n}}\n"
    tiles = node.format(4, "devices=[2,1]<=[2]")
    shards = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
    main = f"func.func public @main(%a: tensor<4xf32> {shards}) -> tensor<4xf32> {{ return %a : tensor<4xf32> }}"
    path, found = tmp_path / "f.txt", []
    contents = [text.format(partitions, tiles) for partitions in ("", ", num_partitions=1", ", num_partitions=2")]
    wrong = node.format(9, "replicated"), "ROOT g = f32[4,4] iota(), iota_dimension=3"
    contents += [text.format("", line) for line in wrong]
    for index, content in enumerate([*contents, f'module @m {{ sdy.mesh @mesh = <["x"=2]>\n {main} }}']):
        path.write_text(content)
        with suppress(DataError):
            found.append((index, len(next(read_records(path)).module.computations)))
    assert found == [(0, 1), (1, 1)]
    # MLIR cannot write a program of which a parameter is divided: that is not the reason.
    sharded = "a = f32[8,4] parameter(0), sharding={devices=[2,1]0,1}\n ROOT r = f32[32] reshape(a)"
    path.write_text(f"HloModule m, num_partitions=2\nENTRY e {{\n {sharded}\n}}\n")
    with pytest.raises(DataError, match="sharding: "):
        next(read_records(path))

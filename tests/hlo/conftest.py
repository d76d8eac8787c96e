"""Small modules that several tests of this folder use."""

import pytest

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ModuleTuningData


@pytest.fixture
def module() -> HloModuleProto:
    """A parameter, a dot of it with itself, and a call of a `cond` computation that returns its parameter."""
    callee = HloComputationProto(name="cond.1", id=7, root_id=5)
    callee.instructions.append(HloInstructionProto(opcode="parameter", id=5))
    main = HloComputationProto(name="main", id=8, root_id=6)
    parameter = HloInstructionProto(opcode="parameter", id=5)
    dot = HloInstructionProto(opcode="dot", id=9, operand_ids=[5, 5])
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    call = HloInstructionProto(opcode="call", id=6, operand_ids=[9], called_computation_ids=[7])
    for instruction in (parameter, dot):
        instruction.shape.element_type = 11
        instruction.shape.dimensions.extend([4, 4])
        instruction.shape.layout.minor_to_major.extend([1, 0])
    main.instructions.extend([parameter, dot, call])
    return HloModuleProto(name="m", computations=[callee, main])


@pytest.fixture
def layout_record(module: HloModuleProto) -> ModuleTuningData:
    """The module's dot, measured in two layouts."""
    record = ModuleTuningData(module=module, fingerprint=1, config_index_to_node=[2])
    for nanoseconds, dims in ((100, ()), (90, (0, 1))):
        run = record.runs.add()
        run.module_config.layout_config.nodes.add().tensors.add(dims=dims)
        run.profile.compute_time_ns = nanoseconds
    return record


@pytest.fixture
def tile_record(module: HloModuleProto) -> ModuleTuningData:
    """The module, measured with two tiles."""
    record = ModuleTuningData(module=module, fingerprint=2**64 - 26)
    for nanoseconds, bounds in ((500, [2, 3]), (400, [4])):
        run = record.runs.add(is_default=nanoseconds == 500)
        run.op_config.tile_size_config.output_bounds.extend(bounds)
        run.profile.compute_time_ns = nanoseconds
    return record

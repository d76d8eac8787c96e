"""Files and models for the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank.data.collection import Collection, graph_files
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Compiler dump of a parameter and a dot."""
    module = HloModuleProto(name="m")
    computation = module.computations.add(name="main", id=1, root_id=2)
    computation.instructions.add(opcode="parameter", id=1)
    computation.instructions.add(opcode="dot", id=2, operand_ids=[1, 1])
    path = tmp_path / "in" / "jit_f.hlo.pb"
    path.parent.mkdir()
    path.write_bytes(module.SerializeToString())
    return path


@pytest.fixture
def nothing(tmp_path: Path, dump: Path) -> Path:
    """Dump of a program without a node whose layout can be configured."""
    module = HloModuleProto.FromString(dump.read_bytes())
    module.computations[0].instructions[1].opcode = "add"
    path = tmp_path / "nothing.hlo.pb"
    path.write_bytes(module.SerializeToString())
    return path


@pytest.fixture
def record(tmp_path: Path, dump: Path) -> Path:
    """Tuning record of the same program: three runs of two configurations of the dot."""
    module = HloModuleProto.FromString(dump.read_bytes())
    tuning = ModuleTuningData(module=module, fingerprint=1, config_index_to_node=[1])
    for nanoseconds, dims in ((3_000, []), (2_000, [1, 0]), (2_500, [1, 0])):
        run = tuning.runs.add()
        run.module_config.layout_config.nodes.add().tensors.add(dims=dims)
        run.profile.compute_time_ns = nanoseconds
    path = tmp_path / "record.pb"
    path.write_bytes(tuning.SerializeToString())
    return path


@pytest.fixture(scope="session")
def model(linear_model: Callable[..., Path]) -> Path:
    return linear_model()


@pytest.fixture(scope="session")
def tile_model(linear_model: Callable[..., Path]) -> Path:
    return linear_model("tile:synthetic")


@pytest.fixture
def graphs(tiny_collections: Path) -> list[Path]:
    """Two measured graphs with layouts."""
    return graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")


@pytest.fixture
def kernel(tiny_collections: Path) -> Path:
    return graph_files(tiny_collections / "raw", Collection.parse("tile:synthetic"), "valid")[0]


@pytest.fixture
def program(dump: Path) -> Path:
    """Dump of a dot of two matrices, whose layouts are configurable."""
    module = HloModuleProto.FromString(dump.read_bytes())
    for number, instruction in enumerate(module.computations[0].instructions):
        instruction.name = f"{instruction.opcode}.{number}"
        instruction.shape.element_type = 11
        instruction.shape.dimensions[:] = [8, 8]
    dump.write_bytes(module.SerializeToString())
    return dump

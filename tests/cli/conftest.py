"""The command, and its files and models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.cli.main import main
from hlorank.data.collection import Collection, graph_files
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData
from tests.graphs import matrix_product

Capture = pytest.CaptureFixture[str]


class Command:
    """`hlorank` in this process, with `first` before the arguments; calls return the standard output and the errors."""

    def __init__(self, capsys: Capture, *first: object) -> None:
        self._capsys, self._first = capsys, first

    def __call__(self, *arguments: object, status: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()  # what the test itself printed
        assert main([*map(str, (*self._first, *arguments))]) == status
        return self._capsys.readouterr()

    def json(self, *arguments: object, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status)[0])

    def error(self, *arguments: object, status: int = 2) -> str:
        """Return the error, which is one line; nothing else is printed."""
        out, error = self(*arguments, status=status)
        assert (out, error[:7], error.count("\n")) == ("", "error: ", 1)
        return error[7:]


@pytest.fixture
def call(capsys: Capture) -> Command:
    return Command(capsys)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Compiler dump of a dot of two matrices, whose layouts are configurable."""
    path = tmp_path / "in" / "jit_f.hlo.pb"
    path.parent.mkdir()
    path.write_bytes(matrix_product().SerializeToString())
    return path


@pytest.fixture
def nothing(tmp_path: Path, program: Path) -> Path:
    """Dump of a program without a node whose layout can be configured."""
    module = HloModuleProto.FromString(program.read_bytes())
    module.computations[0].instructions[1].opcode = "add"
    path = tmp_path / "nothing.hlo.pb"
    path.write_bytes(module.SerializeToString())
    return path


@pytest.fixture
def record(tmp_path: Path, program: Path) -> Path:
    """Tuning record of the same program: three runs of two configurations of the dot."""
    module = HloModuleProto.FromString(program.read_bytes())
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

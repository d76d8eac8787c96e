"""The generated protobuf module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hlorank.hlo


def test_the_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools (extra dev)")
    package = Path(hlorank.hlo.__file__).parent
    source = package.parents[1]
    targets = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([sys.argv[0], f"-I{source}", *targets, str(package / "hlo.proto")]) == 0
    for name in ("hlo_pb2.py", "hlo_pb2.pyi"):
        assert (tmp_path / "hlorank" / "hlo" / name).read_text() == (package / name).read_text(), "run make proto"

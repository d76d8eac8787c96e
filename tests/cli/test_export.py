"""`hlorank rank --export`: HLO with layout constraints, and the configuration as JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import hlorank
from hlorank.cli.main import main
from hlorank.files import DataError, read_json
from hlorank.hlo import xla_process
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.reader import read_records

TEXT = """HloModule m
ENTRY e {
  x = f32[2,3] parameter(0)
  y = f32[3,2] parameter(1)
  ROOT z = f32[2,2] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def no_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.cli.export.has_jaxlib", lambda: False)


def constraints(module: HloModuleProto) -> list[list[int]]:
    (computation,) = module.computations
    calls = (one for one in computation.instructions if one.custom_call_target == "LayoutConstraint")
    return [[*one.shape.layout.minor_to_major] for one in calls]


@pytest.mark.usefixtures("no_jaxlib")
def test_the_chosen_configuration_is_exported(model: Path, program: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "exported"
    arguments = ["rank", "--model", str(model), str(program), "--candidates", "9", "--export", str(folder), "--json"]
    for choose in (1, 4):
        assert main([*arguments, "--choose", str(choose)]) == 0
        (ranked,) = json.loads(capsys.readouterr().out)
        chosen = ranked["top"][choose - 1]
        assert ranked["exported"] == [str(folder / "jit_f.json"), str(folder / "jit_f.hlo.pb")]
        saved = read_json(folder / "jit_f.json")
        assert (saved["rank"], saved["score"], saved["collection"]) == (
            choose,
            chosen["score"],
            "layout:synthetic:random",
        )
        found = [
            tensor["minor_to_major"]
            for one in saved["instructions"]
            for tensor in (*one["operands"], one["output"])  # the order of the constraints
            if tensor["minor_to_major"] is not None
        ]
        assert sorted(found) == sorted(change["after"] for change in chosen["changes"])
        data = (folder / "jit_f.hlo.pb").read_bytes()
        assert constraints(HloModuleProto.FromString(data)) == found
        assert hlorank.apply_configuration(program, folder / "jit_f.json") == data


def test_the_text_is_that_of_the_protobuf(model: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("jaxlib", reason="needs jaxlib (extra collect)")
    source = tmp_path / "own.hlo"
    source.write_text(TEXT)
    arguments = [
        "rank",
        "--model",
        str(model),
        str(source),
        "--export",
        str(tmp_path / "out"),
        "--choose",
        "3",
        "--json",
    ]
    assert main(arguments) == 0
    (ranked,) = json.loads(capsys.readouterr().out)
    assert ranked["exported"][2] == str(tmp_path / "out" / "own.hlo.txt")
    ((protobuf,), (written,)) = ([*read_records(Path(path))] for path in ranked["exported"][1:])
    assert constraints(written.module) == constraints(protobuf.module) != []
    assert hlorank.apply_configuration(source, tmp_path / "out" / "own.json") == protobuf.module.SerializeToString()


def test_the_module_of_a_function_is_that_of_its_export() -> None:
    saved = {"version": 2, "hlorank": "0.1.0", "module": "m", "fingerprint": "0", "model": "m"}
    chosen = saved | {"collection": "layout:cpu:random", "rank": 1, "score": 0.0, "instructions": []}
    with pytest.raises(DataError, match="--export") as raised:
        hlorank.apply_configuration("own_model:step", chosen)
    assert "own_model:step" in str(raised.value)


@pytest.mark.usefixtures("no_jaxlib")
def test_without_jaxlib_there_is_no_text(
    model: Path, program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert main(["rank", "--model", str(model), str(program), "--export", str(tmp_path / "out")]) == 0
    (line,) = caplog.messages
    assert xla_process.INSTALL in line
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"jit_f.json", "jit_f.hlo.pb"}


@pytest.mark.usefixtures("no_jaxlib")
def test_what_cannot_be_exported_is_named(
    model: Path, program: Path, graphs: list[Path], record: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = ["--export", str(tmp_path / "out")]
    assert main(["rank", "--model", str(model), str(graphs[0]), str(record), str(program), *out]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [str(path) in line for path, line in zip((graphs[0], record), errors, strict=True)] == [True, True]
    assert (tmp_path / "out" / "jit_f.json").is_file()
    few = ["--candidates", "3", "--choose", "5"]
    assert main(["rank", "--model", str(model), str(program), *out, *few]) == 2
    (tmp_path / "file").touch()
    assert main(["rank", "--model", str(model), str(program), "--export", str(tmp_path / "file")]) == 2

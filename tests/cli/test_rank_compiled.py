"""`hlorank rank` of modules before XLA's passes, which are compiled up to layout assignment for a model of a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hlorank
from hlorank.cli.main import main
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.reader import read_records
from hlorank.hlo.stage import TRAINED

# A product, which the compiler leaves as it is, and two reshapes, which it removes.
TEXT = """HloModule m
ENTRY e {
  x = f32[8,16] parameter(0)
  w = f32[16,8] parameter(1)
  d = f32[8,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[64] reshape(d)
  t = f32[8,8] reshape(s)
  ROOT r = f32[8,8] negate(t)
}
"""
COLLECTIVE = """HloModule m
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY e {
  x = f32[8,8] parameter(0)
  d = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,8] all-reduce(d), replica_groups={{0,1}}, to_apply=sum
}
"""
STABLEHLO = """module @m {
  func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>) -> tensor<8x8xf32> {
    %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %s = stablehlo.reshape %d : (tensor<8x8xf32>) -> tensor<64xf32>
    %t = stablehlo.reshape %s : (tensor<64xf32>) -> tensor<8x8xf32>
    %r = stablehlo.negate %t : tensor<8x8xf32>
    return %r : tensor<8x8xf32>
  }
}
"""  # noqa: E501
BEFORE = "module_0001.m.before_optimizations.txt"
Capture = pytest.CaptureFixture[str]

pytest.importorskip("jax", reason="needs jax (extra collect)")


@pytest.fixture(scope="module")
def cpu_model(linear_model: Callable[..., Path], tiny_collections: Path) -> Path:
    address = "layout:cpu:random"
    spec = FeatureStore(tiny_collections / "features" / Collection.parse("layout:synthetic:random").path).spec
    features = spec.model_copy(update={"collection": Collection.parse(address)})
    return linear_model(collection=address, features=features)


def ranked(arguments: list[Any], capsys: Capture) -> tuple[int, dict[str, Any]]:
    """Return the exit status, and the ranking of the only graph."""
    status = main(["rank", *map(str, arguments), "--candidates", "5", "--json"])
    (printed,) = json.loads(capsys.readouterr().out)
    return status, printed


@pytest.mark.parametrize(("name", "text"), [(BEFORE, TEXT), ("own.mlir", STABLEHLO)])
def test_a_module_before_the_passes_is_compiled(
    name: str, text: str, cpu_model: Path, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text(text)
    status, printed = ranked(["--model", cpu_model, tmp_path / name], capsys)
    assert (status, printed["file"]) == (0, str(tmp_path / name))
    assert printed["stage"] == {"found": TRAINED, "trained": TRAINED, "compiled": True, "not_compiled": None}
    (line,) = caplog.messages
    assert str(tmp_path / name) in line
    assert ("--dump before_layout-assignment" in line) == (".before_" not in name)  # where XLA's name does not tell


def test_the_compiled_module_is_exported(cpu_model: Path, tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / BEFORE
    source.write_text(TEXT)
    status, printed = ranked(["--model", cpu_model, source, "--export", tmp_path / "out", "--choose", "3"], capsys)
    assert status == 0
    json_file, protobuf, text = map(Path, printed["exported"])
    (exported,) = read_records(protobuf)
    assert "reshape" not in {one.opcode for one in exported.module.computations[-1].instructions}
    assert hlorank.apply_configuration(source, json_file) == protobuf.read_bytes()
    other = Path(tmp_path, "other.hlo")
    other.write_text(TEXT.replace("negate", "tanh"))
    with pytest.raises(hlorank.files.DataError, match="fingerprint"):
        hlorank.apply_configuration(other, json_file)
    for again in (protobuf, text):  # not compiled again
        status, printed = ranked(["--model", cpu_model, again], capsys)
        assert status == 0
        assert printed["stage"] == {"found": TRAINED, "trained": TRAINED, "compiled": False, "not_compiled": None}


def test_what_is_not_compiled(cpu_model: Path, model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / BEFORE).write_text(TEXT)
    right = tmp_path / "module_0001.m.0003.p.after_dce.before_layout-assignment.txt"
    right.write_text(TEXT)
    for arguments, found in (
        (["--model", cpu_model, tmp_path / BEFORE, "--dump", "before_optimizations"], "before_optimizations"),
        (["--model", model, tmp_path / BEFORE], "before_optimizations"),
        (["--model", cpu_model, right], TRAINED),
        (["--model", cpu_model, tmp_path], TRAINED),  # the one right before layout assignment
    ):
        status, printed = ranked(arguments, capsys)
        assert status == (0 if found == TRAINED else 3)
        assert printed["stage"] == {"found": found, "trained": TRAINED, "compiled": False, "not_compiled": None}


@pytest.mark.parametrize(("name", "status"), [(BEFORE, 3), ("own.hlo", 0)])
def test_a_module_that_does_not_compile_is_ranked_as_it_is(
    name: str, status: int, cpu_model: Path, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text(COLLECTIVE)
    found, printed = ranked(["--model", cpu_model, tmp_path / name], capsys)
    assert found == status
    assert not printed["stage"]["compiled"]
    assert "all-reduce" in printed["stage"]["not_compiled"]
    (line,) = caplog.messages
    assert printed["stage"]["not_compiled"] in line


def test_the_ranked_module_is_that_of_the_function(
    cpu_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    import jax

    (tmp_path / "own_mlp.py").write_text(
        "import jax\n\ndef step(x, y):\n    return jax.nn.softmax(x @ y) @ jax.nn.softmax(y) - x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import own_mlp  # type: ignore[import-not-found]

    shape = jax.ShapeDtypeStruct((8, 8), "float32")
    Path("text.mlir").write_text(jax.jit(own_mlp.step).lower(shape, shape).as_text())
    rankings = [
        ranked(["--model", cpu_model, *program, "--export", "out"], capsys)[1]
        for program in (["text.mlir"], ["own_mlp:step", "--arguments", "f32[8,8] f32[8,8]"])
    ]
    assert [ranking["stage"]["compiled"] for ranking in rankings] == [True, False]  # the function when it was traced
    assert rankings[0]["top"][0]["score"] == rankings[1]["top"][0]["score"]
    modules = [next(read_records(Path(one["exported"][1]))).module for one in rankings]
    assert module_fingerprint(modules[0]) == module_fingerprint(modules[1])

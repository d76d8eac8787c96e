"""Model folders: loading returns what was saved bit by bit, and damage is an error with the name of the file."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hlorank.config import extension_point, import_plugin
from hlorank.config.extension_point import plugin_digests
from hlorank.files import SPEC, WEIGHTS, DataError, sha256_file
from hlorank.models.cost_model import CostModel
from hlorank.models.serialization import ModelSpec, input_sizes, load_model, save_model, sealed
from hlorank.version import __version__

CPU = torch.device("cpu")


@pytest.fixture
def saved(spec: ModelSpec, tmp_path: Path) -> tuple[Path, CostModel, ModelSpec]:
    torch.manual_seed(1)
    model = CostModel(spec.model, input_sizes(spec.features), spec.aggregation).eval()
    save_model(tmp_path / "model", [model], spec)
    return tmp_path / "model", model, spec


Saved = tuple[Path, CostModel, ModelSpec]


def content(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / SPEC).read_text())
    return value


def write_sealed(folder: Path, value: dict[str, Any]) -> None:
    (folder / SPEC).write_text(json.dumps(sealed(value)))


def test_plans_are_made_without_pytorch_and_loading_imports_no_compiler(saved: Saved) -> None:
    script = (
        "import pathlib, sys; import hlorank.models.graph_inputs; assert 'torch' not in sys.modules; import torch; "
        "from hlorank.models.serialization import load_model; "
        "load_model(pathlib.Path(sys.argv[1]), torch.device('cpu')); sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(saved[0])], check=True)


def test_files_are_plain_and_equal_for_equal_models(saved: Saved, tmp_path: Path) -> None:
    folder, model, spec = saved
    assert sorted(path.name for path in folder.iterdir()) == [SPEC, WEIGHTS]
    weights = load_file(folder / WEIGHTS)  # safetensors holds nothing but a JSON header and numbers
    assert weights.keys() == {f"0.{name}" for name in model.state_dict()}
    save_model(tmp_path / "again", [model], spec)
    for name in (WEIGHTS, SPEC):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_members_keep_their_order(spec: ModelSpec, tmp_path: Path) -> None:
    spec = spec.model_copy(update={"members": 3})
    members = [CostModel(spec.model, input_sizes(spec.features), spec.aggregation) for _ in range(3)]
    save_model(tmp_path, members, spec)
    loaded, loaded_spec = load_model(tmp_path, CPU)
    assert loaded_spec.model_dump(mode="json") == spec.model_dump(mode="json")
    for member, expected in zip(loaded, members, strict=True):
        assert not member.training
        torch.testing.assert_close(member.state_dict(), expected.state_dict(), rtol=0, atol=0)
    for wrong in (1, 4):
        write_sealed(tmp_path, content(tmp_path) | {"members": wrong})
        with pytest.raises(DataError, match=r"weights\.safetensors: weights: .*spec.json"):
            load_model(tmp_path, CPU)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def no_safetensors(path: Path) -> None:
    path.write_bytes(b"\xff" * 1000)
    write_sealed(path.parent, {**content(path.parent), "weights_sha256": sha256_file(path)})


def change_tensors(path: Path, change: Callable[[Tensor], Tensor]) -> None:
    save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)
    write_sealed(path.parent, {**content(path.parent), "weights_sha256": sha256_file(path)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: change_tensors(path, Tensor.half), "weights 0[.].*float32.*float16"),
        (lambda path: change_tensors(path, lambda tensor: tensor / 0), "weights 0[.].*finite"),
        (Path.unlink, "no such file"),
        (flip_a_bit, r"sha256: expected [0-9a-f]{64}"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "sha256"),
        (no_safetensors, "file"),
    ],
)
def test_damaged_weights(damage: Callable[[Path], object], message: str, saved: Saved) -> None:
    folder, *_ = saved
    damage(folder / WEIGHTS)
    with pytest.raises(DataError, match=rf"weights\.safetensors: .*{message}"):
        load_model(folder, CPU)


def merged(value: Any, change: Any) -> Any:
    """Return a JSON value with changes below some of its keys."""
    if not isinstance(change, dict):
        return change
    return value | {key: merged(value.get(key), part) for key, part in change.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Of another kind than a specification holds:
        ({"colour": 1}, "colour"),
        ({"steps": "12"}, "steps=12"),
        ({"whole_graph": "no"}, "whole_graph=no"),
        ({"features": []}, "features"),
        ({"aggregation": "median"}, "aggregation=median"),
        ({"model": {"width": "wide"}}, "width=wide"),
        ({"model": {"pooling": ["min"]}}, "pooling.*=min"),
        ({"features": {"opcodes": []}}, "keys: .*features=.*opcode_embedding"),
        ({"features": {"options": {"older": 1}}}, "older: no such key.*; train it again, or install hlorank 0[.]2"),
        # Weights of another model, or more memory than there is:
        ({"model": {"blocks": 3}}, "weights"),
        ({"members": 10**9}, "1,000,000,000 members"),
        ({"model": {"width": 10**18}}, "model"),
        ({"model": {"opcode_width": 2**70}}, "model"),
        ({"model": {"stem": ["gelu"] * 20_000}}, "blocks"),
        ({"features": {"options": {"opcode_width": 0}}}, "opcode_width"),
    ],
)
def test_wrong_specs_are_refused_before_any_memory_is_used(saved: Saved, change: dict[str, Any], message: str) -> None:
    folder, *_ = saved
    write_sealed(folder, merged(content(folder), change))
    with pytest.raises(DataError, match=rf"model/.*{message}") as error:
        load_model(folder, CPU)
    assert len(str(error.value)) <= 500


def test_specs_that_are_missing_incomplete_deep_or_changed(saved: Saved) -> None:
    folder, *_ = saved
    value, found = content(folder), []
    texts = [json.dumps(sealed({key: value[key] for key in value.keys() - {"steps"}})), "{"]
    texts += [f'{{"version": "{__version__}", "x": {"[" * depth}{"]" * depth}}}' for depth in (900, 10**5)]
    changed = [{key: part for key, part in value.items() if key != "spec_sha256"}, {**value, "added": 1}]
    changed += [{**value, key: [part]} for key, part in value.items() if key != "version"]
    changed += [{**value, "model": {**value["model"], key: [part]}} for key, part in value["model"].items()]
    for text in [*texts, *map(json.dumps, changed)]:
        (folder / SPEC).write_text(text)
        with pytest.raises(DataError, match=r"model/spec\.json: ") as caught:
            load_model(folder, CPU)
        found.append(str(caught.value))
    assert "steps" in found[0]
    assert "JSON" in found[1]
    assert all("spec_sha256: " in message for message in found[4:])
    (folder / SPEC).write_text(json.dumps(dict(reversed(value.items()))))  # the order of keys and spaces do not count
    load_model(folder, CPU)
    (folder / SPEC).unlink()
    with pytest.raises(DataError, match=r"spec\.json: file: "):
        load_model(folder, CPU)


def test_models_of_other_versions(saved: Saved) -> None:
    folder, _, spec = saved
    value = content(folder)
    write_sealed(folder, value | {"version": "0.2.999"})
    load_model(folder, CPU)
    for other in ("0.1.0", "0.3.0", "1.1.0", "0.21", ""):
        write_sealed(folder, value | {"version": other})
        with pytest.raises(DataError, match=rf"spec\.json: version: expected .*found {other}; train it again"):
            load_model(folder, CPU)
    model = {"layout_moves" if key == "layout_costs" else key: part for key, part in value["model"].items()}
    write_sealed(folder, value | {"model": model, "partition": {**value["partition"], "halo": 0}})
    assert load_model(folder, CPU)[1].model_dump(mode="json") == spec.model_dump(mode="json")


def test_a_model_with_a_plugin_needs_its_name(
    spec: ModelSpec,
    tmp_path: Path,
    make_plugin: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_plugin("mine", "from torch_geometric.nn import GraphConv\nclass Conv(GraphConv):\n    pass")
    import_plugin("mine")
    config = spec.model.model_copy(update={"block": ["mine:Conv", "gelu"]})
    model = CostModel(config, input_sizes(spec.features), spec.aggregation)
    for folder, digests in {
        "honest": plugin_digests(["mine"]),
        "silent": {},
        "other": {"mine": "of other code"},
    }.items():
        save_model(tmp_path / folder, [model], spec.model_copy(update={"model": config, "plugins": digests}))
        ((loaded,), found) = load_model(tmp_path / folder, CPU)
        assert found.plugins == digests
        torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    (record,) = caplog.records  # of other source code
    assert "mine" in record.getMessage()
    monkeypatch.setattr(extension_point, "_imported", [])  # as in another process
    for folder in ("honest", "silent"):
        with pytest.raises(DataError, match=extension_point.VARIABLE) as caught:
            load_model(tmp_path / folder, CPU)
        assert caught.value.file == tmp_path / folder / SPEC
    monkeypatch.setenv(extension_point.VARIABLE, "mine")
    load_model(tmp_path / "honest", CPU)

"""Manifests of collections: what their graphs share, and graphs that contradict them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hlorank.data.collection import Collection
from hlorank.data.manifest import Manifest, manifest_of
from hlorank.files import DataError

TPU: dict[str, Any] = {"collection": "layout:tpu-v3:random", "runtimes": "estimated", "device": "TPU v3"}
CPU: dict[str, Any] = {"collection": "layout:cpu:random", "device": "cpu", "cpu": "EPYC"}


def graphs(folder: Path, *facts: dict[str, Any], **versions: str) -> list[Path]:
    paths = [folder / f"{number}.npz" for number in range(len(facts))]
    for path, about in zip(paths, facts, strict=True):
        path.with_suffix(".json").write_text(json.dumps({"versions": versions, **about}))
    return [*paths, folder / "without.npz"]


def test_graphs_say_what_their_runtimes_are(tmp_path: Path) -> None:
    found = manifest_of(Collection.parse("layout:tpu-v3:random"), graphs(tmp_path, TPU, TPU, libtpu="1.2", jaxlib="3"))
    assert found == Manifest(backend="tpu-v3", runtimes="estimated", devices=["TPU v3"], compilers=["libtpu 1.2"])
    assert str(found) == "estimated by the compiler for tpu-v3, TPU v3 (libtpu 1.2)"
    other = {**CPU, "cpu": "Xeon", "versions": {"jaxlib": "4"}}
    joined = manifest_of(Collection.parse("layout:joined:random"), graphs(tmp_path, CPU, other, jaxlib="3"))
    assert str(joined) == "measured on cpu, EPYC, Xeon (jaxlib 3, jaxlib 4)"
    assert manifest_of(Collection.parse("layout:own:random"), graphs(tmp_path, {"family": "a"})) is None
    assert str(manifest_of(Collection.parse("tile:xla"), [])) == "measured on tpu-v3, TPU v3"


@pytest.mark.parametrize(
    ("address", "facts"),
    [
        ("layout:own:random", [CPU, TPU]),
        ("layout:cpu:random", [TPU]),
        ("layout:tpu-v5e:random", [TPU]),
        ("layout:tpu-v3:random", [TPU, {**TPU, "runtimes": "measured"}]),
    ],
)
def test_contradictions_are_named(address: str, facts: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        manifest_of(Collection.parse(address), graphs(tmp_path, *facts, jaxlib="3"))
    assert error.value.file == tmp_path / f"{len(facts) - 1}.json"

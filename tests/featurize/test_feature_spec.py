"""Specification of features."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hlorank.config import ConfigError, parse
from hlorank.featurize.feature_spec import ColumnTransform, FeatureSpec
from tests.featurize.conftest import MakeGraph, fitted


@pytest.fixture(scope="module", params=["layout:cpu:random", "tile:cpu"])
def spec(request: pytest.FixtureRequest, layout_graph: MakeGraph, tile_graph: MakeGraph) -> FeatureSpec:
    measured = layout_graph() if request.param.startswith("layout") else tile_graph()
    return fitted(request.param, measured, scaling="minmax", opcode_width=4)


def test_json_round_trip(spec: FeatureSpec) -> None:
    values = spec.model_dump(mode="json")
    again = parse(FeatureSpec, json.loads(json.dumps(values, allow_nan=False)))
    assert again.model_dump(mode="json") == values
    assert again.fingerprint == spec.fingerprint
    assert again.kind == spec.kind
    assert again.opcode_embedding.dtype == np.float32
    np.testing.assert_array_equal(again.opcode_embedding, spec.opcode_embedding)


TRANSFORM = {
    "columns": [0, 2, 3],
    "logarithmic": [False, True, False],
    "center": [0.0, 1.0, 2.0],
    "scale": [1.0, 2.0, 4.0],
}


def test_a_transform_selects_scales_and_is_finite_outside_the_train_range() -> None:
    transform = parse(ColumnTransform, json.loads(json.dumps(TRANSFORM)))
    values = np.array([[3, 9, np.e - 1, 6], [-1, 9, 0, 2.0**99]], dtype=np.float32)
    result = transform(values)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(
        result.astype(np.float64), np.array([[3.0, 0, 1], [-1, -0.5, 2.0**97]]), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("columns", value) for value in ([0, 0, 3], [-1, 2, 3], "some", [0, "two", 3])),
        *(("scale", value) for value in ([1.0, 1.0], [1.0, 0.0, 1.0], [1.0, float("inf"), 1.0], [1.0, {}, 1.0])),
        *(("center", value) for value in ([float("nan"), 0.0, 1.0], None)),
    ],
)
def test_bad_transforms_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        parse(ColumnTransform, {**TRANSFORM, key: value})


def test_a_specification_of_the_first_release_is_read(spec: FeatureSpec) -> None:
    values = spec.model_dump(mode="json")
    options = {**values["options"], "prune_paths": False, "virtual_nodes": False, "dims_128": False, "walk_steps": 0}
    earlier = {**values, "options": options, "fingerprint": "of the options too"}
    assert parse(FeatureSpec, earlier).fingerprint == spec.fingerprint
    with pytest.raises(ConfigError, match="walk_steps"):
        parse(FeatureSpec, {**earlier, "options": {**options, "walk_steps": 8}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("more", 1),
        ("version", 0),
        ("fingerprint", "0"),
        ("extra_columns", ["merged"]),
        *(("opcodes", opcodes) for opcodes in ([3, 2], [0], [121], [300], "all")),
        ("opcode_embedding", [[0.0]]),
        ("collection", "rest"),
        ("options", {}),
        ("options", {"scaling": "none", "log_range": 1, "opcode_width": 4, "prune_hops": None}),
        ("node_columns", None),
        ("node_columns", {"columns": [134], "logarithmic": [False], "center": [0], "scale": [1]}),
        ("tile_columns", "of the other kind"),
        ("inputs", None),
    ],
)
def test_bad_json_is_refused(spec: FeatureSpec, key: str, value: object) -> None:
    values = spec.model_dump(mode="json", exclude={"fingerprint"})
    if value == "of the other kind":
        value = None if spec.kind == "tile" else values["node_columns"]
    with pytest.raises(ConfigError, match=key):
        parse(FeatureSpec, {**values, key: value})


def test_opcode_index(spec: FeatureSpec) -> None:
    vocabulary = spec.opcode_index(spec.opcodes)
    assert vocabulary.dtype == np.uint8
    assert vocabulary.tolist() == list(range(1, len(spec.opcodes) + 1))
    assert spec.opcode_index(np.array([0, 97, 120], dtype=np.uint8)).tolist() == [0, 0, 0]

"""Specification of features."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError, FeaturizeConfig, parse
from hlorank.data.collection import Collection
from hlorank.data.configurations import MeasuredGraph
from hlorank.featurize.feature_spec import ColumnTransform, FeatureSpec
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from tests.sections import featurize_config

MakeGraph = Callable[..., MeasuredGraph]


@pytest.fixture(scope="module", params=["layout:cpu:random", "tile:cpu"])
def spec(request: pytest.FixtureRequest, layout_graph: MakeGraph, tile_graph: MakeGraph) -> FeatureSpec:
    measured = layout_graph() if request.param.startswith("layout") else tile_graph()
    options = featurize_config(scaling="minmax", opcode_width=4)
    return fit_spec(Collection.parse(request.param), options, [TrainSample.of("graph", measured, options)])


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
    ("key", "value", "message"),
    [
        ("columns", [0, 0, 3], "increasing column numbers"),
        ("columns", [-1, 2, 3], "increasing column numbers"),
        ("scale", [1.0, 1.0], "lists of one length"),
        ("scale", [1.0, 0.0, 1.0], "positive numbers"),
        ("scale", [1.0, float("inf"), 1.0], "positive numbers"),
        ("center", [float("nan"), 0.0, 1.0], "finite numbers"),
        ("center", None, "center=null"),
        ("columns", "some", "columns=some"),
        ("columns", [0, "two", 3], "columns="),
        ("scale", [1.0, {}, 1.0], "scale="),
    ],
)
def test_bad_transforms_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ColumnTransform, {**TRANSFORM, key: value})


def test_a_missing_key_of_a_transform_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale: "):
        parse(ColumnTransform, {key: value for key, value in TRANSFORM.items() if key != "scale"})


def test_a_specification_of_the_first_release_is_read(spec: FeatureSpec) -> None:
    values = spec.model_dump(mode="json")
    options = {**values["options"], "prune_paths": False, "virtual_nodes": False, "dims_128": False, "walk_steps": 0}
    earlier = {**values, "options": options, "fingerprint": "of the options too"}
    assert parse(FeatureSpec, earlier).fingerprint == spec.fingerprint
    with pytest.raises(ConfigError, match="walk_steps: no such key"):
        parse(FeatureSpec, {**earlier, "options": {**options, "walk_steps": 8}})


def changed(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda plain: {**plain, **values}


def without_inputs(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "inputs"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_inputs, "inputs: no value"),
        (changed(more=1), "more: no such key"),
        (changed(version=0), "version=0: expected one of 6"),
        (changed(fingerprint="0"), "fingerprint=0"),
        (changed(extra_columns=["merged"]), "extra_columns="),
        (changed(opcodes=[3, 2]), "increasing opcodes"),
        (changed(opcodes=[0]), "increasing opcodes"),
        (changed(opcodes=[121]), "increasing opcodes"),
        (changed(opcodes=[300]), r"opcodes=\[300\]"),
        (changed(opcodes="all"), "opcodes=all: "),
        (changed(opcodes=[2]), "opcode_embedding"),
        (changed(collection="rest"), "collection: .*rest"),
        (changed(options={}), "options.scaling: no value"),
        (changed(options={"scaling": "none", "log_range": 1, "opcode_width": 4, "prune_hops": None}), "scaling=none"),
        (changed(node_columns=None), "node_columns=null"),
        (changed(node_columns={"columns": [134], "logarithmic": [False], "center": [0], "scale": [1]}), "below 134"),
    ],
)
def test_bad_json_is_refused(
    spec: FeatureSpec, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(FeatureSpec, change(spec.model_dump(mode="json")))


def test_tile_columns_are_for_tiles_only(spec: FeatureSpec) -> None:
    values = spec.model_dump(mode="json", exclude={"fingerprint"})
    with pytest.raises(ConfigError, match="tile_columns"):
        parse(FeatureSpec, {**values, "tile_columns": None if spec.kind == "tile" else values["node_columns"]})


def test_opcode_index(spec: FeatureSpec) -> None:
    vocabulary = spec.opcode_index(spec.opcodes)
    assert vocabulary.dtype == np.uint8
    assert vocabulary.tolist() == list(range(1, len(spec.opcodes) + 1))
    assert spec.opcode_index(np.array([0, 97, 120], dtype=np.uint8)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scaling", "robust"),
        ("log_range", -1.0),
        ("log_range", float("nan")),
        ("opcode_width", 0),
        ("prune_hops", -1),
    ],
)
def test_bad_options_are_refused(key: str, value: Any) -> None:
    values = featurize_config().model_dump()
    parse(FeaturizeConfig, values, prefix="featurize")
    with pytest.raises(ConfigError, match=f"{key}={str(value).lower()}"):
        parse(FeaturizeConfig, {**values, key: value}, prefix="featurize")

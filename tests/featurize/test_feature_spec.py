"""The specification of features."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError, FeaturizeConfig
from hlorank.data.collection import Collection
from hlorank.data.graph import MeasuredGraph
from hlorank.featurize.feature_spec import FeatureSpec, FeaturizeOptions
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.files import DataError

MakeGraph = Callable[..., MeasuredGraph]


@pytest.fixture(scope="module", params=["layout:cpu:random", "tile:cpu"])
def spec(request: pytest.FixtureRequest, layout_graph: MakeGraph, tile_graph: MakeGraph) -> FeatureSpec:
    measured = layout_graph() if request.param.startswith("layout") else tile_graph()
    options = FeaturizeOptions("minmax", 100.0, 4, None)
    return fit_spec(Collection.parse(request.param), options, [TrainSample.of("graph", measured, options)])


def test_json_round_trip(spec: FeatureSpec) -> None:
    plain = spec.to_json()
    again = FeatureSpec.from_json(json.loads(json.dumps(plain, allow_nan=False)))
    assert again.to_json() == plain
    assert again.fingerprint == spec.fingerprint
    assert again.kind == spec.kind
    assert again.opcode_embedding.dtype == np.float32
    np.testing.assert_array_equal(again.opcode_embedding, spec.opcode_embedding)


def changed(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda plain: {**plain, **values}


def without_fingerprint(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if key != "fingerprint"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_fingerprint, "keys"),
        (changed(more=1), "keys"),
        (changed(version=0), "re-run the stage featurize"),
        (changed(fingerprint="0"), "fingerprint"),
        (changed(opcodes=[3, 2]), "increasing opcodes"),
        (changed(opcodes=[0]), "increasing opcodes"),
        (changed(opcodes=[121]), "increasing opcodes"),
        (changed(opcodes=[300]), "spec"),
        (changed(opcodes=[2]), "opcode_embedding"),
        (changed(collection="rest"), "spec"),
        (changed(options={}), "spec"),
        (changed(options={"scaling": "none", "log_range": 1, "opcode_width": 4, "prune_hops": None}), "scaling"),
        (changed(node_columns=None), "columns"),
        (changed(node_columns={"columns": [134], "logarithmic": [False], "center": [0], "scale": [1]}), "below 134"),
    ],
)
def test_bad_json_is_refused(
    spec: FeatureSpec, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        FeatureSpec.from_json(change(spec.to_json()))


def test_tile_columns_are_for_tiles_only(spec: FeatureSpec) -> None:
    with pytest.raises(DataError, match="tile_columns"):
        replace(spec, tile_columns=spec.node_columns if spec.tile_columns is None else None)


def test_opcode_index(spec: FeatureSpec) -> None:
    vocabulary = spec.opcode_index(spec.opcodes)
    assert vocabulary.dtype == np.uint8
    assert vocabulary.tolist() == list(range(1, len(spec.opcodes) + 1))
    assert spec.opcode_index(np.array([0, 97, 120], dtype=np.uint8)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("scaling", "robust", "choose standard or minmax"),
        ("log_range", -1.0, "at least 0"),
        ("log_range", float("nan"), "at least 0"),
        ("opcode_width", 0, "at least 1"),
        ("prune_hops", -1, "at least 0"),
        ("walk_steps", -1, "0 for none"),
        ("virtual_nodes", True, r"set featurize\.prune_hops or featurize\.prune_paths"),
    ],
)
def test_bad_options_are_refused(key: str, value: Any, remedy: str) -> None:
    config = FeaturizeConfig(
        scaling="standard",
        log_range=100.0,
        opcode_width=16,
        prune_hops=None,
        prune_paths=False,
        virtual_nodes=False,
        dims_128=False,
        walk_steps=0,
        protobuf=False,
        workers=1,
    )
    FeaturizeOptions.from_config(config)
    with pytest.raises(ConfigError, match=rf"featurize.{key}={value}: .*{remedy}"):
        FeaturizeOptions.from_config(config.model_copy(update={key: value}))

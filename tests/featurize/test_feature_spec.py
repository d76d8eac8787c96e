"""Specifications of features: fitted on the train split, read from JSON, refused where they are wrong."""

import json
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from hlorank.config import ConfigError, parse
from hlorank.featurize.feature_spec import ColumnTransform, FeatureSpec, signed_log
from hlorank.featurize.fit_spec import ColumnStatistics, opcode_embedding
from hlorank.files import DataError
from tests.featurize.small_graphs import fitted, layout_graph, tile_graph

Scaling = Literal["standard", "minmax"]

VALUES = (np.random.default_rng(0).integers(-9, 10, (50, 4)) * [1, 0, 1000, 1]).astype(np.float32)


def fit(scaling: Scaling, *parts: np.ndarray, log_range: float = 100) -> ColumnTransform:
    statistics = ColumnStatistics(scaling, log_range)
    for part in parts:
        statistics.update(part)
    return statistics.transform()


@pytest.mark.parametrize(("scaling", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_statistics_agree_with_scikit_learn(scaling: Scaling, scaler: StandardScaler | MinMaxScaler) -> None:
    transform = fit(scaling, VALUES[:20], VALUES[20:])
    assert transform.columns.tolist() == [0, 2, 3]  # column 1 is constant
    assert transform.logarithmic.tolist() == [False, True, False]
    prepared = VALUES[:, [0, 2, 3]].astype(np.float64)
    prepared[:, 1] = signed_log(prepared[:, 1])
    expected = scaler.fit(prepared).transform(prepared)
    result = transform(VALUES)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_all_columns_constant() -> None:
    transform = fit("standard", np.ones((3, 4), dtype=np.float32))
    assert transform(VALUES).shape == (50, 0)


def test_columns_and_opcodes_of_all_graphs_count() -> None:
    graphs = [layout_graph(seed=seed) for seed in (0, 1)]
    spec = fitted("layout:xla:random", *graphs)
    feat = np.concatenate([graph.graph.node_feat for graph in graphs])[:, :134]
    span = feat.max(axis=0) - feat.min(axis=0)
    # Column 1 is constant; layouts (134 and up) and the opcode are categories, no numbers.
    assert spec.node_columns.columns.tolist() == np.flatnonzero(span > 0).tolist()
    assert spec.opcodes.tolist() == [2, 26, 34, 63, 75]
    assert spec.opcode_embedding.shape == (6, 8)
    assert not spec.opcode_embedding[0].any()  # unknown opcodes
    assert spec.opcode_embedding[1:].any(axis=1).all()
    assert spec.tile_columns is None


def test_layout_configurations_and_runtimes_do_not_matter() -> None:
    measured, other = layout_graph("a"), layout_graph("b", seed=1, configurations=3)
    changed = replace(other, graph=measured.graph)
    specs = [fitted("layout:xla:random", graph) for graph in (measured, measured, changed, other)]
    assert len({spec.fingerprint for spec in specs[:3]}) == 1 != len({spec.fingerprint for spec in specs[2:]})
    assert specs[0].inputs == specs[1].inputs != specs[2].inputs


def test_no_graph_is_an_error() -> None:
    with pytest.raises(DataError, match="layout:xla:random"):
        fitted("layout:xla:random")


def ppmi(counts: np.ndarray) -> np.ndarray:
    """Compute positive pointwise mutual information by its definition, entry by entry."""
    contexts = np.hstack([counts, counts.T]).astype(float)
    total = contexts.sum()
    result = np.zeros_like(contexts)
    for (row, column), count in np.ndenumerate(contexts):
        if count:
            chance = contexts[row].sum() / total * contexts[:, column].sum() / total
            result[row, column] = max(0.0, np.log(count / total / chance))
    return result


@pytest.fixture
def counts() -> np.ndarray:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (12, 12)) * (rng.random((12, 12)) < 0.4)
    counts[3], counts[:, 3] = 0, 0
    return np.asarray(counts, dtype=np.int64)


def test_agrees_with_scikit_learn(counts: np.ndarray) -> None:
    svd = TruncatedSVD(5, algorithm="arpack", random_state=0)
    scores = svd.fit_transform(ppmi(counts))  # U S
    expected = scores / np.sqrt(svd.singular_values_)
    embedding = opcode_embedding(counts, 5)
    np.testing.assert_allclose(np.abs(embedding), np.abs(expected), atol=1e-5)
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=1e-5)
    assert (embedding[np.abs(embedding).argmax(axis=0), np.arange(5)] > 0).all(), "signs are fixed"


def test_zeros_for_opcodes_without_edges_and_columns_beyond_the_rank(counts: np.ndarray) -> None:
    embedding = opcode_embedding(counts, 30)
    assert embedding.shape == (12, 30)
    assert embedding.dtype == np.float32
    assert not embedding[3].any()
    assert np.delete(embedding, 3, axis=0).any(axis=1).all()
    assert embedding[:, 10].any()
    assert not embedding[:, 11:].any()  # 11 opcodes have edges
    assert not opcode_embedding(np.zeros((2, 2), dtype=np.int64), 4).any()


@pytest.fixture(scope="module", params=["layout:cpu:random", "tile:cpu"])
def spec(request: pytest.FixtureRequest) -> FeatureSpec:
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


def test_a_specification_of_the_last_release_is_read(spec: FeatureSpec) -> None:
    values = spec.model_dump(mode="json")
    derived = ["layout_moves" if name == "layout_costs" else name for name in values["options"]["derived"]]
    options = {**values["options"], "derived": derived}
    del options["operand_layouts"], values["runtimes"]
    earlier = {**values, "version": 6, "options": options, "fingerprint": "of the options too", "extra_columns": []}
    assert parse(FeatureSpec, earlier).fingerprint == spec.fingerprint
    for written in (values, earlier):  # also of a version between the last release and the next one
        read = parse(FeatureSpec, {**written, "options": {**written["options"], "protobuf": False}})
        assert read.fingerprint == spec.fingerprint
        with pytest.raises(ConfigError, match=r"^options\.protobuf=true: expected false.*$"):
            parse(FeatureSpec, {**written, "options": {**written["options"], "protobuf": True}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("more", 1),
        ("version", 0),
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

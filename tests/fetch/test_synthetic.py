"""Origin synthetic: the tree it writes, resuming, and the structure of its graphs."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import ConfigError, parse
from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Graph
from hlorank.fetch import synthetic
from hlorank.fetch.synthetic import SyntheticConfig, fetch, layout_graph
from hlorank.fetch.synthetic_graphs import ELEMENTWISE, build_graph
from hlorank.hlo.node_features import COLUMNS, OPCODES, SHAPE
from tests.trees import contents

NAMES = {number: name for name, number in OPCODES.items()}
RANDOM, DEFAULT = Collection.parse("layout:synthetic:random"), Collection.parse("layout:synthetic:default")
SIZES = {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 200, "configurations": 40}
CONFIG = SyntheticConfig(seed=3, configurable_nodes=None, repeated=0.2, noise=0.001, **SIZES)


def small(seed: int = 0, nodes: int = 300, search: str = "random", **options: Any) -> MeasuredGraph:
    values = {"configurable_nodes": None, "configurations": 200, "repeated": 0.25, "noise": 0.001} | options
    return layout_graph(np.random.default_rng(seed), nodes, search=search, **values)


def layouts(measured: MeasuredGraph) -> LayoutConfigurations:
    assert isinstance(measured.configurations, LayoutConfigurations)
    return measured.configurations


def shape(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(size) for size in graph.node_feat[node, SHAPE.start : SHAPE.start + 6] if size)


def operands(graph: Graph, node: int) -> list[int]:
    return [*graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()]


@pytest.mark.parametrize("collection", [RANDOM, DEFAULT], ids=str)
def test_fetch_writes_the_tree_and_resumes_to_the_same_bytes(collection: Collection, tmp_path: Path) -> None:
    output = tmp_path / collection.path
    fetch(collection, CONFIG, output)
    for split in SPLITS:
        files = graph_files(tmp_path, collection, split)
        assert [file.stem for file in files] == [f"synthetic_{split}_{i:03d}" for i in range(SIZES[split])]
        for measured in (read_graph(file, "layout") for file in files):
            assert not measured.measurements.withheld
            assert len(measured.measurements) == 40
            assert 60 <= measured.graph.nodes <= 200
    whole = contents(output)
    (output / "train/synthetic_train_001.npz").unlink()
    (output / "train/.synthetic_train_001.npz.x1.partial").write_bytes(b"half")
    kept = (output / "train/synthetic_train_000.npz").stat()
    fetch(collection, CONFIG, output)
    assert contents(output) == whole
    assert (output / "train/synthetic_train_000.npz").stat().st_mtime_ns == kept.st_mtime_ns


def test_graphs_depend_on_settings_and_code_not_on_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    before = contents(tmp_path)
    assert len(set(before.values())) == len(before)
    (tmp_path / "valid/other.npz").write_bytes(b"stale")
    fetch(RANDOM, CONFIG.model_copy(update={"train": 3, "valid": 0}), tmp_path)
    after = contents(tmp_path)
    assert set(after) == (set(before) | {"train/synthetic_train_002.npz"}) - {"valid/synthetic_valid_000.npz"}
    assert all(after[name] == before[name] for name in set(after) & set(before))
    fetch(RANDOM, CONFIG.model_copy(update={"seed": 4}), tmp_path)
    other = contents(tmp_path)
    assert set(other) == set(before)
    assert all(other[name] != before[name] for name in other)
    monkeypatch.setattr(synthetic, "code_digest", lambda *_: "other")
    fetch(RANDOM, CONFIG, tmp_path)
    assert {**contents(tmp_path), "synthetic.json": b""} == {**before, "synthetic.json": b""}


def test_generated_data_are_layouts_that_are_labelled_so_of_settings_in_range(tmp_path: Path) -> None:
    for address in ("layout:xla:random", "layout:synthetic:models", "tile:synthetic"):
        with pytest.raises(ConfigError, match=rf"collection={address}: expected layout/synthetic"):
            fetch(Collection.parse(address), CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())
    for name, value in {"min_nodes": 201, "max_nodes": 59, "configurable_nodes": 0, "repeated": 1.5}.items():
        with pytest.raises(ConfigError, match=r"^data\.synthetic\."):
            parse(SyntheticConfig, CONFIG.model_dump() | {name: value}, prefix="data.synthetic")
    with pytest.raises(ConfigError, match=r"data\.synthetic\.configurable_nodes=34: .* 33"):
        build_graph(np.random.default_rng(0), 200, 34)


@settings(deadline=None, max_examples=20)
@given(nodes=st.integers(50, 900), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_graphs_are_sound(nodes: int, share: float, seed: int) -> None:
    wanted = 1 + int(share * (nodes // 6 - 1))
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    assert (graph.nodes, len(node_ids)) == (nodes, wanted)
    assert {NAMES[opcode] for opcode in graph.node_opcode[node_ids].tolist()} <= {"convolution", "dot", "reshape"}
    consumes = np.bincount(graph.edge_index[:, 0], minlength=nodes)
    sources = np.isin(graph.node_opcode, [OPCODES["parameter"], OPCODES["constant"]])
    assert ((consumes == 0) == sources).all()
    assert np.unique(graph.edge_index, axis=0).tolist() == graph.edge_index.tolist(), "sorted rows"
    roots = np.flatnonzero(graph.node_feat[:, 0])
    assert roots.tolist() == (graph.node_splits[1:] - 1).tolist()
    # Nothing but the last root is left unused, and edges leave a computation only to call another one's root.
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]
    block = np.searchsorted(graph.node_splits, np.arange(nodes), side="right")
    u, v = graph.edge_index[(block[graph.edge_index] != block[graph.edge_index[:, :1]]).any(axis=1)].T
    assert set(graph.node_opcode[u]) <= {OPCODES["while"]}
    assert set(v) <= set(roots)


@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_consistent(seed: int) -> None:
    graph, _ = build_graph(np.random.default_rng(seed), 500, None)
    for node, opcode in enumerate(graph.node_opcode.tolist()):
        dims, name = shape(graph, node), NAMES[opcode]
        order = graph.node_feat[node, COLUMNS["minor_to_major"].start :][: len(dims)]
        assert sorted(order.tolist()) == list(range(len(dims)))
        inputs = [shape(graph, v) for v in operands(graph, node)]
        if name == "reshape":
            assert math.prod(dims) == math.prod(inputs[0])
        elif name == "dot":
            assert (inputs[0][-1], dims) == (inputs[1][0], (*inputs[0][:-1], inputs[1][1]))
        elif name == "convolution":
            assert inputs[1][-2:] == (inputs[0][-1], dims[-1])
        elif name in ELEMENTWISE:
            assert {*inputs} == {dims}


@pytest.mark.parametrize("search", ["random", "default"])
def test_layouts_obey_the_schema_and_repeat_with_the_noise(search: str) -> None:
    measured = small(nodes=600, search=search, configurations=400, repeated=0.25, noise=0.01)
    graph, configurations = measured.graph, layouts(measured)
    for position, node in enumerate(configurations.node_ids.tolist()):
        inputs = operands(graph, node)
        ranks = [len(shape(graph, n)) for n in (node, inputs[0], inputs[-1])]
        if graph.node_opcode[node] != OPCODES["convolution"]:
            ranks[2] = 0
        for row in configurations.codebook[np.unique(configurations.codes[:, position])]:
            for tensor, rank in enumerate(ranks if (row >= 0).any() else []):
                slot = row[6 * tensor : 6 * tensor + 6].tolist()
                assert sorted(slot[:rank]) == list(range(rank))
                assert slot[rank:] == [-1] * (6 - rank)
    codes, member, counts = np.unique(configurations.codes, axis=0, return_inverse=True, return_counts=True)
    assert len(codes) == 300
    log = np.log(measured.measurements.runtime.astype(float))
    mean = np.bincount(member.ravel(), weights=log) / counts
    within = math.sqrt(((log - mean[member.ravel()]) ** 2).sum() / (400 - 300))
    assert within == pytest.approx(0.01, rel=0.3)


def test_a_tiny_space_repeats_instead_of_searching_on() -> None:
    measured = small(nodes=50, configurable_nodes=1, configurations=100, repeated=0.0)
    assert len(measured.measurements) == 100
    assert len(np.unique(layouts(measured).codes, axis=0)) <= 9
    assert len(small(configurations=1).measurements) == 1


@pytest.mark.slow
def test_a_graph_of_nlp_size_is_generated_in_bounded_memory() -> None:
    tracemalloc.start()
    measured = small(0, 20_000, "default", configurable_nodes=800, configurations=50_000, repeated=0.2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert layouts(measured).codes.shape == (50_000, 800)
    assert peak < 2**29  # the float32 array would take 2.9 GB

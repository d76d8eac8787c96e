"""Origin synthetic: structure of the graphs, the analytic runtime against plain loops, resuming."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from hlorank.config import ConfigError, parse
from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph
from hlorank.data.graph import Graph, LayoutConfigurations, MeasuredGraph, TileConfigurations
from hlorank.fetch import synthetic
from hlorank.fetch.synthetic import (
    SyntheticConfig,
    draw_graph,
    fetch,
    layout_graph,
    layout_runtime,
    tile_kernel,
    tile_runtime,
)
from hlorank.fetch.synthetic import runtime as formula
from hlorank.fetch.synthetic.graphs import build_graph, default_configurable_nodes
from hlorank.fetch.synthetic.program import ELEMENT_BYTES, ELEMENTWISE, OPCODES, Program, convolution_columns
from hlorank.fetch.synthetic.tiles import FAST_MEMORY

NAMES = {number: name for name, number in OPCODES.items()}
RANDOM, DEFAULT, TILE = (
    Collection.parse(a) for a in ("layout:synthetic:random", "layout:synthetic:default", "tile:synthetic")
)
CONFIG = SyntheticConfig(
    seed=3,
    train=2,
    valid=1,
    test=1,
    min_nodes=60,
    max_nodes=200,
    configurable_nodes=None,
    configurations=40,
    repeated=0.2,
    noise=0.001,
)


def small(seed: int = 0, nodes: int = 300, search: str = "random", **options: Any) -> MeasuredGraph:
    values = {"configurable_nodes": None, "configurations": 200, "repeated": 0.25, "noise": 0.001} | options
    return layout_graph(np.random.default_rng(seed), nodes, search=search, **values)


def layouts(measured: MeasuredGraph) -> LayoutConfigurations:
    assert isinstance(measured.configurations, LayoutConfigurations)
    return measured.configurations


def tiles(measured: MeasuredGraph) -> TileConfigurations:
    assert isinstance(measured.configurations, TileConfigurations)
    return measured.configurations


def near_shares(graph: Graph, node_ids: NDArray[np.int64]) -> list[float]:
    """Return the shares of the nodes within 1, 2 and 3 edges of a configurable one, edges taken in both directions."""
    near = np.zeros(graph.nodes, dtype=bool)
    near[node_ids] = True
    shares = []
    for _ in range(3):
        u, v = graph.edge_index.T
        reached = near.copy()
        reached[u[near[v]]] = True
        reached[v[near[u]]] = True
        near = reached
        shares.append(float(near.mean()))
    return shares


def shape(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(d) for d in graph.node_feat[node, 21:27] if d)


def minor_to_major(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(d) for d in graph.node_feat[node, 134:140])[: len(shape(graph, node))]


# --- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "expected"), [(490, 38), (1096, 56), (2774, 56), (3163, 62)])
def test_default_number_follows_real_graphs(nodes: int, expected: int) -> None:
    assert default_configurable_nodes(nodes) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("nodes", "wanted"), [(60, None), (120, None), (300, None), (490, None), (1100, None), (3000, None), (20_000, 800)]
)
def test_neighbourhoods_are_as_large_as_in_real_graphs(nodes: int, wanted: int | None, seed: int) -> None:
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    one, two, three = near_shares(graph, node_ids)
    assert 0.05 <= one <= 0.20
    assert 0.09 <= two <= 0.34
    assert 0.12 <= three <= 0.48


@settings(deadline=None, max_examples=40)
@given(nodes=st.integers(50, 900), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_graphs_are_sound(nodes: int, share: float, seed: int) -> None:
    wanted = 1 + int(share * (nodes // 6 - 1))
    graph, node_ids = build_graph(np.random.default_rng(seed), nodes, wanted)
    assert graph.nodes == nodes
    assert len(node_ids) == wanted
    assert set(graph.node_opcode[node_ids]) <= {26, 34, 75}
    consumes = np.bincount(graph.edge_index[:, 0], minlength=nodes)
    sources = np.isin(graph.node_opcode, [OPCODES["parameter"], OPCODES["constant"]])
    assert ((consumes == 0) == sources).all()
    assert (np.lexsort(graph.edge_index.T[::-1]) == np.arange(len(graph.edge_index))).all()
    assert len(np.unique(graph.edge_index, axis=0)) == len(graph.edge_index)
    roots = np.flatnonzero(graph.node_feat[:, 0])
    assert roots.tolist() == (graph.node_splits[1:] - 1).tolist()
    # Nothing but the last root is left unused, and edges leave a computation only to call another one's root.
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]
    block = np.searchsorted(graph.node_splits, np.arange(nodes), side="right")
    u, v = graph.edge_index[(block[graph.edge_index] != block[graph.edge_index[:, :1]]).any(axis=1)].T
    assert set(graph.node_opcode[u]) <= {OPCODES["while"]}
    assert set(v) <= set(roots)


def test_edges_and_computations_of_a_large_graph() -> None:
    graph, _ = build_graph(np.random.default_rng(0), 10_000, None)
    assert len(graph.edge_index) / graph.nodes == pytest.approx(1.65, abs=0.15)
    lengths = graph.edge_index[:, 0] - graph.edge_index[:, 1]
    assert np.median(lengths) < 20
    assert lengths.max() > 500
    blocks = np.diff(graph.node_splits)
    assert len(blocks) >= 3
    assert blocks.max() > 3 * blocks.min()


@pytest.mark.parametrize("seed", range(6))
def test_features_are_consistent(seed: int) -> None:
    graph, _ = build_graph(np.random.default_rng(seed), 500, None)
    feat = graph.node_feat.astype(np.float64)
    assert (feat == np.trunc(feat)).all()
    assert (feat[:, 2:21].sum(axis=1) == 1).all()
    assert (feat[:, 27] == feat[:, 21:27].sum(axis=1)).all()
    for node in range(graph.nodes):
        dims = shape(graph, node)
        assert feat[node, 28] == pytest.approx(math.prod(dims), rel=1e-6)
        assert sorted(minor_to_major(graph, node)) == list(range(len(dims)))
        assert (feat[node, 134 + len(dims) :] == 0).all()
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
        name = NAMES[int(graph.node_opcode[node])]
        if name == "reshape":
            assert math.prod(dims) == math.prod(shape(graph, operands[0]))
        elif name == "dot":
            left, right = shape(graph, operands[0]), shape(graph, operands[1])
            assert (left[-1], dims) == (right[0], (*left[:-1], right[1]))
        elif name == "convolution":
            left, right = shape(graph, operands[0]), shape(graph, operands[1])
            rank = len(dims)
            assert right == (*feat[node, 37 : 35 + rank], left[-1], dims[-1])
            strides = feat[node, 45 : 43 + rank]
            assert dims[1:-1] == tuple(np.ceil(np.array(left[1:-1]) / strides))
        elif name in ELEMENTWISE:
            assert {shape(graph, v) for v in operands} == {dims}
        elif name == "tuple":
            assert feat[node, 29] == len(operands)
    start = graph.node_splits[0]
    for end in graph.node_splits[1:]:
        inside = np.arange(start, end)
        parameters = inside[graph.node_opcode[inside] == OPCODES["parameter"]]
        assert feat[parameters, 30].tolist() == list(range(len(parameters)))
        start = end


def test_convolution_features_equal_a_real_node(shared_data: Path) -> None:
    real = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/train/unet3d.npz", "layout").graph
    node = int(np.flatnonzero(real.node_opcode == 26)[0])  # 3 x 3 x 3, stride 1
    program = Program()
    dims, order = shape(real, node), minor_to_major(real, node)
    x = program.add("parameter", dims)
    columns = convolution_columns((3, 3, 3), 1, 5)
    program.add("convolution", dims, [x], element="bf16", layout=order, columns=columns)
    assert np.array_equal(program.graph().node_feat[1], real.node_feat[node])


def test_plain_features_equal_a_real_node(shared_data: Path) -> None:
    real = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/train/unet3d.npz", "layout").graph
    ranks = (real.node_feat[:, 21:27] > 0).sum(axis=1)
    node = int(np.flatnonzero((real.node_opcode == OPCODES["multiply"]) & (ranks == 5))[0])
    program = Program()
    element = ("f32", "bf16")[int(real.node_feat[node, 15])]
    program.add("constant", shape(real, node), element=element, layout=minor_to_major(real, node))
    assert np.array_equal(program.graph().node_feat[0], real.node_feat[node])


def test_more_configurable_nodes_than_a_sixth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.synthetic\.configurable_nodes=34: .* 33"):
        build_graph(np.random.default_rng(0), 200, 34)


# --- layout configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["random", "default"])
@pytest.mark.parametrize("seed", range(4))
def test_layouts_obey_the_schema(search: str, seed: int) -> None:
    measured = small(seed, search=search)
    graph, configurations = measured.graph, layouts(measured)
    for position, node in enumerate(configurations.node_ids):
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1]
        is_convolution = graph.node_opcode[node] == 26
        ranks = [len(shape(graph, int(n))) for n in (node, operands[0], operands[-1])]
        for row in configurations.codebook[np.unique(configurations.codes[:, position])]:
            if (row == -1).all():
                continue
            for tensor, rank in enumerate(ranks):
                rank = 0 if tensor == 2 and not is_convolution else rank
                slot = row[6 * tensor : 6 * tensor + 6].tolist()
                assert sorted(slot[:rank]) == list(range(rank))
                assert slot[rank:] == [-1] * (6 - rank)


@pytest.mark.parametrize("search", ["random", "default"])
def test_repeated_share_and_spread_of_repeats(search: str) -> None:
    measured = small(nodes=600, search=search, configurations=400, repeated=0.25, noise=0.01)
    codes, member, counts = np.unique(layouts(measured).codes, axis=0, return_inverse=True, return_counts=True)
    assert len(codes) == 300
    assert len(layouts(measured).codebook) <= 100
    runtime = measured.measurements.runtime.astype(float)
    log = np.log(runtime)
    mean = np.bincount(member.ravel(), weights=log) / counts
    within = math.sqrt(((log - mean[member.ravel()]) ** 2).sum() / (400 - 300))
    assert within == pytest.approx(0.01, rel=0.3)


def test_default_search_starts_at_the_default_and_stays_near_the_best() -> None:
    options: dict[str, Any] = {"nodes": 1000, "configurations": 800}
    for seed in range(3):
        random, default = (small(seed, search=search, **options) for search in ("random", "default"))
        changed = [(layouts(m).codebook[layouts(m).codes] >= 0).any(axis=2).mean(axis=1) for m in (random, default)]
        assert changed[1].min() == 0
        assert np.median(changed[1]) < np.median(changed[0])
        # Mutations of about three nodes add up over the generations.
        assert np.median(changed[1]) * len(layouts(default).node_ids) > 4.5
        spread = [m.measurements.runtime.max() / m.measurements.runtime.min() - 1 for m in (random, default)]
        assert spread[0] > 0.3
        assert spread[1] > 0.03
        assert np.median(default.measurements.runtime) < np.median(random.measurements.runtime)


def test_measurements_are_the_formula_times_noise() -> None:
    measured = small(noise=0.002)
    factor = np.log(measured.measurements.runtime / layout_runtime(measured.graph, layouts(measured)))
    assert abs(factor.mean()) < 5 * 0.002 / math.sqrt(200)
    assert factor.std() == pytest.approx(0.002, rel=0.2)


def test_a_tiny_space_repeats_instead_of_searching_on() -> None:
    measured = small(nodes=50, configurable_nodes=1, configurations=100, repeated=0.0)
    assert len(measured.measurements) == 100
    assert len(np.unique(layouts(measured).codes, axis=0)) <= 9


def test_one_configuration() -> None:
    assert len(small(configurations=1).measurements) == 1


# --- the runtime formula --------------------------------------------------------------------------------------------


FREE = ("parameter", "constant", "broadcast", "tuple", "get-tuple-element", "while")


def plain_runtime(graph: Graph, node_ids: list[int], configuration: NDArray[np.int8]) -> float:
    """Return the runtime by the module's formula, node by node and edge by edge, for one configuration."""
    slots = dict(zip(node_ids, configuration.tolist(), strict=True))
    operands: dict[int, list[int]] = {node: [] for node in range(graph.nodes)}
    for u, v in graph.edge_index.tolist():
        operands[u].append(v)
    names = [NAMES[int(o)] for o in graph.node_opcode]
    size = [
        math.prod(shape(graph, n)) * ELEMENT_BYTES[int(np.argmax(graph.node_feat[n, 2:21]))] for n in range(graph.nodes)
    ]

    def chosen(node: int, tensor: int, of: int) -> tuple[int, ...]:
        values = tuple(d for d in slots[node][6 * tensor : 6 * tensor + 6] if d >= 0)
        return values or minor_to_major(graph, of)

    def waste(node: int, layout: tuple[int, ...]) -> float:
        dims = shape(graph, node)
        return math.sqrt(
            math.prod(math.ceil(dims[d] / r) * r / dims[d] for d, r in zip(layout, (128, 8), strict=False))
        )

    def differ(have: tuple[int, ...], want: tuple[int, ...]) -> float:
        return 0.0 if have == want else 0.5 if have[:1] == want[:1] else 1.0

    out: list[tuple[int, ...]] = []
    total = 0.0
    for u in range(graph.nodes):
        alike = [
            v
            for v in operands[u]
            if names[u] in ELEMENTWISE and names[v] not in FREE and shape(graph, v) == shape(graph, u)
        ]
        if u in slots:
            first, last = operands[u][0], operands[u][-1]
            out.append(chosen(u, 0, u))
            wants = [(first, chosen(u, 1, first))]
            if names[u] == "convolution":
                wants.append((last, chosen(u, 2, last)))
            moved = size[u] * waste(u, out[u]) + sum(size[v] * waste(v, want) for v, want in wants)
            total += formula.OVERHEAD + moved / formula.BANDWIDTH
            if names[u] != "reshape":
                # Both put the output features last, and contract the last dimension of the input.
                flops = 2 * math.prod(shape(graph, u)) * math.prod(shape(graph, last)) / shape(graph, u)[-1]
                miss = 1.0 if wants[0][1][0] == len(shape(graph, first)) - 1 else formula.MISS
                total += flops / formula.FLOPS * math.sqrt(waste(u, out[u]) * waste(first, wants[0][1])) * miss
        else:
            out.append(out[alike[-1]] if alike else minor_to_major(graph, u))
            wants = [(v, out[u]) for v in alike]
            if names[u] not in FREE:
                total += formula.OVERHEAD + size[u] * waste(u, out[u]) / formula.BANDWIDTH
        total += sum(size[v] / formula.COPY_BANDWIDTH * differ(out[v], want) for v, want in wants)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_runtime_equals_plain_loops(seed: int) -> None:
    measured = small(seed, nodes=150, configurable_nodes=12, configurations=12)
    configurations = layouts(measured)
    ids = configurations.node_ids.tolist()
    expected = [plain_runtime(measured.graph, ids, row) for row in configurations.values()]
    assert layout_runtime(measured.graph, configurations) == pytest.approx(expected, rel=1e-12)
    assert np.std(expected) > 0


def test_distant_configurable_nodes_depend_on_each_other() -> None:
    measured = small(nodes=2000)
    graph, configurations = measured.graph, layouts(measured)
    codes, nodes = np.asarray(configurations.codes), configurations.node_ids
    other = codes[np.argmax(codes != codes[0], axis=0), np.arange(len(nodes))]  # the first other layouts of each node
    ends = np.concatenate([graph.edge_index, graph.edge_index[:, ::-1]]).T
    edges = csr_matrix((np.ones(len(ends[0])), tuple(ends)), shape=(graph.nodes, graph.nodes))
    hops = shortest_path(edges, unweighted=True, indices=nodes)[:, nodes]
    first, second = np.nonzero(np.triu(hops > 3))

    def runtime(*changed: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = np.tile(codes[0], (len(changed[0]), 1))
        for columns in changed:
            rows[np.arange(len(rows)), columns] = other[columns]
        return layout_runtime(graph, dataclasses.replace(configurations, codes=rows))

    base = layout_runtime(graph, configurations)[0]
    together = runtime(first, second) - runtime(first) - runtime(second) + base
    assert (np.abs(together) > 1e-6 * base).sum() >= 10


def test_layouts_travel_through_elementwise_nodes() -> None:
    """dot -> tanh -> exponential -> dot: the copy has a cost where the second dot requires another layout."""
    program = Program()
    x, w = (program.add("parameter", (128, 128)) for _ in range(2))
    first = program.add("dot", (128, 128), [x, w])
    middle = program.add("exponential", (128, 128), [program.add("tanh", (128, 128), [first])])
    weights = program.add("parameter", (128, 128))
    second = program.add("dot", (128, 128), [middle, weights])
    rows = np.full((4, 18), -1, dtype=np.int8)
    rows[1, [0, 1, 6, 7]] = [0, 1, 1, 0]  # output column-major, input row-major as it comes
    rows[2, [0, 1, 6, 7]] = [1, 0, 0, 1]  # input column-major
    rows[3, [0, 1, 6, 7]] = [1, 0, 1, 0]
    ids = np.array([first, second])
    codes = np.array([[3, 3], [1, 3], [1, 2], [3, 2], [0, 0]], dtype=np.uint8)
    same, out, both, into, default = layout_runtime(program.graph(), LayoutConfigurations(ids, rows, codes))
    copy = 128 * 128 * 4 / formula.COPY_BANDWIDTH
    assert default == same
    assert out - same == pytest.approx(copy)  # 128 fills the lanes either way, so only the copy differs
    miss = into - same - copy
    assert miss == pytest.approx(2 * 128**3 / formula.FLOPS * (formula.MISS - 1))
    assert both - same == pytest.approx(miss)


# --- tile kernels ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(nodes=st.integers(2, 60), configurations=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_kernels_are_sound(nodes: int, configurations: int, seed: int) -> None:
    kernel = tile_kernel(np.random.default_rng(seed), nodes, configurations, 0.2, 0.001)
    graph, feat = kernel.graph, tiles(kernel).feat
    assert graph.nodes == nodes
    assert len(feat) == configurations
    dims = shape(graph, nodes - 1)
    for start in (0, 8):
        bounds = feat[:, start : start + 6]
        assert (feat[:, start + 6] == bounds.sum(axis=1)).all()
        product = np.where(bounds > 0, bounds, 1).prod(axis=1) * bounds.any(axis=1)
        assert (feat[:, start + 7] == product).all()
    assert (feat[:, 8 : 8 + len(dims)] <= dims).all()
    if feat.any() and 12 * math.prod(dims) <= FAST_MEMORY:
        assert tuple(feat[0, 8 : 8 + len(dims)]) == dims  # the default is the largest tile that fits
    assert (feat[:, 8 + len(dims) : 14] == 0).all()
    assert (feat[:, 16:] == 0).all()
    assert kernel.measurements.normalizer is not None
    assert (kernel.measurements.normalizer == kernel.measurements.runtime[0]).all()
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]


def test_tile_runtime_of_a_dot() -> None:
    program = Program()
    operands = [program.add("parameter", (256, 512)), program.add("parameter", (512, 300))]
    program.add("dot", (256, 300), operands)
    feat = np.zeros((2, 24), dtype=np.float32)
    feat[0, [0, 6, 7, 8, 9, 14, 15]] = [200, 200, 200, 64, 128, 192, 8192]
    first, whole = tile_runtime(program.graph(), TileConfigurations(feat))
    # ceil(256 / 64) ceil(300 / 128) ceil(512 / 200) tiles of 64 x 128, which fills the registers.
    moved = 4 * (2 * 64 * 128 + 128 * 200)
    assert first == pytest.approx(4 * 3 * 3 * (300 + 8192 * 200 / 16_384 + moved / 300))
    moved = 4 * (2 * 256 * 384 + 300 * 512)  # 300 columns take 384 lanes; one tile, and it fits
    assert whole == pytest.approx(300 + 256 * 384 * 512 / 16_384 + moved / 300)


def test_large_tiles_spill_and_elementwise_work_counts() -> None:
    program = Program()
    x = program.add("parameter", (1024, 1024))
    program.add("tanh", (1024, 1024), [program.add("negate", (1024, 1024), [x])])
    whole = tile_runtime(program.graph(), TileConfigurations(np.zeros((1, 24), dtype=np.float32)))
    assert whole == pytest.approx(300 + 2**20 * 2 / 1024 + 8 * 2**20 / 300 * 4)


def test_kernels_vary_and_some_rows_repeat() -> None:
    kernels = [tile_kernel(np.random.default_rng(seed), 12, 50, 0.2, 0.001) for seed in range(30)]
    untiled = [not tiles(k).feat.any() for k in kernels]
    assert 0 < sum(untiled) < 15
    for kernel, zero in zip(kernels, untiled, strict=True):
        spread = kernel.measurements.runtime.max() / kernel.measurements.runtime.min()
        assert 1.2 < spread < 500
        distinct = len(np.unique(tiles(kernel).feat, axis=0))
        assert distinct == 1 if zero else distinct == 40


# --- fetch ----------------------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("collection", [RANDOM, DEFAULT, TILE], ids=str)
def test_fetch_writes_the_tree(collection: Collection, tmp_path: Path) -> None:
    fetch(collection, CONFIG, tmp_path / collection.path)
    for split, count in zip(SPLITS, (2, 1, 1), strict=True):
        files = graph_files(tmp_path, collection, split)
        assert [f.stem for f in files] == [f"synthetic_{split}_{i:03d}" for i in range(count)]
        for index, file in enumerate(files):
            measured = read_graph(file, collection.kind)
            drawn = draw_graph(collection, CONFIG, split, index)
            assert measured.name == drawn.name
            assert np.array_equal(measured.measurements.runtime, drawn.measurements.runtime)
            assert np.array_equal(measured.graph.node_feat, drawn.graph.node_feat)
            assert not measured.measurements.withheld
            if collection is TILE:
                assert len(measured.measurements) == 5
                assert np.array_equal(tiles(measured).feat, tiles(drawn).feat)
            else:
                assert len(measured.measurements) == 40
                assert 60 <= measured.graph.nodes <= 200
                assert np.array_equal(layouts(measured).codebook, layouts(drawn).codebook)
                assert np.array_equal(layouts(measured).codes, layouts(drawn).codes)


def test_fetch_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    fetch(RANDOM, CONFIG, whole)
    fetch(RANDOM, CONFIG, killed)
    (killed / "train/synthetic_train_001.npz").unlink()
    (killed / "train/.synthetic_train_001.npz.x1.partial").write_bytes(b"half")
    kept = (killed / "train/synthetic_train_000.npz").stat()
    fetch(RANDOM, CONFIG, killed)
    assert tree(killed) == tree(whole)
    assert (killed / "train/synthetic_train_000.npz").stat().st_mtime_ns == kept.st_mtime_ns


def test_number_of_graphs_does_not_change_their_bytes(tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    fetch(TILE, CONFIG, grown)
    before = tree(grown)
    assert len(set(before.values())) == len(before)
    (grown / "valid/other.npz").write_bytes(b"stale")
    for folder in (grown, fresh):
        fetch(TILE, CONFIG.model_copy(update={"train": 3, "valid": 0}), folder)
    after = tree(fresh)
    assert tree(grown) == after
    assert set(after) == (set(before) | {"train/synthetic_train_002.npz"}) - {"valid/synthetic_valid_000.npz"}
    assert all(after[name] == before[name] for name in set(after) & set(before))


def test_other_settings_write_other_graphs(tmp_path: Path) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    before = tree(tmp_path)
    fetch(RANDOM, CONFIG.model_copy(update={"seed": 4}), tmp_path)
    after = tree(tmp_path)
    assert set(after) == set(before)
    assert all(after[name] != before[name] for name in after)


def test_other_code_writes_other_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    file = tmp_path / "train/synthetic_train_000.npz"
    before = file.read_bytes()
    file.write_bytes(b"of older code")
    fetch(RANDOM, CONFIG, tmp_path)
    assert file.read_bytes() == b"of older code"  # complete files are kept
    monkeypatch.setattr(synthetic, "code_digest", lambda *_: "other")
    fetch(RANDOM, CONFIG, tmp_path)
    assert file.read_bytes() == before


def test_generated_data_is_labelled_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"collection=layout:xla:random: expected .*synthetic"):
        fetch(Collection.parse("layout:xla:random"), CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train", -1),
        ("min_nodes", 49),
        ("min_nodes", 201),
        ("configurable_nodes", 0),
        ("configurations", 0),
        ("repeated", 1.5),
        ("noise", -0.1),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    named = "max_nodes=200: expected .* min_nodes=201" if value == 201 else f"{name}={value}: expected"
    with pytest.raises(ConfigError, match=rf"^data\.synthetic\.{named}"):
        parse(SyntheticConfig, CONFIG.model_dump() | {name: value}, prefix="data.synthetic")


_LARGE = """
import resource, numpy as np
from hlorank.fetch.synthetic import layout_graph
measured = layout_graph(np.random.default_rng(0), 20_000, 800, 50_000, "{search}", 0.2, 0.001)
assert measured.configurations.codes.shape == (50_000, 800)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "default"])
def test_a_graph_of_nlp_size_is_generated_in_bounded_memory(search: str) -> None:
    command = [sys.executable, "-c", _LARGE.format(search=search)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
    assert int(done.stdout) < 1_000_000  # kB; the float32 array would take 2.9 GB

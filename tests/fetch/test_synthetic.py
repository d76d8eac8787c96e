"""Origin synthetic: the tree it writes, resuming, its configurations, and the analytic runtime against plain loops."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.config import ConfigError, parse
from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Graph
from hlorank.fetch import synthetic
from hlorank.fetch.synthetic import RuntimeModel, SyntheticConfig, fetch, layout_graph
from hlorank.fetch.synthetic_graphs import ELEMENTWISE
from hlorank.hlo.node_features import OPCODES
from tests.fetch.test_synthetic_graphs import NAMES, order, shape

RANDOM, DEFAULT = Collection.parse("layout:synthetic:random"), Collection.parse("layout:synthetic:default")
SIZES = {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 200, "configurations": 40}
CONFIG = SyntheticConfig(seed=3, configurable_nodes=None, repeated=0.2, noise=0.001, **SIZES)


def small(seed: int = 0, nodes: int = 300, search: str = "random", **options: Any) -> MeasuredGraph:
    values = {"configurable_nodes": None, "configurations": 200, "repeated": 0.25, "noise": 0.001} | options
    return layout_graph(np.random.default_rng(seed), nodes, search=search, **values)


def layouts(measured: MeasuredGraph) -> LayoutConfigurations:
    assert isinstance(measured.configurations, LayoutConfigurations)
    return measured.configurations


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("collection", [RANDOM, DEFAULT], ids=str)
def test_fetch_writes_the_tree_and_resumes_to_the_same_bytes(collection: Collection, tmp_path: Path) -> None:
    output = tmp_path / collection.path
    fetch(collection, CONFIG, output)
    for split in SPLITS:
        files = graph_files(tmp_path, collection, split)
        assert [file.stem for file in files] == [f"synthetic_{split}_{i:03d}" for i in range(SIZES[split])]
        for file in files:
            measured = read_graph(file, "layout")
            assert not measured.measurements.withheld
            assert len(measured.measurements) == 40
            assert 60 <= measured.graph.nodes <= 200
    whole = tree(output)
    (output / "train/synthetic_train_001.npz").unlink()
    (output / "train/.synthetic_train_001.npz.x1.partial").write_bytes(b"half")
    kept = (output / "train/synthetic_train_000.npz").stat()
    fetch(collection, CONFIG, output)
    assert tree(output) == whole
    assert (output / "train/synthetic_train_000.npz").stat().st_mtime_ns == kept.st_mtime_ns


def test_graphs_depend_on_settings_and_code_and_not_on_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    before = tree(tmp_path)
    assert len(set(before.values())) == len(before)
    (tmp_path / "valid/other.npz").write_bytes(b"stale")
    fetch(RANDOM, CONFIG.model_copy(update={"train": 3, "valid": 0}), tmp_path)
    after = tree(tmp_path)
    assert set(after) == (set(before) | {"train/synthetic_train_002.npz"}) - {"valid/synthetic_valid_000.npz"}
    assert all(after[name] == before[name] for name in set(after) & set(before))
    fetch(RANDOM, CONFIG.model_copy(update={"seed": 4}), tmp_path)
    other = tree(tmp_path)
    assert set(other) == set(before)
    assert all(other[name] != before[name] for name in other)
    monkeypatch.setattr(synthetic, "code_digest", lambda *_: "other")
    fetch(RANDOM, CONFIG.model_copy(update={"seed": 3}), tmp_path)
    assert {**tree(tmp_path), "synthetic.json": b""} == {**before, "synthetic.json": b""}


def test_generated_data_are_layouts_that_are_labelled_so_of_settings_in_range(tmp_path: Path) -> None:
    for address in ("layout:xla:random", "tile:synthetic"):
        with pytest.raises(ConfigError, match=rf"collection={address}: expected layout/synthetic"):
            fetch(Collection.parse(address), CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())
    for name, value in {"min_nodes": 201, "max_nodes": 59, "configurable_nodes": 0, "repeated": 1.5}.items():
        with pytest.raises(ConfigError, match=r"^data\.synthetic\."):
            parse(SyntheticConfig, CONFIG.model_dump() | {name: value}, prefix="data.synthetic")


@pytest.mark.parametrize("search", ["random", "default"])
@pytest.mark.parametrize("seed", range(2))
def test_layouts_obey_the_schema(search: str, seed: int) -> None:
    measured = small(seed, search=search)
    graph, configurations = measured.graph, layouts(measured)
    for position, node in enumerate(configurations.node_ids.tolist()):
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
        ranks = [len(shape(graph, n)) for n in (node, operands[0], operands[-1])]
        if graph.node_opcode[node] != OPCODES["convolution"]:
            ranks[2] = 0
        for row in configurations.codebook[np.unique(configurations.codes[:, position])]:
            for tensor, rank in enumerate(ranks if (row >= 0).any() else []):
                slot = row[6 * tensor : 6 * tensor + 6].tolist()
                assert sorted(slot[:rank]) == list(range(rank))
                assert slot[rank:] == [-1] * (6 - rank)


@pytest.mark.parametrize("search", ["random", "default"])
def test_some_configurations_repeat_with_the_noise(search: str) -> None:
    measured = small(nodes=600, search=search, configurations=400, repeated=0.25, noise=0.01)
    codes, member, counts = np.unique(layouts(measured).codes, axis=0, return_inverse=True, return_counts=True)
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


# Runtime

FREE = ("parameter", "constant", "broadcast", "tuple", "get-tuple-element", "while")
BYTES = {11: 4, 13: 2, 16: 0}  # by the column of the type: f32, bf16, tuple


def runtime(graph: Graph, configurations: LayoutConfigurations) -> NDArray[np.float64]:
    return RuntimeModel(graph, configurations.node_ids, configurations.codebook)(configurations.codes)


def plain_runtime(graph: Graph, node_ids: list[int], configuration: NDArray[np.int8]) -> float:
    """Return the runtime by the module's formula, node by node, for one configuration."""
    slots = dict(zip(node_ids, configuration.tolist(), strict=True))
    names = [NAMES[opcode] for opcode in graph.node_opcode.tolist()]
    size = [
        math.prod(shape(graph, node)) * BYTES[int(np.argmax(graph.node_feat[node, 2:21]))]
        for node in range(graph.nodes)
    ]

    def chosen(node: int, tensor: int, of: int) -> tuple[int, ...]:
        return tuple(dim for dim in slots[node][6 * tensor : 6 * tensor + 6] if dim >= 0) or order(graph, of)

    def padded(node: int, layout: tuple[int, ...]) -> float:
        minor = shape(graph, node)[layout[0]] if layout else 128
        return size[node] * math.sqrt(math.ceil(minor / 128) * 128 / minor)

    layout_of: list[tuple[int, ...]] = []
    total = 0.0
    for node, name in enumerate(names):
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
        alike = [
            v
            for v in operands
            if name in ELEMENTWISE and names[v] not in FREE and shape(graph, v) == shape(graph, node)
        ]
        layout_of.append(layout_of[alike[-1]] if alike else order(graph, node))
        if node in slots:
            layout_of[node] = chosen(node, 0, node)
            first, last = operands[0], operands[-1]
            wanted = chosen(node, 1, first)
            moved = padded(first, wanted) + (padded(last, chosen(node, 2, last)) if name == "convolution" else 0)
            total += moved / synthetic.BANDWIDTH
            if layout_of[first] != wanted:
                total += size[first] / synthetic.COPY_BANDWIDTH
            if name != "reshape":
                flops = 2 * math.prod(shape(graph, node)) * math.prod(shape(graph, last)) / shape(graph, node)[-1]
                miss = 1.0 if wanted[0] == len(shape(graph, first)) - 1 else synthetic.MISS
                total += flops / synthetic.FLOPS * miss
        if name not in FREE:
            total += synthetic.OVERHEAD + padded(node, layout_of[node]) / synthetic.BANDWIDTH
    return total


@pytest.mark.parametrize("seed", range(4))
def test_the_runtime_equals_plain_loops(seed: int) -> None:
    measured = small(seed, nodes=150, configurable_nodes=12, configurations=12, noise=0.0, repeated=0.0)
    configurations = layouts(measured)
    ids = configurations.node_ids.tolist()
    expected = [plain_runtime(measured.graph, ids, row) for row in configurations.values()]
    assert runtime(measured.graph, configurations) == pytest.approx(expected, rel=1e-12)
    assert measured.measurements.runtime.tolist() == np.rint(expected).tolist()
    assert np.std(expected) > 0


_LARGE = """
import numpy as np
from hlorank.fetch.synthetic import layout_graph
measured = layout_graph(np.random.default_rng(0), 20_000, 800, 50_000, "default", 0.2, 0.001)
assert measured.configurations.codes.shape == (50_000, 800)
# Not ru_maxrss, which starts at the peak of the process that started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_a_graph_of_nlp_size_is_generated_in_bounded_memory() -> None:
    command = [sys.executable, "-c", _LARGE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
    assert int(done.stdout) < 1_000_000  # kB; the float32 array would take 2.9 GB

"""Generated collections of published sizes, and the benchmark that runs the pipeline on them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlorank.data.collection import Collection, graph_files, read_graph
from hlorank.data.configurations import LayoutConfigurations
from tests.benchmarks.conftest import BENCHMARKS, Outcome

sys.path.append(str(BENCHMARKS))
import full_size  # type: ignore[import-not-found] # of the folder of the benchmarks
import published_sizes as sizes  # type: ignore[import-not-found] # as above

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # an earlier test of this process may have started JAX

NAMES = [*sizes.PUBLISHED]


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_that_are_published(name: str) -> None:
    published = sizes.PUBLISHED[name]
    graphs = sizes.graph_sizes(Collection.parse(name))
    assert tuple(Counter(graph.split for graph in graphs)[split] for split in sizes.SPLITS) == published.graphs
    assert sum(graph.configurations for graph in graphs) == published.configurations
    assert max(graph.configurations for graph in graphs) == published.max_configurations
    nodes = [graph.nodes for graph in graphs]
    assert (np.mean(nodes), max(nodes)) == published.nodes
    assert max(graph.configurable for graph in graphs) == published.configurable
    configured = sum(graph.configurable * graph.configurations for graph in graphs)
    if published.configurable:
        assert configured / published.configurations == pytest.approx(sizes.MEAN_CONFIGURABLE, rel=0.01)
    assert graphs[0].nodes == max(nodes)
    assert graphs[0].split == "valid"
    assert sizes.graph_sizes(Collection.parse(name)) == graphs


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 200), st.floats(0, 1), st.integers(0, 5))
def test_counts_have_an_exact_sum(number: int, lowest: int, span: int, share: float, seed: int) -> None:
    highest = lowest + span
    total = lowest * number + round(share * span * number)
    counts = sizes.draw_counts(np.random.default_rng(seed), number, total, lowest, highest)
    assert (len(counts), counts.sum()) == (number, total)
    assert lowest <= counts.min() <= counts.max() <= highest
    assert counts[0] == min(highest, total - lowest * (number - 1))


@pytest.mark.parametrize("name", NAMES)
def test_written_graphs_have_their_sizes(name: str, tmp_path: Path) -> None:
    collection = Collection.parse(name)
    graphs = sizes.graph_sizes(collection, **full_size.QUICK)
    graphs = [graphs[0], *({graph.split: graph for graph in graphs[1:]}.values())]
    for graph in graphs:
        sizes.write_sized_graph(graph, collection, tmp_path)
    for split in sizes.SPLITS:
        files = graph_files(tmp_path, collection, split)
        for graph, path in zip([graph for graph in graphs if graph.split == split], files, strict=True):
            read = read_graph(path, collection.kind)
            assert (read.graph.nodes, len(read.configurations)) == (graph.nodes, graph.configurations)
            assert graph.edges in (None, len(read.graph.edge_index))
            assert read.measurements.withheld == (split == "test")
            if isinstance(read.configurations, LayoutConfigurations):
                assert len(read.configurations.node_ids) == graph.configurable


def test_collections_of_a_source_have_the_same_graphs() -> None:
    graphs = []
    for name in ("layout:xla:default", "layout:xla:random"):
        collection = Collection.parse(name)
        size = sizes.graph_sizes(collection, configurations=0.002, nodes=0.1)[1]
        graphs.append(sizes.draw_graph(size, collection, "graph").graph)
    assert np.array_equal(graphs[0].node_feat, graphs[1].node_feat)
    assert np.array_equal(graphs[0].node_opcode, graphs[1].node_opcode)
    assert np.array_equal(graphs[0].edge_index, graphs[1].edge_index)


def test_rows_that_are_there_are_kept(run: Callable[..., Outcome], tmp_path: Path) -> None:
    def row(stage: full_size.Stage, **figures: Any) -> dict[str, Any]:
        size = full_size.Size(1.0, 1.0, 1.0)._asdict()
        own = {
            "collection": "tile:xla",
            **size,
            "steps": full_size.STEPS,
            "cores": len(full_size.os.sched_getaffinity(0)),
        }
        return {**own, "stage": stage.name, "training": stage.training, "wall_seconds": 1.0, "bytes": 2, **figures}

    stages = full_size.stages(Collection.parse("tile:xla"), full_size.STEPS)
    rows = [row(stage, cpu_seconds=float(number), peak_bytes=10**9) for number, stage in enumerate(stages)]
    (results := tmp_path / "rows.json").write_text(json.dumps({"stages": rows}))
    before = results.read_text()
    options = ("--json", results, "--work", tmp_path / "work", "--collection", "tile/xla")
    assert run("full_size", *options) == Outcome(0, "", "")
    assert results.read_text() == before
    assert not (tmp_path / "work").exists()
    figure = tmp_path / "growth.svg"
    shown = run("full_size", *options, "--show", "--plot", figure)
    assert shown.out.count("tile:xla") == len(stages)
    assert shown.status == 2, "rows of one size do not grow"
    assert not figure.exists()

    rows += [{**one, "configurations": 0.1, "cpu_seconds": 1.0} for one in rows]
    results.write_text(json.dumps({"stages": rows}))
    assert run("full_size", *options, "--show", "--plot", figure).status == 0
    assert figure.stat().st_size > 0


def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(full_size.ConfigError, match=r"status 3: why$"):
        full_size.measured([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path)


def test_memory_is_that_of_all_processes(tmp_path: Path) -> None:
    child = "held = bytes(range(256)) * 400_000; import time; time.sleep(1.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    figures = full_size.measured([sys.executable, "-c", parent], tmp_path)
    assert figures["peak_bytes"] >= 1.02e8
    assert figures["cpu_seconds"] > 0


def test_other_collections_are_refused(run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run("full_size", "--collection", "tile/cpu", "--work", tmp_path)
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "tile:xla" in outcome.err


@pytest.mark.slow
def test_an_interrupted_call_continues_at_its_stage(run: Callable[..., Outcome], tmp_path: Path) -> None:
    places = ("--work", tmp_path / "work", "--json", tmp_path / "rows")
    options = ("--quick", "--collection", "layout/nlp/random", "--training", "gst", *places)
    place = tmp_path / f"work/layout-nlp-random-0.005-0.1-0.05-2-{len(full_size.os.sched_getaffinity(0))}"
    (place / "data").mkdir(parents=True)
    (place / "data/raw").touch()  # so that fetch fails
    assert run("full_size", *options).status == 2
    stages = json.loads((tmp_path / "rows").read_text())["stages"]
    assert [row["stage"] for row in stages] == ["generate"]
    (place / "data/raw").unlink()
    assert run("full_size", *options).status == 0
    rows = json.loads((tmp_path / "rows").read_text())["stages"]
    wanted = full_size.stages(Collection.parse("layout:nlp:random"), 2, ["gst"])
    assert [(row["stage"], row["training"]) for row in rows] == [(stage.name, stage.training) for stage in wanted]
    assert rows[0] == stages[0]
    assert all(row["bytes"] > 0 for row in rows)
    assert not place.exists()

"""Rankings as JSON: the first configurations, and the comparison with known runtimes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.configurations import MeasuredGraph, Measurements, TileConfigurations
from hlorank.data.graph import Graph
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import ModuleTuningData, TuningData
from hlorank.metrics import ranking
from hlorank.ranking.inputs import GraphReader, InputGraph
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.result import RankedGraph, rank_file, ranked_graph, top_configurations

SCORES = np.array([0.5, -1.0, 0.5, 2.0])


def kernel(runtime: list[int], normalizer: list[int]) -> InputGraph:
    """Return a kernel with four tiles; the last two have equal features."""
    graph = Graph(
        np.zeros((1, 140), dtype=np.float32),
        np.array([63], dtype=np.uint8),
        np.zeros((0, 2), dtype=np.int64),
        np.array([0, 1]),
    )
    tiles = TileConfigurations(np.repeat([[0.0], [1.0], [2.0], [2.0]], 24, axis=1).astype(np.float32))
    measurements = Measurements(np.array(runtime), np.array(normalizer))
    return InputGraph(Path("kernel.npz"), MeasuredGraph("kernel", graph, tiles, measurements), None, None, None)


def test_the_first_configurations_and_ties_by_index() -> None:
    assert top_configurations(SCORES, 3) == [
        {"rank": 1, "configuration": 1, "score": -1.0},
        {"rank": 2, "configuration": 0, "score": 0.5},
        {"rank": 3, "configuration": 2, "score": 0.5},
    ]
    assert len(top_configurations(SCORES, 9)) == 4


def test_tiles_compare_by_normalised_runtimes() -> None:
    given = kernel([300, 100, 100, 400], [100, 100, 200, 100])
    ranked = ranked_graph(given, SCORES, ranking(SCORES), 4, compare=True)
    assert [row["configuration"] for row in ranked["top"]] == [1, 0, 2, 3]
    assert [row["runtime_ns"] for row in ranked["top"]] == [100, 300, 100, 400]
    assert [row["slowdown"] for row in ranked["top"]] == [1.0, 5.0, 0.0, 7.0]
    assert [row["measured_rank"] for row in ranked["top"]] == [2, 3, 1, 4]
    comparison = ranked["comparison"]
    assert (comparison["slowdown_1"], comparison["slowdown_5"], comparison["kaggle"]) == (1.0, 0.0, 1.0)
    assert comparison["repeat_ceiling"] < 1
    assert comparison["noise_ceiling"] is None
    json.dumps(ranked, allow_nan=False)


@pytest.mark.parametrize("runtime", [0, 200])
def test_equal_runtimes_are_not_compared(runtime: int) -> None:
    ranked = ranked_graph(kernel([runtime] * 4, [100] * 4), SCORES, ranking(SCORES), 4, compare=True)
    assert ranked["comparison"] is None
    assert ("runtime_ns" in ranked["top"][0]) == bool(runtime)


def test_without_a_comparison() -> None:
    ranked = ranked_graph(kernel([300, 100, 100, 400], [100] * 4), SCORES, ranking(SCORES), 1, compare=False)
    assert ranked == {
        "file": "kernel.npz",
        "graph": "kernel",
        "configurations": 4,
        "drawn": False,
        "stage": None,
        "top": [{"rank": 1, "configuration": 1, "score": -1.0}],
    }


def test_the_error_of_a_record_takes_the_place_of_its_ranking(
    linear_model: Callable[..., Path], tmp_path: Path
) -> None:
    records = []
    for fingerprint, root in ((1, 2), (2, 9), (3, 2)):
        record = ModuleTuningData(fingerprint=fingerprint, config_index_to_node=[1])
        computation = record.module.computations.add(name="main", id=1, root_id=root)
        computation.instructions.add(opcode="parameter", id=1)
        computation.instructions.add(opcode="dot", id=2, operand_ids=[1, 1])
        for _ in range(2):
            run = record.runs.add()
            run.module_config.layout_config.nodes.add()
            run.profile.compute_time_ns = 1000
        records.append(record.SerializeToString())
    path = tmp_path / "all.pb"
    path.write_bytes(TuningData(modules=records).SerializeToString())
    ranker = Ranker(linear_model())
    first, error, last = rank_file(path, ranker, GraphReader(ranker.spec.features, 100, 1, 0), 1)
    assert isinstance(error, DataError)
    for ranked, name in ((first, "all_1"), (last, "all_3")):
        assert isinstance(ranked, RankedGraph)
        assert (ranked.given.measured.name, ranked.shown["graph"], ranked.order.tolist()) == (name, name, [0, 1])
        assert [row["configuration"] for row in ranked.shown["top"]] == [0]

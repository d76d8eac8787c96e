from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import read_graph, sidecar_path
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Graph
from hlorank.metrics import noise_ceiling
from hlorank_collect import record


@pytest.fixture
def measured() -> MeasuredGraph:
    graph = Graph(
        np.zeros((2, 140), np.float32), np.array([1, 34], np.uint8), np.array([[1, 0]]), np.array([0, 2], np.int64)
    )
    layouts = np.full((2, 1, 18), -1, np.int8)
    layouts[1, 0, :2] = [0, 1]
    times = np.array([[900.4, 1500.0], [901.0, 1500.0], [899.0, 1500.0]])
    return MeasuredGraph(
        "a.b", graph, LayoutConfigurations.from_chunks(np.array([1]), [layouts]), record.measurements(times)
    )


def test_what_is_written_is_read_back(measured: MeasuredGraph, tmp_path: Path) -> None:
    npz = tmp_path / "layout" / "a.b.forward.npz"
    assert not record.is_complete(npz, "f")
    record.write(npz, measured, {"fingerprint": "f", "x": 1})
    assert json.loads(sidecar_path(npz).read_text()) == {"fingerprint": "f", "x": 1}
    found = read_graph(npz, "layout")
    assert found.measurements.runtime.tolist() == [900, 1500]
    assert isinstance(found.configurations, LayoutConfigurations)
    np.testing.assert_array_equal(found.configurations.codes, [[0], [1]])
    assert record.is_complete(npz, "f")
    assert not record.is_complete(npz, "g")


def test_half_of_a_pair_is_not_complete(
    measured: MeasuredGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz = tmp_path / "a.npz"
    record.write(npz, measured, {"fingerprint": "old"})
    sidecar_path(npz).rename(tmp_path / "away.json")
    assert not record.is_complete(npz, "old")
    (tmp_path / "away.json").rename(sidecar_path(npz))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "write_graph", killed)
    with pytest.raises(KeyboardInterrupt):
        record.write(npz, measured, {"fingerprint": "new"})
    assert not record.is_complete(npz, "new")
    sidecar_path(npz).write_text("{")
    npz.touch()
    assert not record.is_complete(npz, "new")


def test_quality_has_the_ceiling_next_to_the_tau() -> None:
    rng = np.random.default_rng(0)
    times = np.exp(0.05 * rng.standard_normal((20, 30))) * np.linspace(1000, 1300, 30)
    quality = record.quality(times)
    assert quality["rounds"] == 20
    assert 0.5 < quality["split_half_tau"] < quality["noise_ceiling"] == noise_ceiling(quality["split_half_tau"]) < 1


def test_runtimes_that_are_all_equal_rank_nothing() -> None:
    assert record.quality(np.full((4, 3), 10.0)) == {
        "rounds": 4,
        "split_half_tau": None,
        "noise_ceiling": None,
        "measured": 3,
        "default": 0,
        "runtime_ns": {"default": 10, "best": 10, "worst": 10},
    }

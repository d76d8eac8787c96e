from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank_collect import machine


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc/stat in which time passes only in `sleep`: 100 s are 10,000 ticks."""
    path = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", path)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(time, "monotonic", iter([0.0, 100.0]).__next__)
    path.write_text("cpu  1000 0 500 9000 100 0 0 7 0 0\ncpu0 1 2 3 4\n")
    return path


def passes(stat: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: stat.write_text(line))


def test_busy_cores_are_counted_without_idle_time(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 5,000 ticks of users, 1,000 of the system, 500 stolen; 13,000 idle or waiting.
    passes(stat, monkeypatch, "cpu  6000 0 1500 20000 2100 0 0 507 0 0\n")
    assert machine.busy_cores() == pytest.approx(0.65)


def test_a_busy_machine_is_refused_with_a_remedy(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes(stat, monkeypatch, "cpu  16000 0 500 14000 100 0 0 7 0 0\n")
    with pytest.raises(ConfigError, match=r"1\.5.*--allow-busy"):
        machine.require_quiet()


def test_the_description_is_json_and_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    description = machine.description()
    assert json.loads(json.dumps(description)) == description
    assert description["xla_flags"] == "--xla_x=1"
    assert description["cpu"]
    assert set(description["versions"]) == {"python", "hlorank", "jax", "jaxlib"}
    assert len(description["date"]) == 10


def test_mappings_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps, limit = tmp_path / "maps", tmp_path / "max_map_count"
    monkeypatch.setattr(machine, "_MAPS", maps)
    monkeypatch.setattr(machine, "_MAX_MAPS", limit)
    assert machine.used_mappings() == 0.0
    maps.write_text("00400000-00452000 r-xp\n00651000-00652000 r--p\n")
    limit.write_text("8\n")
    assert machine.used_mappings() == 0.25

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank_collect import machine


def test_a_busy_machine_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.busy_cores() >= 0
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"1\.5.*--allow-busy"):
        machine.require_quiet()


def test_the_description_is_json_and_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    description = machine.description()
    assert json.loads(json.dumps(description)) == description
    assert description["xla_flags"] == "--xla_x=1"
    assert description["cpu"]
    assert set(description["versions"]) == {"python", "hlorank", "jax", "jaxlib"}


def test_mappings_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("_MAPS", "00400000-00452000 r-xp\n00651000-00652000 r--p\n"), ("_MAX_MAPS", "8\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(machine, name, tmp_path / name)
    assert machine.used_mappings() == 0.25

"""Fingerprints of settings: collections that were measured before stay complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.files import read_json
from hlorank_collect.task import LayoutTask
from tests.hlorank_collect.tasks import small_task

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "layout"


def test_the_sample_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(SAMPLE.rglob("*.json"))
    assert files
    for path in files:
        about = read_json(path)
        monkeypatch.setattr("hlorank_collect.task.version", lambda _, about=about: about["versions"]["jaxlib"])
        names = ("program", "collection", "configurations", "seed", "fast_compile")
        fields = {name: about[name] for name in names}
        task = small_task(LayoutTask, output=str(SAMPLE.parent), **fields, rounds=100)
        assert task.is_complete(about["name"])

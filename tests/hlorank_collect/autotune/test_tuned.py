"""A saved configuration runs the program for which it was found, and no other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.files import DataError, write_json
from hlorank_collect.autotune import tune_program
from hlorank_collect.autotune.search import Speedup
from hlorank_collect.autotune.tuned import Tuned, TuneTask
from tests.hlorank_collect.tasks import silent


@pytest.fixture
def saved(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a program whose first candidate won."""
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (1, Speedup(1.5, 1.4, 1.6)))
    task = dataclasses.replace(task, budget=1, rounds=4)
    return task.saved(tune_program.tune(task, silent)["name"]).resolve()


def test_a_tuned_program_is_called_like_the_function(saved: Path) -> None:
    import jax
    from user_programs import dots  # type: ignore[import-not-found] # written by the fixture

    tuned = Tuned(saved)
    assert (tuned.configuration != -1).any()
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    expected, found = dots(x, w), tuned(x, w)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"float32\[8,16\] float32\[16,8\].*float32\[8,15\]"):
        tuned(x[:, :15], w)
    with pytest.raises(ValueError, match="jit"):
        jax.jit(tuned)(x, w)


def test_a_file_that_is_damaged_or_of_another_program_is_refused(saved: Path) -> None:
    original = json.loads(saved.read_text())
    chosen = original["configuration"]

    def edited(**changes: Any) -> Tuned:
        write_json(saved, original | changes)
        return Tuned(saved)

    (first, *_) = chosen["instructions"]
    assert (
        edited(configuration=chosen | {"instructions": []})(np.ones((8, 16), "f"), np.ones((16, 8), "f"))["sum"] == 128
    )
    for match, changes in {
        "fingerprint of the module: .*user_programs:changed": {"program": "user_programs:changed"},
        f"{saved}: node 0, ": {"configuration": chosen | {"instructions": [first | {"node": 0}]}},
        "tune the program again": {"configuration": {"0": [-1] * 18}, "module": "0" * 64},  # an earlier version
        "seed": {"seed": None},
        "platform": {"platform": "tpu"},
        "configuration": {"configuration": []},
    }.items():
        with pytest.raises(DataError, match=match):
            edited(**changes)

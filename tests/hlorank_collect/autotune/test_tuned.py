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
from hlorank_collect.autotune.tuned import Tuned, TuneTask, read_saved
from hlorank_collect.task import Progress


def silent(progress: Progress) -> None:
    pass


@pytest.fixture
def saved(task: TuneTask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a program whose first candidate won."""
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (1, Speedup(1.5, 1.4, 1.6)))
    task = dataclasses.replace(task, budget=1, rounds=4)
    return task.saved(tune_program.tune(task, silent)["name"]).resolve()


def edited(path: Path, **changes: Any) -> Path:
    write_json(path, json.loads(path.read_text()) | changes)
    return path


def test_a_tuned_program_is_called_like_the_function(saved: Path) -> None:
    from tuned_programs import dots  # type: ignore[import-not-found] # written by the fixture

    tuned = Tuned(saved)
    assert (tuned.configuration != -1).any()
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    expected, found = dots(x, w), tuned(x, w)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_arguments_of_other_shapes_are_refused(saved: Path) -> None:
    tuned = Tuned(saved)
    with pytest.raises(ValueError, match=r"float32\[8,16\] float32\[16,8\].*float32\[8,15\]"):
        tuned(np.zeros((8, 15), np.float32), np.zeros((16, 8), np.float32))


def test_a_tuned_program_cannot_be_traced(saved: Path) -> None:
    import jax

    with pytest.raises(ValueError, match="jit"):
        jax.jit(Tuned(saved))(np.zeros((8, 16), np.float32), np.zeros((16, 8), np.float32))


def test_another_program_is_refused(saved: Path) -> None:
    with pytest.raises(DataError, match=r"fingerprint of the module: .*tuned_programs:changed"):
        Tuned(edited(saved, program="tuned_programs:changed"))


def test_a_configuration_that_does_not_fit_is_refused_with_its_file(saved: Path) -> None:
    configuration = json.loads(saved.read_text())["configuration"]
    configuration["instructions"][0]["node"] = 0
    with pytest.raises(DataError, match=f"{saved}: node 0, "):
        Tuned(edited(saved, configuration=configuration))


def test_a_file_of_an_earlier_version_says_what_to_do(saved: Path) -> None:
    with pytest.raises(DataError, match="tune the program again"):
        Tuned(edited(saved, configuration={"0": [-1] * 18}, module="0" * 64))


def test_the_default_runs_where_it_won(saved: Path) -> None:
    configuration = json.loads(saved.read_text())["configuration"]
    tuned = Tuned(edited(saved, configuration=configuration | {"instructions": []}))
    assert tuned(np.ones((8, 16), np.float32), np.ones((16, 8), np.float32))["sum"] == 128


@pytest.mark.parametrize("change", [{"seed": None}, {"platform": "tpu"}, {"configuration": []}, {"program": 3}])
def test_damaged_files_are_refused(change: dict[str, Any], saved: Path) -> None:
    read_saved(saved)
    with pytest.raises(DataError, match=next(iter(change))):
        read_saved(edited(saved, **change))

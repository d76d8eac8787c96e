"""Results of jobs, as MLflow stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import DatabaseError

from hlorank.config import Config
from hlorank.files import DataError
from hlorank.metrics import BEST_TAU, TRAIN_SECONDS
from hlorank.runs import sweeps
from hlorank.runs.store import FINGERPRINT, PARENT_VARIABLE, Pruned, error_lines, finished_training, open_run
from hlorank.runs.sweeps import Job, adopted, claim, forget_failures, rows

Run = Callable[..., Any]


@pytest.fixture
def parent(config: Config, client: MlflowClient) -> str:
    with open_run(config.tracking, "sweep", {}) as (run_id, _):
        return run_id


@pytest.fixture
def run(config: Config, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that opens the run of a job; the parent `None` is no sweep."""

    @contextmanager
    def opened(parent: str | None, *overrides: str, tau: float | None = None, key: str = "") -> Iterator[str]:
        if parent is None:
            monkeypatch.delenv(PARENT_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(PARENT_VARIABLE, parent)
        tags = {FINGERPRINT: key or " ".join(overrides) or "k"} | (
            {} if parent is None else Job(parent, overrides).tags
        )
        with open_run(config.tracking, "job", tags) as (run_id, _):
            mlflow.log_params({"seed": "0"})
            yield run_id
            if tau is not None:
                mlflow.log_metrics({BEST_TAU: tau, TRAIN_SECONDS: 2.5})

    return opened


def states(client: MlflowClient, parent: str) -> dict[str, str]:
    return {" ".join(f"{k}={v}" for k, v in row.values.items()): row.state for row in rows(client, parent)}


def test_results_of_jobs(client: MlflowClient, parent: str, run: Run) -> None:
    with run(parent, "seed=0", "+method=full", tau=0.5) as first:
        pass
    with pytest.raises(Pruned), run(parent, "seed=1"):
        raise Pruned
    with pytest.raises(ZeroDivisionError), run(parent, "seed=2"):
        raise ZeroDivisionError
    Job(parent, ("seed=2",)).fail(client, ZeroDivisionError("division\nby zero"))
    Job(parent, ("seed=3",)).fail(client, DataError("key", "1", 2, file="f"))
    experiment = client.get_run(parent).info.experiment_id
    tags = {"mlflow.parentRunId": parent, **Job(parent, ("seed=4",)).tags}
    killed = client.create_run(experiment, tags=tags).info.run_id
    with pytest.raises(KeyboardInterrupt), run(parent, "seed=5"):
        raise KeyboardInterrupt
    with run(parent, "seed=6") as marked:
        pass
    client.set_terminated(marked, "KILLED")  # as the next training marks a run whose process was killed
    found = {row.values["seed"]: row for row in rows(client, parent)}
    assert {seed: row.state for seed, row in found.items()} == {
        "0": "finished",
        "1": "pruned",
        "2": "failed",
        "3": "failed",
        "4": "interrupted",
        "5": "interrupted",
        "6": "interrupted",
    }
    assert (found["0"].tau, found["0"].seconds, found["0"].run_id) == (0.5, 2.5, first)
    assert found["0"].values == {"seed": "0", "method": "full"}
    assert [found[seed].reason for seed in "0123"] == [
        "",
        "",
        "ZeroDivisionError: division",
        "DataError: f: key: expected 1, found 2",
    ]
    assert found["2"].run_id != ""
    assert (found["3"].run_id, found["3"].seed) == ("", "3")
    assert found["4"].run_id == killed


def test_of_several_runs_the_furthest_counts(client: MlflowClient, parent: str, run: Run) -> None:
    with pytest.raises(KeyError), run(parent, "seed=0"):
        raise KeyError
    Job(parent, ("seed=0",)).fail(client, KeyError())
    with run(parent, "seed=0", tau=0.25) as second:
        pass
    with pytest.raises(KeyError), run(parent, "seed=0"):
        raise KeyError
    (row,) = rows(client, parent)
    assert (row.state, row.run_id, row.tau) == ("finished", second, 0.25)


def test_the_order_of_overrides_makes_no_other_job(client: MlflowClient, parent: str) -> None:
    job, same = Job.of(parent, ["seed=0", "method=full"]), Job.of(parent, ["method=full", "seed=0"])
    assert job == same
    assert job.tags == same.tags
    for one in (job, same):
        one.fail(client, KeyError())
    assert len(rows(client, parent)) == 1


def test_naming_a_default_makes_no_other_row(client: MlflowClient, parent: str, run: Run) -> None:
    """For example if a sweep over methods is continued as one over methods and seeds."""
    with run(parent, "method=full", tau=0.5, key="full 0") as first:
        pass
    Job.of(parent, ["method=full", "seed=0"]).record(client, run_id=first)
    with run(parent, "method=full", "seed=1", tau=0.75, key="full 1"):
        pass
    found = rows(client, parent)
    assert [(row.values, row.tau) for row in sorted(found, key=lambda row: row.tau or 0)] == [
        ({"method": "full", "seed": "0"}, 0.5),
        ({"method": "full", "seed": "1"}, 0.75),
    ]
    for trial in "01":
        Job.of(parent, ["method=full", "seed=0", f"sweep.trial={trial}"]).record(client, run_id=first)
    assert len(rows(client, parent)) == 4


def test_the_first_lines_of_an_error_are_one(client: MlflowClient, parent: str) -> None:
    Job.of(parent, ["seed=0"]).fail(client, OSError("a\n\nb\nc"), lines=2)
    (row,) = rows(client, parent)
    assert row.reason == "OSError: a b"


def test_a_run_that_ended_without_its_last_metric_is_not_finished(
    config: Config, client: MlflowClient, parent: str, run: Run
) -> None:
    """Lightning marks a run as finished before the model is written."""
    with run(parent, "seed=0", key="k"):
        pass
    assert finished_training(config.tracking, "k") is None
    Job(parent, ("seed=0",)).fail(client, OSError("disk full"))
    assert states(client, parent) == {"seed=0": "failed"}


def test_failures_are_forgotten_and_adopted_runs_are_not(client: MlflowClient, parent: str, run: Run) -> None:
    with run(None, tau=0.5) as other:
        pass
    Job(parent, ("seed=0",)).record(client, run_id=other)
    Job(parent, ("seed=1",)).fail(client, KeyError("x" * 9000))  # a tag has room for 8000 characters
    assert states(client, parent) == {"seed=0": "finished", "seed=1": "failed"}
    forget_failures(client, parent)
    assert states(client, parent) == {"seed=0": "finished"}
    assert adopted(client, parent) == [other]


def test_finished_trainings(config: Config, run: Run) -> None:
    assert finished_training(config.tracking, "k") is None
    with pytest.raises(KeyError), run(None, tau=0.9):
        raise KeyError
    with run(None, tau=0.9, key="other"):
        pass
    assert finished_training(config.tracking, "k") is None
    with run(None, tau=0.5) as first:
        pass
    with run(None, tau=0.5):
        pass
    assert finished_training(config.tracking, "k") == (first, 0.5)


def test_an_error_of_the_search_for_a_finished_training_names_its_store(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database " * 100)
    tracking = config.tracking.model_copy(update={"uri": f"sqlite:///{path}"})
    with pytest.raises(DatabaseError) as caught:
        finished_training(tracking, "k")
    (line,) = error_lines(caught.value) or []
    assert str(path) in line


def test_a_run_is_adopted_unless_it_is_the_run_of_the_job(
    config: Config, client: MlflowClient, parent: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(parent, "seed=0", tau=0.5) as own:
        pass
    monkeypatch.setattr(sweeps, "current_job", lambda: Job(parent, ("seed=0",)))
    claim(config.tracking, own)
    assert adopted(client, parent) == []
    monkeypatch.setattr(sweeps, "current_job", lambda: Job(parent, ("seed=0", "sweep.trial=3")))
    claim(config.tracking, own)
    assert adopted(client, parent) == [own]
    assert states(client, parent) == {"seed=0": "finished", "seed=0 sweep.trial=3": "finished"}
    monkeypatch.setattr(sweeps, "current_job", lambda: None)
    claim(config.tracking, own)


def test_many_children(client: MlflowClient, parent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More children than a page of MLflow has."""
    experiment = client.get_run(parent).info.experiment_id
    for number in range(3):
        tags = {"mlflow.parentRunId": parent, **Job(parent, (f"seed={number}",)).tags}
        client.create_run(experiment, tags=tags)
    plain = MlflowClient.search_runs
    monkeypatch.setattr(MlflowClient, "search_runs", lambda *a, **k: plain(*a, **k, max_results=1))
    assert len(rows(client, parent)) == 3


def test_the_tags_of_a_job_have_no_password() -> None:
    job = Job.of("0" * 32, ["tracking.uri=http://me:secret@host", "seed=1"])
    assert "secret" not in str(job.tags)
    assert job == Job.of("0" * 32, job.overrides)

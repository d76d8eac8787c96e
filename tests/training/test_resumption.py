"""Interrupted trainings: they continue from the last complete epoch, byte-equal."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from hlorank.files import read_json
from hlorank.stages.train import train
from hlorank.training.fit_networks import EpochHistory
from hlorank.training.gst.head_finetuning import HeadModule
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Trained
from tests.training import training_helpers as helpers
from tests.training.training_helpers import History, Runs, Settings


def assert_same(folder: Path, other: Path) -> None:
    """Assert that two model folders hold the same bytes."""
    for name in (helpers.WEIGHTS, "spec.json", "history.csv"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


STEP = (RankingModule, "training_step")
TWO = {"ensemble__seeds": 2, "trainer__averaging": "ema"}
SWA = {**helpers.DROPOUT, "trainer__averaging": "swa"}
TABLE = {
    "method": "gst_efd",
    "trainer__graphs_per_step": 2,
    "segments__table_dtype": "float16",
    "segments__configs_per_graph": 20,
    "segments__redraw_epochs": 2,
}


@pytest.mark.parametrize(
    ("values", "owner", "name", "call", "left"),
    [
        (helpers.DROPOUT, EpochHistory, "on_train_epoch_end", 1, 8),  # before a checkpoint
        (helpers.DROPOUT, *STEP, 2, 12),
        (SWA, *STEP, 10, 4),
        (TWO, EpochHistory, "on_train_epoch_start", 1, 20),  # between epochs
        (TWO, *STEP, 12, 12),  # between members
        (TWO, *STEP, 18, 8),  # in the second one
        (TABLE, *STEP, 15, 16),
        (TABLE, HeadModule, "training_step", 9, 0),
    ],
)
def test_an_interrupted_training_continues(
    values: dict[str, Any],
    owner: Any,
    name: str,
    call: int,
    left: int,
    settings: Settings,
    trained: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: Runs,
) -> None:
    """An epoch has four steps, here of one or two graphs; complete ones are not trained again."""
    whole, config, resumed = trained(**values), settings(**values), tmp_path / "resumed"
    helpers.interrupt(monkeypatch, owner, name, call)
    with pytest.raises(helpers.Interrupted):
        train(config, resumed)
    assert not resumed.exists()
    (failed,) = runs(config)
    assert failed.info.status == "FAILED"
    steps = helpers.interrupt(monkeypatch, *STEP, None)
    train(config, resumed)
    assert len(steps) == left
    assert_same(resumed, whole)
    assert not list((tmp_path / "state/training").iterdir())
    (run,) = runs(config)
    assert (run.info.run_id, run.info.status) == (failed.info.run_id, "FINISHED")
    about = read_json(whole / "run.json")
    first = MlflowClient(about["tracking_uri"]).get_run(about["run_id"]).data
    assert run.data.params.keys() == first.params.keys()
    for key in first.metrics.keys() & {"curves/train_loss", "curves/valid_kendall_tau"}:
        assert run.data.metrics[key] == first.metrics[key]


def test_ctrl_c_ends_the_run_as_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    def press(module: RankingModule, *_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    config = settings(trainer__max_epochs=1)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with monkeypatch.context() as patched:
            patched.setattr(RankingModule, "training_step", press)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "model")
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    (run,) = runs(config)
    assert run.info.status == "KILLED"
    with caplog.at_level("INFO"):
        train(config, tmp_path / "model")
    (again,) = runs(config)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    (last,) = [line for line in caplog.messages if str(tmp_path / "model") in line]
    assert ("epoch 1" in last, again.info.run_id in last) == (True, True)


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (99, 5)])
def test_interrupted_after_the_last_epoch(
    patience: int, epochs: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    """It takes no further epoch, also if training stopped early."""
    # A further epoch would be the best one.
    helpers.validate_with(monkeypatch, [0.1, 0.7, 0.4, 0.8, 0.2])
    config = settings(trainer__patience=patience, trainer__max_epochs=5)
    train(config, tmp_path / "whole")
    assert len(history(tmp_path / "whole")) == epochs
    helpers.interrupt(monkeypatch, Trained, "save", 0)
    with pytest.raises(helpers.Interrupted):
        train(config, tmp_path / "resumed")
    helpers.interrupt(monkeypatch, *STEP, 0)  # fails at a further step
    assert train(config, tmp_path / "resumed") == pytest.approx(0.8 if patience == 99 else 0.7)
    assert_same(tmp_path / "resumed", tmp_path / "whole")

"""Trainings by several ranks: the steps of one, who computes what, mistakes, and checkpoints."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from hlorank.config import ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import DataError
from hlorank.models.cost_model import CostModel
from hlorank.runs import training as training_module
from hlorank.stages.train import train
from hlorank.training import fit
from hlorank.training import prepare as prepare_module
from hlorank.training import process_group as ranks_module
from hlorank.training.fit import build
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ProcessGroup, RankLostError, deal, process_group
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import Idle
from tests.training.training_helpers import (
    DROPOUT,
    STAGE,
    WEIGHTS,
    History,
    Interrupted,
    Runs,
    Settings,
    fork_ranks,
    interrupt,
    open_data,
    run_ranks,
    start,
    train_with,
    wait_for_checkpoint,
)

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # an earlier test of this process may have started JAX

TWENTY_STEPS = {"trainer__graphs_per_step": 4, "trainer__steps_per_epoch": 5, "trainer__max_epochs": 4}


def difference(folder: Path, other: Path) -> float:
    """Return the largest relative difference between the weights of two models, tensor by tensor."""
    first, second = (load_file(path / WEIGHTS) for path in (folder, other))
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).norm() / first[name].norm().clamp(min=1e-30)) for name in first)


@pytest.fixture
def double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float64: AdamW enlarges the rounding of float32, by which sums of gradients differ in their order."""
    plain_open = FeatureStore.open

    def opened(self: FeatureStore, split: Any, name: str) -> GraphFeatures:
        features = plain_open(self, split, name)
        return replace(features, node_feat=features.node_feat.astype(np.float64))

    monkeypatch.setattr(FeatureStore, "open", opened)
    monkeypatch.setattr(fit, "CostModel", lambda *values: CostModel(*values).double())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize("method", ["gst", "gst_efd"])
def test_two_ranks_take_the_steps_of_one(
    method: str, double_precision: None, settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    """Each computes some of the graphs of a step; one of them writes the files and the run."""
    config = settings(**TWENTY_STEPS, **DROPOUT, method=method, trainer__patience=9)
    best = train(config, tmp_path / "one")
    assert train_with(2, config, tmp_path / "two") == [pytest.approx(best, rel=1e-6)] * 2
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-9
    for one, two in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        for key in ("train_loss", "valid_kendall_tau"):
            assert float(two[key]) == pytest.approx(float(one[key]), rel=1e-6)
    first, second = (run.data for run in sorted(runs(config), key=lambda run: run.info.start_time))
    assert (first.params.pop("trainer.devices"), second.params.pop("trainer.devices")) == ("1", "2")
    assert second.params == first.params
    assert second.metrics["train/rows"] == first.metrics["train/rows"]


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupted_training_continues_with_any_number_of_ranks(
    count: int, double_precision: None, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    config = settings(method="gst_ed", trainer__graphs_per_step=2, segments__configs_per_graph=20)
    train_with(2, config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupt(patched, RankingModule, "training_step", 12)
        errors = train_with(2, config, tmp_path / "resumed")
    assert all(isinstance(error, Interrupted | RankLostError) for error in errors)
    assert not (tmp_path / "resumed").exists()
    train_with(count, config, tmp_path / "resumed")
    if count == 2:
        assert (tmp_path / "resumed" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    assert difference(tmp_path / "whole", tmp_path / "resumed") < 1e-9
    assert sorted(run.info.status for run in runs(config)) == ["FINISHED", "FINISHED"]


def test_work_is_dealt_evenly() -> None:
    assert deal(np.array([5.0, 1, 1, 3]), 2).tolist() == [0, 1, 1, 1]
    assert deal(np.zeros(4), 2).tolist() == [0, 1, 0, 1]  # as many to each
    assert deal(np.array([]), 3).tolist() == []
    work = np.random.default_rng(0).lognormal(size=100)
    loads = np.bincount(deal(work, 4), work)
    assert loads.max() - loads.min() <= work.min() * 4


@pytest.mark.parametrize("method", ["gst", "gst_ed"])
def test_each_graph_of_a_step_has_one_rank(method: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(method=method, trainer__graphs_per_step=4, trainer__steps_per_epoch=6)
    keys = [(epoch, index) for epoch in (0, 1) for index in range(24)]
    setup = open_setup(config)
    of_rank = [build(setup, Member(config.seed), ProcessGroup(number, 2))[1] for number in range(2)]
    steps = [[data._loaded_step(key) for key in keys] for data in of_rank]
    whole = [open_data(config).planned_step(key) for key in keys]
    graphs_of: list[set[int]] = [set(), set()]
    for place, expected in enumerate(whole):
        (rank,) = [number for number in range(2) if not isinstance(steps[number][place], Idle)]
        found = steps[rank][place]
        assert not isinstance(found, Idle | Exception)
        assert (found.number, found.configurations.tolist()) == (expected.number, expected.configurations.tolist())
        graphs_of[rank].add(found.number)
    assert set.union(*graphs_of) == {0, 1, 2}
    assert bool(set.intersection(*graphs_of)) == (method == "gst")  # a graph of a table belongs to one rank
    validated = [[type(item) is Idle for item in data.val_dataloader()] for data in of_rank]
    assert sorted(validated) == [[False, True], [True, False]]


def test_mistakes_are_reported_once_and_leave_nothing(settings: Settings, tmp_path: Path, runs: Runs) -> None:
    config = settings(trainer__graphs_per_step=2)
    paths = config.paths.model_copy(update={"state": str(tmp_path / "own")})

    def differs(ranks: ProcessGroup) -> None:
        if ranks.number == 1:
            vars(prepare_module)["__version__"] = "0.0.1"
        prepare(config, ranks)

    def lacks_data(ranks: ProcessGroup) -> None:
        with ranks.agreed():
            if ranks.number == 1:
                raise DataError("file", "an index", "nothing", file="graphs.json")

    def shares_no_checkpoints() -> None:
        train(config if os.environ["RANK"] == "0" else config.model_copy(update={"paths": paths}), tmp_path / "model")

    def check(errors: Sequence[Any], kind: type[Exception], *named: str) -> None:
        assert [*map(type, errors)] == [kind, RankLostError]
        assert all(text in str(errors[0]) for text in named)

    check(run_ranks(config, 2, differs), DataError, "hlorank: expected")
    check(run_ranks(config, 2, lacks_data), ConfigError, "rank 1 on ")
    assert not (tmp_path / "state" / "training").exists()
    assert runs(config) == []
    check(fork_ranks(2, shares_no_checkpoints), ConfigError, "rank 1 on ", str(tmp_path / "own"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "value"), [("devices", "3"), ("accelerator", "cuda")])
def test_missing_ranks_and_devices_are_refused(name: str, value: str, settings: Settings) -> None:
    if name == "accelerator" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with (
        pytest.raises(ConfigError, match=rf"trainer\.{name}={value}"),
        process_group(settings(**{f"trainer__{name}": value}).trainer),
    ):
        pass


def test_a_lost_rank_is_recognised_by_its_connection_and_not_by_words(settings: Settings) -> None:
    """An error of gradients has no class: it means a lost rank only if another rank has ended."""

    def fails_alone(ranks: ProcessGroup) -> None:
        if ranks.first:
            raise RuntimeError("cannot read /data/gloo/weights")
        time.sleep(6)

    def fails_after_the_other(ranks: ProcessGroup) -> None:
        if not ranks.first:
            os._exit(3)
        time.sleep(1)
        raise RuntimeError("peer gone")

    def waits_for_the_other(ranks: ProcessGroup) -> None:
        if not ranks.first:
            os._exit(3)
        ranks.gather(1)

    config = settings()
    assert [*map(type, run_ranks(config, 2, fails_alone))] == [RuntimeError, type(None)]
    for task in (fails_after_the_other, waits_for_the_other):
        assert type(run_ranks(config, 2, task, results=1)[0]) is RankLostError


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *STAGE]


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_resumes(settings: Settings, tmp_path: Path, runs: Runs, history: History) -> None:
    """Kill -9 of rank 1; then the same training, to the weights of one without."""
    changes = {"trainer__graphs_per_step": 2, "trainer__max_epochs": 12, "trainer__patience": 99, "method": "gst_ed"}
    config = settings(**DROPOUT, **changes, output=tmp_path / "resumed")
    train_with(2, config, tmp_path / "whole")

    started = start(tmp_path, config, *TORCHRUN)
    wait_for_checkpoint(tmp_path / "state", started)
    ranks = [child for child in psutil.Process(started.pid).children(recursive=True) if STAGE[1] in child.cmdline()]
    ranks.sort(key=psutil.Process.create_time)
    ranks[1].send_signal(signal.SIGKILL)
    _, errors = started.communicate(timeout=240)
    assert started.returncode == 1
    assert "SIGKILL" in errors
    assert len([line for line in errors.splitlines() if line.startswith("error: ")]) <= 1
    assert not psutil.wait_procs(ranks, timeout=10)[1]
    assert not (tmp_path / "resumed").exists()

    train_with(2, config, tmp_path / "resumed")
    assert (tmp_path / "resumed" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    assert history(tmp_path / "resumed") == history(tmp_path / "whole")
    assert [run.info.status for run in runs(config)] == ["FINISHED", "FINISHED"]


@pytest.mark.slow
def test_a_silent_rank_ends_all(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP of rank 1 while rank 0 waits for its costs: the limit ends rank 0."""
    plain = RankingModule.on_train_epoch_end

    def stop(self: RankingModule) -> None:
        if self.current_epoch == 1 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        plain(self)

    monkeypatch.setattr(ranks_module, "_LIMIT", timedelta(seconds=30))  # busy machines too need less
    monkeypatch.setattr(RankingModule, "on_train_epoch_end", stop)
    config = settings(trainer__graphs_per_step=2)
    first, _ = fork_ranks(2, lambda: train(config, tmp_path / "model"), results=1)
    assert isinstance(first, RankLostError)
    assert list((tmp_path / "state").rglob("last.ckpt"))
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_ranks_wait_for_work_of_rank_0(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits longer than the limit for another process with the same training."""

    finished = training_module._finished

    def late(*values: Any, **keywords: Any) -> float | None:
        time.sleep(15)
        return finished(*values, **keywords)

    monkeypatch.setattr(ranks_module, "_LIMIT", timedelta(seconds=10))
    monkeypatch.setattr(training_module, "_finished", late)
    monkeypatch.setattr(training_module, "in_sweep", lambda: True)  # the result of an earlier training is looked for
    tau, _ = train_with(2, settings(trainer__graphs_per_step=2), tmp_path / "model")
    assert isinstance(tau, float)

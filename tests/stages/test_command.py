"""Composition, errors in single lines and output folders of all stages, and each stage as a command."""

from __future__ import annotations

import logging
import os
import resource
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock, Timeout
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.files import LOCKS, DataError, fingerprint, write_array
from hlorank.stages import train
from hlorank.stages.command import EXTENSION_POINTS, stage

Call = Callable[..., list[Config]]
CallStage = Callable[..., list[str]]
SOURCE = Path(hlorank.__file__).parents[1]


@pytest.fixture
def written() -> list[Path]:
    """The output folders of the stages that `call` has run."""
    return []


@pytest.fixture
def call(written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs a stage in this process on a copy of conf/ and returns its configurations."""
    shutil.copytree(SOURCE.parent / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.run.dir=run", "hydra.sweep.dir=sweep"]

    def run(task: Callable[[Config], Any], *arguments: str) -> list[Config]:
        seen: list[Config] = []

        def recording(config: Config, output: Path) -> Any:
            seen.append(config)
            written.append(output)
            return task(config)

        monkeypatch.setattr(sys, "argv", ["stage", *arguments, *quiet])
        stage(reads=Config.model_fields, writes="models")(recording)()
        return seen

    return run


def test_a_stage_gets_the_validated_composition(call: Call) -> None:
    (config,) = call(lambda config: None, "seed=7", "model.width=48", "loss=listmle")
    assert isinstance(config, Config)
    assert (config.seed, config.model.width, [*config.loss], config.method) == (7, 48, ["listmle"], "gst")


def test_params_yaml_runs_like_the_composition(call: Call) -> None:
    (config,) = call(lambda config: None, "seed=7", "trainer.max_epochs=5")
    OmegaConf.save(config.model_dump(mode="json"), "params.yaml")
    (again,) = call(lambda config: None, "--config-dir", ".", "--config-name", "params", "method=full")
    assert again.model_dump(mode="json") == config.model_dump(mode="json") | {"method": "full"}


def fail(error: Exception) -> Callable[[Config], None]:
    def task(_: Config) -> None:
        raise error

    return task


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConfigError("method=b: expected a\nseed: no value"), ["error: method=b: expected a", "error: seed: no value"]),
        (DataError("key", "1", 2, file="f.npz"), ["error: f.npz: key: expected 1, found 2"]),
        (
            ExceptionGroup("all", [DataError("k", "1", 2, file="a"), DataError("k", "1", 3, file="b")]),
            ["error: a: k: expected 1, found 2", "error: b: k: expected 1, found 3"],
        ),
    ],
)
def test_bad_input_is_a_line_and_status_2(
    error: Exception, lines: list[str], call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as exited:
        call(fail(error))
    assert exited.value.code == 2
    assert capsys.readouterr().err.splitlines() == lines


def test_a_file_that_cannot_be_written_is_a_line_that_names_it(
    call: Call,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A limit of the size of files stands in for a full disk: the system refuses to write the rest of the file."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    path, before = tmp_path / "folder" / "file", resource.getrlimit(resource.RLIMIT_FSIZE)

    def task(_: Config) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            write_array(path, np.zeros(10_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.raises(SystemExit) as exited:
        call(task)
    assert exited.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert not list(path.parent.iterdir())


def test_warnings_begin_with_their_level(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    def task(_: Config) -> None:
        logging.getLogger("hlorank").info("routine")
        logging.getLogger("hlorank").warning("unusual")

    root = logging.getLogger()
    before = root.handlers[:]
    root.addHandler(logging.StreamHandler(sys.stdout))  # as Hydra's job_logging=stdout does
    root.setLevel(logging.INFO)
    try:
        call(task)
    finally:
        root.handlers[:] = before
        root.setLevel(logging.WARNING)
    assert capsys.readouterr().out.splitlines() == ["routine", "WARNING: unusual"]


def test_ctrl_c_is_status_130(call: Call) -> None:
    def task(_: Config) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as exited:
        call(task)
    assert exited.value.code == 130


def test_defects_keep_their_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ZeroDivisionError):
        call(lambda config: 1 / 0)
    with pytest.raises(DataError):  # on demand, bad input too
        call(fail(DataError("key", "1", 2)))


def test_output_folders(call: Call, written: list[Path]) -> None:
    call(lambda config: None, "collection=tile:xla", "method=full", "paths.models=m")
    call(lambda config: None, "output=there")
    assert written == [Path("m/tile/xla/full"), Path("there")]


def test_no_other_process_writes_the_folder_of_a_stage_meanwhile(call: Call, written: list[Path]) -> None:
    def locked(config: Config) -> bool:
        try:
            with FileLock(Path(config.paths.state) / LOCKS / fingerprint(str(written[-1].resolve()))).acquire(
                timeout=0
            ):
                return False
        except Timeout:
            return True

    held: list[bool] = []
    (config,) = call(lambda config: held.append(locked(config)))
    assert (held, locked(config)) == ([True], False)


def test_jobs_of_a_sweep_write_into_their_own_folders(call: Call, written: list[Path]) -> None:
    configs = call(lambda config: None, "-m", "method=full,gst")
    assert [config.method for config in configs] == ["full", "gst"]
    assert [folder.name for folder in written] == ["0", "1"]
    assert len({folder.parent for folder in written}) == 1


def command(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", f"hlorank.stages.{name}", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def call_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CallStage:
    """Return a function that runs the command of a stage in this process and returns its lines of errors."""
    shutil.copytree(SOURCE.parent / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none"]

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.delitem(sys.modules, f"hlorank.stages.{name}", raising=False)
        monkeypatch.setattr(sys, "argv", [name, *arguments, *quiet])
        with pytest.raises(SystemExit) as exited:
            runpy.run_module(f"hlorank.stages.{name}", run_name="__main__")
        assert exited.value.code == 2
        return capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("fetch", {"data.origin": "sever"}),
        ("fetch", {"data.local.folds": "2", "data.local.fold": "-1"}),
        ("partition", {"partition.algorithm": "metiss"}),
        ("train", {"method": "gts", "model.block": "[sage,nrom]", "loss": "{listmle:{weight:x},listmel:1}"}),
        ("evaluate", {"method": "gts"}),
    ],
)
def test_all_wrong_keys_are_reported_before_anything_is_written(
    name: str, wrong: dict[str, str], call_stage: CallStage, tmp_path: Path
) -> None:
    arguments = [f"{key}={value}" for key, value in wrong.items() if key != "loss"]
    if "loss" in wrong:
        arguments += ["+loss.listmel=1", "loss.listmle=x"]
    lines = call_stage(name, *arguments, "paths.state=[1]", "seeed=1")
    named = {line.removeprefix("error: ").partition(":")[0].partition("=")[0] for line in lines}
    assert len(named) == len(lines)
    nested = {"model.block": {"model.block.1"}, "loss": {"loss.listmle", "loss.listmel"}}
    expected = {"paths.state", "seeed"}.union(*(nested.get(key, {key}) for key in wrong))
    assert named == expected
    assert {path.name for path in tmp_path.iterdir()} == {"conf"}


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("hlorank.stages.fetch, hlorank.fetch.origins", "torch"),
        # Where stages look for names: one that checks them and doesn't train has no use for Lightning.
        (", ".join(name.partition(":")[0] for name in EXTENSION_POINTS.values()), "lightning"),
        ("hlorank.stages.train, hlorank.training.prepare, hlorank.training.fit, hlorank.runs.training", "lightning"),
    ],
)
def test_what_takes_seconds_is_not_imported(imported: str, absent: str) -> None:
    code = f"import sys, {imported}; print({absent!r} in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("featurize", "data/raw/layout/cpu/random: train: "),
        ("partition", "data/features/layout/cpu/random: features: "),
    ],
)
def test_commands_without_their_input(name: str, message: str, call_stage: CallStage) -> None:
    (line,) = call_stage(name)
    assert line.startswith(f"error: {message}")


@pytest.mark.slow
def test_the_stages_one_after_the_other(tmp_path: Path, tracking_database: Path) -> None:
    """All five commands run on synthetic graphs, with a hundredth of the data and of the steps."""
    shutil.copytree(SOURCE.parent / "conf", tmp_path / "conf")
    shutil.copy(tracking_database, tmp_path / "mlflow.db")
    sizes = {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 30}
    tiny = {
        "fetch": [f"data.synthetic.{key}={value}" for key, value in sizes.items()],
        "featurize": ["compute=serial"],
        "partition": ["compute=serial", "partition.max_nodes=500"],
        "train": ["trainer.max_epochs=1", "trainer.steps_per_epoch=2"],
        "evaluate": [],
    }
    for name, own in tiny.items():
        done = command(name, tmp_path, "experiment=synthetic", *own, "hydra/job_logging=stdout", "hydra.run.dir=.")
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", name  # no warning of a library reaches the user
    report = tmp_path / "reports/layout/synthetic/random/gst"
    assert {path.name for path in report.iterdir()} >= {"metrics.json", "per_graph.csv", "predictions.csv"}


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("featurize.prune_hops=2", "featurize.prune_hops"),
        ("featurize=extra", "featurize"),
        ("++data.local.root=there", "data.local.root"),
        ("pipeline.methods=[gst]", "pipeline.methods"),
        ("evaluate.splits=[valid]", "evaluate.splits"),
    ],
)
@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_a_setting_that_the_stage_does_not_read_is_refused(
    argument: str,
    key: str,
    mode: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *mode, "trainer.max_epochs=1", f"hydra.run.dir={tmp_path}", argument])
    with pytest.raises(SystemExit) as exited:
        train.main()
    assert exited.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {key}: ")

"""Composition, errors in single lines and output folders of all stages, and each stage as a command."""

import logging
import os
import re
import resource
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from filelock import FileLock, Timeout
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.files import LOCKS, DataError, fingerprint, write_array
from hlorank.stages.command import stage

Call = Callable[..., list[Config]]
CallStage = Callable[..., list[str]]
SOURCE = Path(hlorank.__file__).parents[1]
QUIET = ["hydra/job_logging=none", "hydra/hydra_logging=none"]


@pytest.fixture(autouse=True)
def _in_a_folder(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SOURCE.parent / "conf", cwd / "conf")
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)


@pytest.fixture
def written() -> list[Path]:
    """The output folders of the stages that `call` has run."""
    return []


@pytest.fixture
def call(written: list[Path], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs a stage in this process on a copy of conf/ and returns its configurations."""

    def run(task: Callable[[Config], Any], *arguments: str) -> list[Config]:
        seen: list[Config] = []

        def recording(config: Config, output: Path) -> Any:
            seen.append(config)
            written.append(output)
            return task(config)

        monkeypatch.setattr(sys, "argv", ["stage", *arguments, *QUIET, "hydra.sweep.dir=sweep"])
        stage(reads=Config.model_fields, writes="models")(recording)()
        return seen

    return run


@pytest.fixture
def call_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CallStage:
    """Return a function that runs the command of a stage in this process and returns its lines of errors."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.delitem(sys.modules, f"hlorank.stages.{name}", raising=False)
        monkeypatch.setattr(sys, "argv", [name, *arguments, *QUIET])
        with pytest.raises(SystemExit) as exited:
            runpy.run_module(f"hlorank.stages.{name}", run_name="__main__")
        assert exited.value.code == 2
        return capsys.readouterr().err.splitlines()

    return run


def test_a_stage_gets_the_validated_composition_and_params_yaml_runs_like_it(call: Call) -> None:
    (config,) = call(lambda config: None, "seed=7", "model.width=48", "loss=listmle")
    assert isinstance(config, Config)
    assert (config.seed, config.model.width, [*config.loss], config.method) == (7, 48, ["listmle"], "gst")
    OmegaConf.save(config.model_dump(mode="json"), "params.yaml")
    stored = ("--config-dir", ".", "--config-name", "params")
    (again,) = call(lambda config: None, *stored, "method=full")
    assert again.model_dump(mode="json") == config.model_dump(mode="json") | {"method": "full"}


def test_params_yaml_that_asks_for_an_object_of_python_is_one_line(call_stage: CallStage) -> None:
    Path("params.yaml").write_text("seed: !!python/object/apply:os.getpid []\n")
    (line,) = call_stage("train", "--config-dir", ".", "--config-name", "params")
    assert re.match("error: .*os.getpid.*params.yaml.*line 1", line)


def fail(error: BaseException) -> Mock:
    return Mock(side_effect=error)


def write_too_much(_: Config) -> None:
    """Write a file; a limit of the size of files stands in for a full disk: the system refuses to write the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        write_array(Path("folder/file"), np.zeros(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TWO_ERRORS = ExceptionGroup("all", [DataError("k", "1", 2, file="a"), DataError("k", "1", 3, file="b")])


@pytest.mark.parametrize(
    ("task", "status", "lines"),
    [
        (fail(ConfigError("method=b: expected a\nseed: no value")), 2, ["method=b: expected a", "seed: no value"]),
        (fail(DataError("key", "1", 2, file="f.npz")), 2, ["f.npz: key: expected 1, found 2"]),
        (fail(TWO_ERRORS), 2, ["a: k: expected 1, found 2", "b: k: expected 1, found 3"]),
        (write_too_much, 1, ["folder/file: "]),
        (fail(KeyboardInterrupt()), 130, []),
    ],
)
def test_an_error_is_lines_and_a_status(
    task: Callable[[Config], None], status: int, lines: list[str], call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        call(task)
    assert exited.value.code == status
    for line, start in zip(capsys.readouterr().err.splitlines(), lines, strict=True):
        assert line.startswith(f"error: {start}")
    assert not [*Path().glob("folder/*")], "no part of a file stays"


def test_defects_keep_their_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ZeroDivisionError):
        call(lambda config: 1 / 0)
    with pytest.raises(DataError):  # on demand, bad input too
        call(fail(DataError("key", "1", 2)))


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


def test_output_folders(call: Call, written: list[Path]) -> None:
    call(lambda config: None, "collection=tile:xla", "method=full", "paths.models=m")
    call(lambda config: None, "output=there")
    configs = call(lambda config: None, "-m", "method=full,gst")
    assert [config.method for config in configs] == ["full", "gst"]
    assert written[:2] == [Path("m/tile/xla/full"), Path("there")]
    assert [folder.name for folder in written[2:]] == ["0", "1"]
    assert written[2].parent == written[3].parent


def test_no_other_process_writes_the_folder_of_a_stage_meanwhile(call: Call, written: list[Path]) -> None:
    def locked(config: Config) -> bool:
        lock = FileLock(Path(config.paths.state) / LOCKS / fingerprint(str(written[-1].resolve())))
        try:
            with lock.acquire(timeout=0):
                return False
        except Timeout:
            return True

    held: list[bool] = []
    (config,) = call(lambda config: held.append(locked(config)))
    assert (held, locked(config)) == ([True], False)


def test_files_of_the_working_folder_are_not_imported(tiny_collections: Path, tmp_path: Path) -> None:
    """Neither by the stage nor by its workers; a plugin that the user names is found there, after all others."""
    for name in ("json", "logging", "pickle", "queue", "socket", "joblib", "yaml", "own"):
        (tmp_path / f"{name}.py").write_text(f"with open({str(tmp_path / 'ran')!r}, 'a') as file: file.write({name!r})")
    arguments = [f"paths.raw={tiny_collections}/raw", "compute.workers=2", "plugins=[own]"]
    python("-m", "hlorank.stages.featurize", "collection=layout/synthetic/random", *arguments)
    assert {*(tmp_path / "ran").read_text().split("own")} == {""}


UNREAD_BY_TRAIN = {
    "featurize.prune_hops=2": "featurize.prune_hops",
    "++data.local.root=there": "data.local.root",
    "pipeline.methods=[gst]": "pipeline.methods",
    "evaluate.splits=[valid]": "evaluate.splits",
}
PASSWORDS = {
    "tracking.uri=http://me:secret@host": "tracking.uri",
    "++sweep.storage='postgresql://:sec/ret@host/x'": "++sweep.storage",
}


@pytest.mark.parametrize(
    ("name", "arguments", "keys"),
    [
        *(
            (name, [*arguments, "paths.state=[1]", "seeed=1"], {*keys, "paths.state", "seeed"})
            for name, arguments, keys in (
                ("fetch", ["data.origin=sever"], set[str]()),  # a name is looked for after that
                ("train", ["loss.listmle=x", "model.heads=x"], {"loss.listmle", "model.heads"}),
            )
        ),
        ("fetch", ["data.origin=sever"], {"data.origin"}),
        ("fetch", ["data.local.folds=2", "data.local.fold=-1"], {"data.local.folds", "data.local.fold"}),
        ("partition", ["partition.algorithm=metiss"], {"partition.algorithm"}),
        ("train", ["method=gts"], {"method"}),
        *(
            ("train", [*mode, argument, "seeed=1"], {f"warning: {key}", "seeed"})
            for mode in ([], ["-m"])
            for argument, key in UNREAD_BY_TRAIN.items()
        ),
        *(("train", [*mode, argument], {key}) for mode in ([], ["-m"]) for argument, key in PASSWORDS.items()),
    ],
)
def test_all_wrong_and_unread_keys_are_reported_before_anything_is_written(
    name: str, arguments: list[str], keys: set[str], call_stage: CallStage, tmp_path: Path
) -> None:
    lines = call_stage(name, *arguments)
    assert {re.match(r"(?:error: )?((warning: )?[\w.+]+)", line)[1] for line in lines} == keys  # type: ignore[index] # all match
    assert len(lines) == len(keys)
    assert {path.name for path in tmp_path.iterdir()} <= {"conf", ".hlorank"}  # locks


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_password_in_conf_ends_a_multirun_at_once(name: str, call_stage: CallStage, tmp_path: Path) -> None:
    path = tmp_path / "conf/tracking/sqlite.yaml"
    path.write_text(path.read_text().replace("sqlite:///mlflow.db", "http://me:secret@host"))
    (line,) = call_stage(name, "-m", "collection=tile/a,tile/b")
    assert line.startswith("error: tracking.uri=http://***@host: ")
    assert {path.name for path in tmp_path.iterdir()} == {"conf"}


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_what_hydra_does_not_take_is_taken_or_one_line(
    mode: list[str], call: Call, call_stage: CallStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = call(lambda config: None, "paths.raw=a=b #1 100% ü", "loss={mse: .1, listmle: 1}", *mode)
    assert config.paths.raw == "a=b #1 100% ü"
    assert {name: term.weight for name, term in config.loss.items()} == {"mse": 0.1, "listmle": 1}
    assert [*call(lambda config: None, "loss={mse: .1}", *mode)[0].loss] == ["mse"]
    for wrong, named in (
        ("trainer.max_epoch=1", "max_epochs"),
        ("kind=tile", "collection"),
        ("trainer.learning_rate=${oc.env:UNSET}", "UNSET"),
        ("paths.raw=[a=b", "paths.raw='[a=b'"),
        ("hydra/sweeper=optuna", "search"),
    ):
        (line,) = call_stage("train", *mode, wrong)
        assert named in line
    (below := tmp_path / "below").mkdir()
    monkeypatch.chdir(below)
    (line,) = call_stage("train", *mode)
    assert str(tmp_path) in line


@pytest.mark.parametrize(
    ("name", "place"),
    [("featurize", "data/raw/layout/cpu/random: train"), ("partition", "data/features/layout/cpu/random: features")],
)
def test_commands_without_their_input(name: str, place: str, call_stage: CallStage) -> None:
    (line,) = call_stage(name)
    assert line.startswith(f"error: {place}: ")


def python(*arguments: str) -> str:
    """Run an interpreter of its own and return its output; nothing is written to the standard error."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("imported", "allowed"),
    [
        ("stages.fetch fetch.origins stages.featurize featurize.featurize_collection", "pandas"),
        ("stages.partition partition.segment_store", "pandas"),
        (
            "models.cost_model training.losses training.methods stages.train training.prepare training.fit",
            "pandas torch",
        ),
        ("runs.training stages.evaluate evaluation.evaluate", "pandas torch"),
    ],
)
def test_what_takes_seconds_is_not_imported(imported: str, allowed: str) -> None:
    heavy = "altair jax lightning matplotlib mlflow optuna pandas sklearn torch torch_geometric torchmetrics"
    modules = ", ".join(f"hlorank.{name}" for name in imported.split())
    found = python("-c", f"import sys, {modules}; print(*{{*'{heavy}'.split()}} & {{*sys.modules}})")
    assert {*found.split()} <= {*allowed.split()}


STAGES = """
import runpy, sys
for name, *own in (
    ("fetch", *(f"data.synthetic.{size}" for size in sys.argv[1:])),
    ("featurize", "compute=serial"),
    ("partition", "compute=serial", "partition.max_nodes=500"),
    ("train", "trainer.max_epochs=1", "trainer.steps_per_epoch=2"),
    ("evaluate",),
):
    sys.argv = [name, "experiment=synthetic", *own, "hydra/job_logging=stdout", "hydra.run.dir=."]
    runpy.run_module(f"hlorank.stages.{name}", run_name="__main__")
"""


@pytest.mark.slow
def test_no_stage_shows_warnings_of_libraries(tmp_path: Path, tracking_database: Path) -> None:
    """All five run on synthetic graphs, with a hundredth of the data and of the steps."""
    shutil.copy(tracking_database, tmp_path / "mlflow.db")
    python("-c", STAGES, "train=2", "valid=1", "test=1", "min_nodes=60", "max_nodes=90", "configurations=30")
    pipeline = (SOURCE.parent / "dvc.yaml").read_text()
    outputs = re.findall(r"reports/\$\{item.collection\}/\$\{item.method\}/([\w.]+)", pipeline)
    assert sorted(path.name for path in tmp_path.glob("reports/layout/synthetic/random/gst/*")) == sorted(outputs), (
        "DVC brings back all, or none"
    )

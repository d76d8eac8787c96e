"""Command of a stage: composition by Hydra, validation, errors in single lines, and the folder of its output."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hlorank.config import Config, ConfigError, load
from hlorank.config.section import PASSWORD, STORE_ADDRESS, Registries, fields_at
from hlorank.data.collection import Collection
from hlorank.files import LOCKS, DataError, fingerprint, one_line, one_process
from hlorank.runs.store import error_lines
from hlorank.runs.sweeps import sweep_report

Task = Callable[[Config, Path], Any]
"""Function of the validated configuration and the folder that the stage writes."""

EXTENSION_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "origins": "hlorank.fetch.origins:ORIGINS",
        "partitioners": "hlorank.partition.partitioners:PARTITIONERS",
        "poolings": "hlorank.models.cost_model:POOLINGS",
        "layers": "hlorank.models.layers.registry:LAYERS",
        "losses": "hlorank.training.losses:LOSSES",
        "methods": "hlorank.training.methods:METHODS",
        "baselines": "hlorank.models.baselines.baseline:BASELINES",
    }
)
"""Mappings of names that the configuration may use. Imported on demand: some need PyTorch, which fetch does not."""

ALWAYS_READ = ("plugins", "collection", "kind", "output", "paths", "experiment", "hparams_search")
"""Keys that every stage accepts; files of the last two groups set keys of several stages."""


def stage(
    *extension_points: str, reads: Iterable[str], writes: str, lock: bool = True
) -> Callable[[Task], Callable[[], None]]:
    """Return a decorator that makes a command of a function of the validated configuration and the output folder.

    A mistake ends the command with a line for each problem and exit status 2; inside a multirun the job fails and the
    others continue.

    Args:
        extension_points: the ones whose names the stage uses; wrong names are reported with all other mistakes.
        reads: sections and keys that the stage reads besides `ALWAYS_READ`; an override of another key is a mistake.
        writes: key of `paths` for the folder that the stage writes.
        lock: no other process writes the folder meanwhile: a second process waits, and then reuses most of its files.
    """

    def decorate(task: Task) -> Callable[[], None]:
        name = Path(inspect.getfile(task)).stem

        @wraps(task)  # Hydra names the job after the module of the function below this
        def run(composed: DictConfig) -> Any:
            _quieten()  # a launcher may run this in a process of its own
            try:
                config = load_composed(composed, registries(*extension_points))
                output = output_folder(config, writes)
                folder_lock = Path(config.paths.state) / LOCKS / fingerprint(str(output.resolve()))
                with one_process(folder_lock, f"a stage that writes {output}") if lock else nullcontext():
                    return task(config, output)
            except Exception as error:
                if HydraConfig.get().mode is not RunMode.RUN:
                    raise
                status = _report(error)
            raise SystemExit(status)

        composed_run = hydra.main(version_base="1.3", config_path=str(Path.cwd() / "conf"), config_name="config")(run)

        @wraps(task)
        def command() -> None:
            _quieten()
            if wrong := _wrong(sys.argv[1:], name, (*ALWAYS_READ, *reads)):
                raise SystemExit(_report(ConfigError("\n".join(wrong))))
            if not {"-m", "--multirun"} & {*sys.argv}:
                sys.argv[1:] = map(_accepted_by_hydra, sys.argv[1:])
            try:
                with sweep_report():
                    composed_run()
            except KeyboardInterrupt:
                raise SystemExit(128 + signal.SIGINT) from None

        return command

    return decorate


def registries(*extension_points: str) -> Registries:
    """Return extension points by name."""
    return {point: resolve_name(EXTENSION_POINTS[point]) for point in extension_points}


def load_composed(composed: DictConfig, registries: Registries | None = None) -> Config:
    """Validate a configuration as Hydra composed it; see `hlorank.config.load`."""
    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {(error.msg or str(error)).splitlines()[0]}") from None
    return load(values, registries)


def _report(error: Exception) -> int:
    """Print the lines of an error that users can correct, and return the exit status; raise an error of the program."""
    lines = error_lines(error)
    if lines is None or os.environ.get("HYDRA_FULL_ERROR"):
        raise error
    # A wrong configuration is wrong on all ranks: the first one of a machine reports it.
    if os.environ.get("LOCAL_RANK", "0") == "0" or not isinstance(error, ConfigError | ConnectionError):
        sys.stderr.writelines(f"{line}\n" for line in lines)
    return 2 if isinstance(error, ConfigError | DataError | ExceptionGroup) else 1


def _wrong(arguments: Iterable[str], name: str, reads: Sequence[str]) -> list[str]:
    """Return a line for each override of a key that another stage reads, each password, and a broken params.yaml."""
    problems = []
    if "params" in arguments:  # after --config-name; Hydra prints a traceback
        try:
            OmegaConf.load("params.yaml")
        except Exception as error:
            problems.append(one_line(f"params.yaml: {' '.join(str(error).split())}"))
    for argument in arguments:
        key, separator, _ = argument.lstrip("+~").partition("=")
        key, section = key.partition("@")[0], key.partition(".")[0].partition("@")[0]
        if not separator or section not in Config.model_fields:
            continue
        if key in {"tracking.uri", "sweep.storage"} and PASSWORD.search(argument):  # Hydra would write it
            problems.append(one_line(f"{argument}: expected {STORE_ADDRESS}"))
        elif not any(f"{key}.".startswith(f"{read}.") or read.startswith(f"{key}.") for read in reads):
            remedy = f"give it to a stage that reads it, or use dvc exp run -S {argument}"
            problems.append(one_line(f"{key}: no effect on the stage {name}; {remedy}"))
    return problems


def _accepted_by_hydra(argument: str) -> str:
    """Mark the override of a key that does not exist as an addition: so it reaches the validation with other mistakes.

    Origins and losses have keys of their own, which only Hydra knows here.
    """
    key, separator, _ = argument.partition("=")
    *parents, name = key.split(".")
    if not separator or not key.replace(".", "").isidentifier() or key.startswith(("hydra.", "data.", "loss.")):
        return argument
    is_group = not parents and (Path("conf") / name).is_dir()
    return argument if is_group or name in fields_at(Config, parents) else f"+{argument}"


class _Formatter(logging.Formatter):
    """Formatter of lines on the console, of which routine ones have no level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname}: {text}"


def _quieten() -> None:
    """Hide what libraries log about routine steps, and format the lines on the console."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # on import; DDP warns where a special form would be faster
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # on import it sets the level itself
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:  # Hydra's
            handler.setFormatter(_Formatter())


def collection_folder(config: Config, name: str) -> Path:
    """Return the collection's folder below a folder of `paths`, that of the method among models and reports."""
    collection = Path(getattr(config.paths, name)) / Collection.parse(config.collection).path
    return collection / config.method if name in {"models", "reports"} else collection


def output_folder(config: Config, writes: str) -> Path:
    """Return the folder that a stage writes: `output`, in a multirun the job's own folder, else the collection's."""
    if config.output is not None:
        return Path(config.output)
    if HydraConfig.get().mode is RunMode.MULTIRUN:
        return Path(HydraConfig.get().runtime.output_dir)
    return collection_folder(config, writes)

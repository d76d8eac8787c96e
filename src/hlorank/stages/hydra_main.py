"""What all stages share: composition, validation, and where their output goes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from hlorank.config import Config, ConfigError, load
from hlorank.data.collection import Collection
from hlorank.files import DataError
from hlorank.sweeps.callback import sweep_report


def stage(task: Callable[[Config], Any]) -> Callable[[], None]:
    """Makes a command of a function of the validated configuration.

    The configuration is composed from conf/ in the current folder, or taken from params.yaml with
    `--config-dir . --config-name params`. Bad data or a bad configuration ends the command with one line that says
    what is wrong, and exit status 2; inside a multirun the job fails and the others go on.
    """

    @wraps(task)  # Hydra names the job after the module that it finds behind this
    def run(composed: DictConfig) -> Any:
        _quieten()  # a launcher may run this in a process of its own
        if HydraConfig.get().mode is not RunMode.RUN:
            return task(load(composed))
        try:
            return task(load(composed))
        except* (ConfigError, DataError) as group:
            if os.environ.get("HYDRA_FULL_ERROR"):
                raise
            for error in group.exceptions:
                sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2)

    composed_run = hydra.main(version_base="1.3", config_path=str(Path.cwd() / "conf"), config_name="config")(run)

    @wraps(task)
    def command() -> None:
        _quieten()
        with sweep_report():
            composed_run()

    return command


def _quieten() -> None:
    """Leaves out what libraries tell of each step that is routine."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # on import it sets the level itself


def collection_folder(config: Config, place: str) -> Path:
    """The collection's folder below a folder of `paths`."""
    return Path(place) / Collection.parse(config.collection).path


def output_folder(config: Config, place: str, *parts: str) -> Path:
    """Where a stage writes: `output`, or in a multirun the job's own folder, or the collection's place.

    Args:
        config: the whole configuration.
        place: the stage's folder under `paths`.
        parts: folders below the collection's, such as the method.
    """
    if config.output is not None:
        return Path(config.output)
    hydra_config = HydraConfig.get()
    if hydra_config.mode is RunMode.MULTIRUN:
        return Path(hydra_config.runtime.output_dir)
    return collection_folder(config, place).joinpath(*parts)

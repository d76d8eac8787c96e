"""Command of a stage: composition by Hydra, validation, errors in single lines, and the folder of its output."""

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import wraps
from itertools import chain
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import utils as hydra_utils
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from hlorank.compute import end_with_parent
from hlorank.config import Config, ConfigError
from hlorank.config.extras import named_extra
from hlorank.config.section import PASSWORD, STORE_ADDRESS, fields_at, unknown_key
from hlorank.data.collection import Collection
from hlorank.files import LOCKS, DataError, bundled, fingerprint, first_line, one_line, one_process
from hlorank.runs.store import error_lines
from hlorank.runs.sweeps import load_composed as load_composed
from hlorank.runs.sweeps import sweep_report

Task = Callable[[Config, Path], Any]
"""Function of the validated configuration and the folder that the stage writes."""

ALWAYS_READ = ("plugins", "collection", "kind", "output", "paths", "experiment", "hparams_search")
"""Keys that every stage accepts; files of the last two groups set keys of several stages."""

_MULTIRUN = frozenset({"-m", "--multirun"})
# Hydra raises its errors, as in a debugger, and `stage` reports them in single lines.
hydra_utils.is_under_debugger = lambda: True


def stage(*, reads: Iterable[str], writes: str, lock: bool = True) -> Callable[[Task], Callable[[], None]]:
    """Return a decorator that makes a command of a function of the validated configuration and the output folder.

    A mistake ends the command with a line for each problem and exit status 2; inside a multirun the job fails and the
    others continue.

    Args:
        reads: sections and keys that the stage reads besides `ALWAYS_READ`; an override of another key is warned of.
        writes: key of `paths` for the folder that the stage writes.
        lock: no other process writes the folder meanwhile: a second process waits, and then reuses most of its files.
    """

    def decorate(task: Task) -> Callable[[], None]:
        name = Path(inspect.getfile(task)).stem

        @wraps(task)  # Hydra names the job after the module of the function below this
        def run(composed: DictConfig) -> Any:
            _quieten()  # a launcher may run this in a process of its own
            if current_process().name.startswith("LokyProcess"):  # of joblib, which lets it finish after a kill
                end_with_parent(os.getppid())
            try:
                config = load_composed(composed)
                output = output_folder(config, writes)
                folder_lock = Path(config.paths.state) / LOCKS / fingerprint(str(output.resolve()))
                locked = one_process(folder_lock, f"a stage that writes {output}") if lock else nullcontext()
                with locked, named_extra(f"the stage {name}"):
                    return task(config, output)
            except Exception as error:
                if HydraConfig.get().mode is not RunMode.RUN:
                    raise
                status = _report(error)  # Hydra would print a line of its own before it
            raise SystemExit(status)

        conf = next(filter(Path.is_dir, [Path.cwd() / "conf", bundled("conf")]))
        composed_run = hydra.main(version_base="1.3", config_path=str(conf), config_name="config")(run)

        @wraps(task)
        def command() -> None:
            _quieten()
            try:
                _check(sys.argv[1:], name, (*ALWAYS_READ, *reads))
                options = [option for option in sys.argv[1:] if option in _MULTIRUN]  # come first, as Hydra wants
                others = (_accepted_by_hydra(one, bool(options)) for one in sys.argv[1:] if one not in _MULTIRUN)
                sys.argv[1:] = [*options, *chain.from_iterable(others)]
                with named_extra("a sweep"), sweep_report():
                    composed_run()
            except KeyboardInterrupt:
                raise SystemExit(128 + signal.SIGINT) from None
            except Exception as error:
                raise SystemExit(_report(error)) from None

        return command

    return decorate


def _report(error: Exception) -> int:
    """Print the lines of an error that users can correct, and return the exit status; raise an error of the program."""
    if isinstance(error, HydraException) or type(error).__module__.startswith("yaml."):  # also of Python's objects
        error = ConfigError(" ".join(str(error).split()))
    lines = error_lines(error)
    if lines is None or os.environ.get("HYDRA_FULL_ERROR"):
        raise error
    # A wrong configuration is wrong on all ranks: the first one of a machine reports it.
    if os.environ.get("LOCAL_RANK", "0") == "0" or not isinstance(error, ConfigError | ConnectionError):
        sys.stderr.writelines(f"{line}\n" for line in lines)
    return 2 if isinstance(error, ConfigError | DataError | ExceptionGroup) else 1


def _check(arguments: Sequence[str], name: str, reads: Sequence[str]) -> None:
    """Warn of overrides of keys that only other stages read; refuse passwords, and another folder."""
    if not Path("conf").is_dir() and not {"--config-dir", "-cd", "--config-path", "-cp"} & {*arguments}:
        for project in (parent for parent in Path.cwd().parents if (parent / "conf/config.yaml").is_file()):
            raise ConfigError(f"conf: no such folder here; run in {project}")
    for argument in arguments:
        key, separator, _ = argument.lstrip("+~").partition("=")
        key, section = key.partition("@")[0], key.partition(".")[0].partition("@")[0]
        if key == "output" and {*_MULTIRUN} & {*arguments}:
            raise ConfigError(f"{argument}: leave it out; each job of a multirun has a folder of its own")
        if key == "hydra.run.dir" and not argument.endswith("=."):
            raise ConfigError(f"{argument}: leave it out; output is the folder that a stage writes")
        if not separator or section not in Config.model_fields:
            continue
        if key in {"tracking.uri", "sweep.storage"} and PASSWORD.search(argument):  # Hydra would write it
            raise ConfigError(f"{argument}: expected {STORE_ADDRESS}")
        if not any(f"{key}.".startswith(f"{read}.") or read.startswith(f"{key}.") for read in reads):
            remedy = f"give it to a stage that reads it, or use dvc exp run -S {argument}"
            sys.stderr.write(one_line(f"warning: {key}: no effect on the stage {name}; {remedy}") + "\n")


def _accepted_by_hydra(argument: str, sweep: bool) -> list[str]:
    """Return an argument in the form that Hydra takes: in quotes where its grammar needs them.

    The override of a key that does not exist becomes an addition: so it reaches the validation with other mistakes,
    but of a sweep here. Origins and losses have keys of their own, which only Hydra knows. Losses in braces are all.
    """
    key, separator, value = argument.partition("=")
    if not separator or key.startswith("-"):
        return [argument]
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException as error:
        quoted = f"{key}='{value}'"
        if {*value} & {*"'\"\\,[]{}()"}:
            raise ConfigError(f'{first_line(error)}; a value of text needs quotes: "{quoted}"') from None
        argument = quoted
    if key == "loss" and value.startswith("{"):
        return ["~loss", f"+{argument}"]
    *parents, name = key.split(".")
    is_group = not parents and any((conf / name).is_dir() for conf in (Path("conf"), bundled("conf")))
    own = key.replace(".", "").isidentifier() and not key.startswith(("hydra.", "data.", "loss."))
    if not own or is_group or name in fields_at(Config, parents):
        return [argument]
    while parents and not fields_at(Config, parents):  # below a mapping of any keys, or of no key
        name = parents.pop()
    if sweep and name not in (known := fields_at(Config, parents)):
        raise ConfigError(unknown_key(".".join([*parents, name]), known))
    return [f"+{argument}"]


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

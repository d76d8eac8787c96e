"""MLflow: one run for each training."""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock, Timeout

from hlorank.compute import ComputeError
from hlorank.config import ConfigError, TrackingConfig
from hlorank.files import DataError, fingerprint, one_line, one_process, redact_credentials
from hlorank.metrics import BEST_TAU

URI_VARIABLE = "MLFLOW_TRACKING_URI"
PARENT_VARIABLE = "HLORANK_PARENT_RUN"
FINGERPRINT = "hlorank.fingerprint"
"""Tag of a training's run: the fingerprint of its configuration and data."""
CODE = "hlorank.code"
"""Tag of a training's run: the digest of the code that it ran."""
CHECKOUT = "hlorank.checkout"
"""Tag of a run: the fingerprint of the machine and the folder of locks of the last process that opened it."""
FEATURES = "features"
"""Tag of a run: the fingerprint of its features, however these are cut into segments."""
MODEL = "model"
"""Tag of an evaluated run: the digest of its model."""
ENDED_BY = "ended_by"
"""Tag of a run that ended early: by `trainer.cpu_seconds` or, by its search, `PRUNING`."""
PRUNING = "pruning"
NOTE = "mlflow.note.content"
"""Tag of a run or an experiment that MLflow shows as its description, in Markdown."""
NOTE_LENGTH = 5000
"""Characters that every store has room for in a tag."""

_CONNECT_SECONDS = "10"
_FIRST_REQUEST = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_PLACE = f"{URI_VARIABLE} or tracking.uri"
_TABLES_LOCK = 0x686C6F72  # any number that other programs do not lock

_ABOUT = """\
Trainings of hlorank: learned rankers of compiler configurations.

One run is one training; a sweep is the parent of its runs. Compare runs of one collection by `valid/best_kendall_tau`,
the Kendall tau on valid of the epoch whose weights were kept (1 is the measured order, 0 is chance). Look at
`evaluate/test` once, at the end.
"""


class Pruned(Exception):  # noqa: N818 - nothing went wrong
    """End of a training that its search prunes; the run is marked as killed, not as failed."""


def tracking_uri(config: TrackingConfig) -> str:
    """Return the tracking store: the variable MLFLOW_TRACKING_URI, else the configuration's."""
    return os.environ.get(URI_VARIABLE) or config.uri


def database_file(uri: str) -> Path | None:
    """Return the file of a sqlite store; None for any other store.

    Args:
        uri: address of the store; `%20` and the like, which MLflow writes for special characters, are decoded.
    """
    if not uri.startswith("sqlite:"):
        return None
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "")


def is_database(uri: str) -> bool:
    """Return whether a store is a database, a file or on a server, and not a server of MLflow."""
    from mlflow.store.db.db_types import DATABASE_ENGINES

    return uri.partition(":")[0].partition("+")[0] in DATABASE_ENGINES


def existing_store() -> str:
    """Return the store that MLflow is set up for: MLFLOW_TRACKING_URI, else mlflow.db in the current folder.

    Raises:
        DataError: the store is a database file that does not exist; MLflow would create an empty one.
        ConnectionError: the store is on a server that cannot be used.
    """
    import mlflow

    uri: str = mlflow.get_tracking_uri()
    path = database_file(uri)
    if path is not None and not path.is_file():
        remedy = "no such file; run in the project's folder after make repro, or set MLFLOW_TRACKING_URI"
        raise DataError("tracking store", "an MLflow database", remedy, file=path)
    check_server(uri)
    check_server(mlflow.get_registry_uri())
    return uri


@cache
def check_server(uri: str) -> None:
    """Connect to the server of a store, if it has one, and to a database server that has no tables create them.

    Raises:
        ConnectionError: the server cannot be used, or the driver of its database is missing.
    """
    if uri.startswith(("http:", "https:")):
        _check_mlflow_server(uri)
    elif is_database(uri) and database_file(uri) is None:
        _check_database_server(uri)


def _check_mlflow_server(uri: str) -> None:
    """Make one request, once: MLflow repeats each for minutes, so that trainings outlast a restart of the server."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from requests import RequestException
    from requests.exceptions import RetryError

    limits = {name: value for name, value in _FIRST_REQUEST.items() if name not in os.environ}
    os.environ.update(limits)
    try:
        MlflowClient(uri).search_experiments(max_results=1)
    except MlflowException as error:
        reason = error.__context__
        if isinstance(reason, RetryError):  # it answers, and is busy
            return
        if isinstance(reason, RequestException):
            problem = f"no MLflow server answers: {_innermost(reason)}; start it, or give another address in {_PLACE}"
        else:
            problem = f"the MLflow server refuses requests: {str(error).strip().splitlines()[0]}"
        raise ConnectionError(errno.ECONNREFUSED, problem, redact_credentials(uri)) from None
    finally:
        for name in limits:
            del os.environ[name]


def _innermost(error: BaseException) -> str:
    """Return the reason of an error of requests, without the object of urllib3 that it begins with."""
    while error.args and isinstance(inner := getattr(error.args[0], "reason", error.args[0]), Exception):
        error = inner
    return re.sub(r"^\w+\([^)]*\): ", "", str(error)).rstrip(".")


def _check_database_server(uri: str) -> None:
    """Connect, and create MLflow's tables, one process at a time.

    MLflow itself tries for two minutes to connect, and processes that create tables at the same time fail.
    """
    import sqlalchemy
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("PGCONNECT_TIMEOUT", _CONNECT_SECONDS)  # of all connections; by default over two minutes
    # A server has a limit of connections: each is closed after use, not kept open by every training.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", sqlalchemy.NullPool.__name__)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # otherwise it logs each new database
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            # MLflow's last step writes this table.
            if engine.name == "postgresql" and not sqlalchemy.inspect(connection).has_table("alembic_version"):
                connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_TABLES_LOCK)))
                MlflowClient(uri).search_experiments(max_results=1)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        problem = database_problem(error, _PLACE)
        raise ConnectionError(errno.ECONNREFUSED, problem, redact_credentials(uri)) from None


def database_problem(error: Exception, place: str) -> str:
    """Return the reason why a database cannot be used, from SQLAlchemy's error, and the remedy.

    Args:
        error: the error of SQLAlchemy or of the import of a driver.
        place: the key or variable that has the address.
    """
    if isinstance(error, ImportError):
        return f"{error}; install the driver: for postgresql+psycopg://, the extra postgresql of hlorank"
    reason = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"{reason}; start the server, or give another address in {place}"


@cache
def _make_database(uri: str, path: Path) -> None:
    """Create or upgrade a sqlite store, one process at a time: MLflow's own lock makes the other processes fail.

    A new store is made under a temporary name: MLflow cannot continue a creation that was killed.
    """
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking import MlflowClient
    from sqlalchemy import make_url

    path.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # otherwise it logs each new database
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists() or path.stat().st_size == 0:
            partial = path.with_name(f"{path.name}.partial")
            try:
                _remove_database(partial)
                address = make_url(uri).set(database=str(partial)).render_as_string()
                store = SqlAlchemyStore(address, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
                store.engine.dispose()  # writes all that sqlite keeps in files next to the database
                partial.replace(path)
            finally:
                _remove_database(partial)
        MlflowClient(uri).search_experiments(max_results=1)


def _remove_database(path: Path) -> None:
    """Remove a sqlite database, if it exists, with the files that sqlite keeps next to it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def connect(config: TrackingConfig) -> str:
    """Set MLflow up for the tracking store, create a database file that does not exist, and return the address.

    Raises:
        ConnectionError: the store is on a server that cannot be used.
    """
    import mlflow

    uri, by_variable = tracking_uri(config), URI_VARIABLE in os.environ
    if redact_credentials(uri) != uri:  # MLflow prints the address of each run that ends
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    check_server(uri)
    mlflow.set_tracking_uri(uri)
    if (path := database_file(uri)) is not None:
        _make_database(uri, path)
    if not by_variable:
        # MLflow may set the variable itself, which would overrule the next configuration in this process.
        os.environ.pop(URI_VARIABLE, None)
    return uri


def open_experiment(config: TrackingConfig) -> str:
    """Make the configured experiment the current one, create it where it does not exist, and return its id."""
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = connect(config)
    described = {"mlflow.experimentKind": "custom_model_development", NOTE: _ABOUT}
    if mlflow.get_experiment_by_name(config.experiment) is None:
        # Servers of MLflow have a location of their own, also one that the variable puts in place of a database.
        location = Path(config.artifacts).resolve().as_uri() if is_database(uri) else None
        try:
            # With its tags: setting one fails in a process if another one does so at the same time.
            mlflow.create_experiment(config.experiment, artifact_location=location, tags=described)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process has created it meanwhile
                raise
    experiment = mlflow.set_experiment(config.experiment)
    if missing := {key: text for key, text in described.items() if key not in experiment.tags}:
        mlflow.set_experiment_tags(missing)
    experiment_id: str = experiment.experiment_id
    return experiment_id


def experiment_of(client: Any, run_id: str) -> str | None:
    """Return the experiment of a run, None if the store has no such run or it was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        info = client.get_run(run_id).info
    except MlflowException:
        return None
    return info.experiment_id if info.lifecycle_stage == "active" else None


def finished_training(
    config: TrackingConfig, identity: str, tags: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, float] | None:
    """Return run and validation Kendall tau of a training that has finished before, None if there is none.

    Args:
        config: the tracking store and its experiment.
        identity: the fingerprint of the training.
        tags: further tags that the run must have.
    """
    from mlflow.tracking import MlflowClient

    if (path := database_file(tracking_uri(config))) is not None and not path.is_file():
        return None  # MLflow would create the database
    client = MlflowClient(connect(config))
    experiment = client.get_experiment_by_name(config.experiment)
    if experiment is None:
        return None
    query = "attributes.status = 'FINISHED'"
    for tag, value in ({FINGERPRINT: identity} | dict(tags)).items():
        query += f" and tags.`{tag}` = '{value}'"
    for run in client.search_runs([experiment.experiment_id], query, order_by=["attributes.start_time"]):
        if BEST_TAU in run.data.metrics:  # logged last: Lightning marks a run as finished earlier
            return run.info.run_id, run.data.metrics[BEST_TAU]
    return None


def _git_commit() -> dict[str, str]:
    """Return the tag with the commit of the current folder; MLflow itself records that of the installed package."""
    from mlflow.utils.git_utils import get_git_commit
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

    commit = get_git_commit(str(Path.cwd()))
    return {} if commit is None else {MLFLOW_GIT_COMMIT: commit}


@contextmanager
def _killed_if_stopped() -> Iterator[None]:
    import mlflow

    try:
        yield
    except (Pruned, KeyboardInterrupt) as error:
        if isinstance(error, Pruned):
            mlflow.set_tag(ENDED_BY, PRUNING)
        mlflow.end_run("KILLED")
        raise


@contextmanager
def open_run(
    config: TrackingConfig,
    name: str,
    tags: Mapping[str, str],
    run_id: str | None = None,
    *,
    locks: Path | None = None,
) -> Iterator[tuple[str, bool]]:
    """Open a run, or resume the run `run_id` where the store still has it.

    An exception marks the run as failed, `Pruned` and Ctrl-C as killed. Inside a sweep a new run is a child of the
    sweep's run. First, runs that killed processes of this checkout left open are ended.

    Args:
        config: the tracking store and its experiment.
        name: name of a new run.
        tags: tags of a new run.
        run_id: an earlier run to resume.
        locks: folder of locks, which show other processes that the run is open; None for a run that they never end.

    Yields:
        The run's id, and whether it is resumed.
    """
    import mlflow

    client = mlflow.MlflowClient(connect(config))
    earlier = None if run_id is None else experiment_of(client, run_id)
    experiment = open_experiment(config) if earlier is None else earlier
    if earlier is not None:
        mlflow.set_experiment(experiment_id=earlier)
    with ExitStack() as opened:
        with nullcontext() if locks is None else opening_runs(experiment, locks):
            if earlier is not None:
                run = mlflow.start_run(run_id=run_id)
            else:
                parent = os.environ.get(PARENT_VARIABLE)
                run = mlflow.start_run(run_name=name, tags={**tags, **_git_commit()}, parent_run_id=parent)
            if locks is not None:
                lock = locks / run.info.run_id
                opened.callback(lock.unlink, missing_ok=True)
                opened.enter_context(one_process(lock, "this run"))
                mlflow.set_tag(CHECKOUT, checkout(locks))
        with run, _killed_if_stopped():
            yield run.info.run_id, earlier is not None


@contextmanager
def opening_runs(experiment: str, locks: Path) -> Iterator[None]:
    """End the runs that killed processes of this checkout left open, and keep other processes from opening runs.

    Whoever opens a run acquires its own lock, `locks` / its id, in the block: elsewhere each open run
    has its lock.
    """
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / "runs"):
        _end_abandoned(experiment, locks)
        yield


def checkout(locks: Path) -> str:
    """Return the value of the tag `CHECKOUT` for a folder of locks on this machine."""
    return fingerprint([platform.node(), str(locks.resolve())])


def _end_abandoned(experiment: str, locks: Path) -> None:
    """End the runs of this checkout that are open although no process holds their lock: as killed, unless complete."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    query = f"attributes.status = 'RUNNING' and tags.`{CHECKOUT}` = '{checkout(locks)}'"
    for found in client.search_runs([experiment], query):
        lock = FileLock(locks / found.info.run_id)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        run = client.get_run(found.info.run_id)
        if run.info.status == "RUNNING":  # it may have ended since the search
            # A complete training was killed in evaluation.
            client.set_terminated(run.info.run_id, "FINISHED" if BEST_TAU in run.data.metrics else "KILLED")
        lock.release()
        (locks / found.info.run_id).unlink(missing_ok=True)


def error_lines(error: BaseException) -> list[str] | None:
    """Return the lines that report an error in the input or its environment, None for an error of the program.

    Args:
        error: a wrong configuration, which has a line for each wrong key; wrong data; work that ended its worker; an
            error of the operating system or of MLflow's store; or a group of such errors.
    """
    if isinstance(error, BaseExceptionGroup):
        groups = [error_lines(one) for one in error.exceptions]
        return None if None in groups else [line for lines in groups for line in lines or ()]
    if isinstance(error, ConfigError):
        problems = str(error).splitlines()
    elif isinstance(error, DataError | ComputeError):
        problems = [str(error)]
    elif isinstance(error, OSError):
        names = (str(error.filename2 or error.filename or ""), error.strerror or str(error) or type(error).__name__)
        problems = [": ".join(filter(None, names))]
    elif isinstance(error, _store_errors()):
        import mlflow  # the error may be that of another process

        store = mlflow.get_tracking_uri()
        problems = [f"MLflow store {store}: {str(error).strip().splitlines()[0]}"]
    else:
        return None
    return [f"error: {one_line(problem)}" for problem in problems]


def _store_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of MLflow and of its database, if they are imported; their import takes seconds."""
    names = {"mlflow.exceptions": "MlflowException", "sqlalchemy.exc": "SQLAlchemyError"}
    return tuple(getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules)

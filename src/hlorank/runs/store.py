"""MLflow store: its address, the runs of trainings in it, and errors as single lines."""

import errno
import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from filelock import FileLock

from hlorank.compute import ComputeError
from hlorank.config import ConfigError, TrackingConfig
from hlorank.files import DataError, atomic_path, first_line, in_main, main_folder, one_line, redact_credentials
from hlorank.metrics import BEST_TAU

URI_VARIABLE = "MLFLOW_TRACKING_URI"
PARENT_VARIABLE = "HLORANK_PARENT_RUN"  # of the processes of a sweep's jobs: the id of the sweep's run
VARIED_VARIABLE = "HLORANK_VARIED"  # of the same processes: the keys that differ between jobs
# Tags of runs.
FINGERPRINT = "hlorank.fingerprint"  # of the settings, data and code of a training
CODE = "hlorank.code"  # the digest of the code that a training ran
FEATURES = "features"  # the fingerprint of the features, however these are cut into segments
MODEL = "model"  # the digest of the model that was evaluated
EVALUATION = "hlorank.evaluation"  # the fingerprint of the code of the evaluation
ENDED_BY, PRUNING = "ended_by", "pruning"  # of a training that its search ended early
SWEEP, NAME = "hlorank.sweep", "hlorank.sweep.name"  # of a sweep: its command, and its name
NOTE = "mlflow.note.content"  # shown as the description of a run or an experiment, in Markdown
NOTE_LENGTH, NAME_LENGTH = 5000, 250  # characters that every store has room for

_CONNECT_SECONDS, _RESPONSE_SECONDS = "10", "20"
_BUSY = {408, 429, 500, 502, 503, 504}  # statuses that MLflow tries again
_PLACE = f"{URI_VARIABLE} or tracking.uri"
_TABLES_LOCK = 0x686C6F72  # any number that other programs do not lock

_ABOUT = """\
One run is one training; a sweep is the parent of its runs. Compare runs of one collection by `valid/best_kendall_tau`,
the Kendall tau on valid of the epoch whose weights were kept. Look at `evaluate/test` once, at the end.
"""


_log = logging.getLogger(__name__)
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
# It logs each new database, and errors that it raises, with tracebacks.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


class Pruned(Exception):  # noqa: N818 - nothing went wrong
    """End of a training that its search prunes; the run is marked as killed, not as failed."""


def experiment_name(config: TrackingConfig) -> str:
    """Return the name of the experiment: the variable MLFLOW_EXPERIMENT_NAME, else the configuration's."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or config.experiment


def tracking_uri(config: TrackingConfig) -> str:
    """Return the tracking store: the variable MLFLOW_TRACKING_URI, else the configuration's."""
    return in_main(os.environ.get(URI_VARIABLE) or config.uri)


def database_file(uri: str) -> Path | None:
    """Return the file of a sqlite store, with `%20` and the like decoded; None for any other store."""
    if not uri.startswith("sqlite:"):
        return None
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "")


def existing_file() -> Path | None:
    """Return the database file that `existing_store` would name; None for another store, and where there is none."""
    uri = in_main(os.environ.get(URI_VARIABLE) or "sqlite:///mlflow.db")  # as MLflow keeps the variable up to date
    path = Path(uri.removeprefix("sqlite:///"))
    return path if uri.startswith("sqlite:///") and not {*uri} & {*"%?"} and path.is_file() else None


def existing_store() -> str:
    """Return the store that MLflow is set up for, MLFLOW_TRACKING_URI or mlflow.db here; it must exist."""
    import mlflow

    given = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else "sqlite:///mlflow.db"
    if (shared := in_main(given)) != given:
        mlflow.set_tracking_uri(shared)
    uri: str = mlflow.get_tracking_uri()
    path = database_file(uri)
    if path is not None and not path.is_file():
        remedy = "no such file, as dvc pull brings none: hlorank report models compares pulled models, and make repro "
        remedy += "writes runs; outside of the project's folder, set MLFLOW_TRACKING_URI"
        raise DataError("tracking store", "an MLflow database", remedy, file=path)  # MLflow would create an empty one
    check_server(uri)
    check_server(mlflow.get_registry_uri())
    return uri


def is_database(uri: str) -> bool:
    """Return whether a store is a database, a file or on a server, and not a server of MLflow."""
    from mlflow.store.db.db_types import DATABASE_ENGINES

    return uri.partition(":")[0].partition("+")[0] in DATABASE_ENGINES


@cache
def check_server(uri: str) -> None:
    """Raise a ConnectionError if a store is on a server that cannot be used; create MLflow's tables in a database."""
    problem = None
    if uri.startswith(("http:", "https:")):
        problem = _problem_of_mlflow_server(uri)
    elif is_database(uri) and database_file(uri) is None:
        problem = _problem_of_database_server(uri)
    if problem is not None:
        raise ConnectionError(errno.ECONNREFUSED, problem, redact_credentials(uri))


@contextmanager
def briefly() -> Iterator[None]:
    """Let requests to a server fail at once, or after seconds; MLflow repeats each of them for minutes."""
    timeout = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = {key: os.environ.get(key) for key in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", timeout)}
    os.environ.update(dict.fromkeys(before, "0") | {timeout: before[timeout] or _RESPONSE_SECONDS})
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key)
            os.environ.update({} if value is None else {key: value})


def _problem_of_mlflow_server(uri: str) -> str | None:
    """Make one request, once."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    request = get_default_host_creds(uri), "/api/2.0/mlflow/experiments/search?max_results=1", "GET"
    try:
        with briefly():
            response = http_request(*request, raise_on_status=False)
    except MlflowException as error:
        innermost = str(error.__context__).rpartition(": ")[2].strip("\"')")  # without the names of urllib3's objects
        return f"no MLflow server answers: {innermost}; start it, or give another address in {_PLACE}"
    refused = response.status_code != HTTPStatus.OK and response.status_code not in _BUSY
    return f"the MLflow server refuses requests: status {response.status_code}" if refused else None


def _problem_of_database_server(uri: str) -> str | None:
    """Connect once, as MLflow tries for two minutes, and let one process create MLflow's tables, as MLflow does not."""
    import sqlalchemy
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("PGCONNECT_TIMEOUT", _CONNECT_SECONDS)  # of all connections; by default over two minutes
    # A server has a limit of connections: each is closed after use, not kept open by every training.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", sqlalchemy.NullPool.__name__)
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            # MLflow's last step writes this table.
            if engine.name == "postgresql" and not sqlalchemy.inspect(connection).has_table("alembic_version"):
                connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_TABLES_LOCK)))
                MlflowClient(uri).search_experiments(max_results=1)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        return database_problem(error, _PLACE)
    return None


def database_problem(error: Exception, place: str) -> str:
    """Return why a database cannot be used, and the remedy; `place` is the key or variable that has the address."""
    if isinstance(error, ImportError):
        return f"{error}; install the driver: for postgresql+psycopg://, the extra postgresql of hlorank"
    reason = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"{reason}; start the server, or give another address in {place}"


@cache
def _make_database(uri: str, path: Path) -> None:
    """Create a sqlite store, or tables that an older store lacks, in one process at a time: MLflow has no lock."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking import MlflowClient
    from sqlalchemy import make_url

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists() or path.stat().st_size == 0:
            with atomic_path(path) as partial:  # MLflow cannot continue a creation that was killed
                address = make_url(uri).set(database=str(partial)).render_as_string()
                store = SqlAlchemyStore(address, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
                store.engine.dispose()  # writes all that sqlite keeps in files next to the database
        MlflowClient(uri).search_experiments(max_results=1)


def connect(config: TrackingConfig) -> str:
    """Set MLflow up for the tracking store, create a database file that does not exist, and return the address."""
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


@cache  # one warning
def _check_artifacts(experiment: str, address: str, folder: Path) -> None:
    """Warn of an experiment whose artifacts are elsewhere: in the folder of the project before a move or copy."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    place = Path(local_file_uri_to_path(address))  # relative if it is none of a folder
    if place.is_absolute() and place.resolve() != folder and not place.resolve().is_relative_to(main_folder()):
        message = "new artifacts of the experiment %s are outside of this checkout, in %s; to change it: python scripts"
        _log.warning(message + "/relocate.py %s %s", experiment, place, *map(shlex.quote, (str(place), str(folder))))


def open_experiment(config: TrackingConfig) -> str:
    """Make the configured experiment the current one, create it where it does not exist, and return its id."""
    import mlflow
    from mlflow.exceptions import MlflowException

    uri, name, folder = connect(config), experiment_name(config), Path(config.artifacts).resolve()
    # Servers of MLflow have a location of their own, also one that the variable puts in place of a database.
    location = folder.as_uri() if is_database(uri) else None
    if (found := mlflow.get_experiment_by_name(name)) is None:
        described = {"mlflow.experimentKind": "custom_model_development", NOTE: _ABOUT}
        try:
            mlflow.create_experiment(name, artifact_location=location, tags=described)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process has created it meanwhile
                raise
    elif location is not None:
        _check_artifacts(name, found.artifact_location, folder)
    experiment_id: str = mlflow.set_experiment(name).experiment_id
    return experiment_id


def stored_run(run_id: str) -> Any:
    """Return a run, None if the store has no such run or it was deleted."""
    import mlflow

    try:
        run = mlflow.get_run(run_id)
    except mlflow.MlflowException:
        return None
    return run if run.info.lifecycle_stage == "active" else None


def finished_training(config: TrackingConfig, key: str) -> tuple[str, float] | None:
    """Return run and Kendall tau of a training that has finished: its best tau is logged last, whatever its status."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(connect(config))
    if (experiment := client.get_experiment_by_name(experiment_name(config))) is None:
        return None
    query = f"tags.`{FINGERPRINT}` = '{key}' and metrics.`{BEST_TAU}` > -2"
    runs = client.search_runs([experiment.experiment_id], query, max_results=1, order_by=["attributes.start_time"])
    return (runs[0].info.run_id, runs[0].data.metrics[BEST_TAU]) if runs else None


@contextmanager
def open_run(
    config: TrackingConfig, name: str, tags: Mapping[str, str], run_id: str | None = None
) -> Iterator[tuple[str, bool]]:
    """Open a run, or resume the run `run_id` where the store still has it; yield its id, and whether it is resumed.

    An exception marks the run as failed, `Pruned` and Ctrl-C as killed, where the store answers at once; the run of a
    training that has finished stays finished. Inside a sweep a new run, with `name` and `tags`, is a child of its run.
    """
    import mlflow
    from mlflow.utils.git_utils import get_git_commit
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

    connect(config)
    earlier = None if run_id is None else stored_run(run_id)
    if earlier is not None:
        mlflow.set_experiment(experiment_id=earlier.info.experiment_id)
        run = mlflow.start_run(run_id=run_id)
    else:
        open_experiment(config)
        commit = get_git_commit(str(Path.cwd()))  # MLflow itself records the commit of the installed package
        tags = {**tags, MLFLOW_GIT_COMMIT: commit} if commit else {**tags}
        run = mlflow.start_run(run_name=name, tags=tags, parent_run_id=os.environ.get(PARENT_VARIABLE))
    try:
        yield run.info.run_id, earlier is not None
    except BaseException as error:
        finished = earlier is not None and BEST_TAU in earlier.data.metrics
        status = "KILLED" if isinstance(error, Pruned | KeyboardInterrupt) else "FAILED"
        check_server.cache_clear()
        with briefly(), suppress(mlflow.MlflowException):
            if isinstance(error, Pruned):
                mlflow.set_tag(ENDED_BY, PRUNING)
            mlflow.end_run("FINISHED" if finished else status)
        raise
    mlflow.end_run()


def error_lines(error: BaseException) -> list[str] | None:
    """Return the lines that report an error in the input or its environment, None for an error of the program."""
    if isinstance(error, BaseExceptionGroup):
        groups = [error_lines(member) for member in error.exceptions]
        return None if None in groups else [line for lines in groups for line in lines or ()]
    if isinstance(error, ConfigError | DataError | ComputeError):
        problems = str(error).splitlines()
    elif isinstance(error, OSError):
        names = (str(error.filename2 or error.filename or ""), error.strerror or str(error) or type(error).__name__)
        problems = [": ".join(filter(None, names))]
    elif type(error).__module__.partition(".")[0] in {"mlflow", "sqlalchemy"}:  # whose import takes seconds
        import mlflow

        problems = [f"MLflow store {mlflow.get_tracking_uri()}: {first_line(error)}"]
    else:
        return None
    return [f"error: {one_line(problem)}" for problem in problems]

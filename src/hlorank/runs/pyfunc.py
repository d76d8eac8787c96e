"""Rankers as models of MLflow: records of graphs in, rankings out; a package has a copy of this file as its code."""

import base64
import logging
import reprlib
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pandas as pd
from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

import hlorank
from hlorank.config import import_plugin
from hlorank.data.collection import check_sizes
from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.npz import NpzFile
from hlorank.files import SPEC, WEIGHTS, DataError
from hlorank.hlo.stage import TRAINED
from hlorank.metrics import ranking
from hlorank.models.serialization import Spec, checked_spec
from hlorank.ranking.inputs import GraphReader, InputGraph
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.result import ranked_graph

_PROGRAMS = logging.getLogger("hlorank.hlo")
TOP = 10
MAX_TOP, MAX_GRAPHS = 200_000, 1000
"""Limits of a request: configurations in its response, all graphs together, and graphs."""
SIZES = {"nodes": 100_000, "edges": 1_000_000, "configurations": 200_000, "unpacked_bytes": 2**27}
MAX_CHOICES, MAX_LAYOUTS = 2**25, 2**17
"""Limits of a graph: arguments of `check_sizes`, configurations times configurable nodes, and distinct layouts."""
MAX_PROGRAM, CANDIDATES = 2**24, 256
"""Bytes of a program, and configurations that are drawn for it."""
FIELDS = ("npz", "graph", "program")
"""Fields of a record: the graph's npz file in base64, its name in the response and in errors; or a program, as text or
in base64, in place of the file."""
REQUIRED = (
    "filelock", "joblib", "mlflow", "numpy", "pandas", "protobuf", "pydantic", "pydantic-core", "pymetis", "rich",
    "safetensors", "scipy", "torch", "torch-geometric",
)  # fmt: skip
"""The dependencies of the project that ranking imports, directly or through other modules."""


def make_request(graphs: Sequence[Path], top: int = TOP) -> dict[str, Any]:
    """Return the body of a request, as JSON values, for `top` configurations of npz files or programs."""
    records = []
    for path in graphs:
        field = "npz" if path.suffix == ".npz" else "program"
        records.append({"graph": path.stem, field: base64.b64encode(path.read_bytes()).decode()})
    return {"dataframe_records": records, "params": {"top": top}}


def rank_records(ranker: Ranker, records: Sequence[Mapping[Any, object]], top: int = TOP) -> list[dict[str, Any]]:
    """Return `graph`, `configurations` and `top` of each graph as in `hlorank rank --json`, within the limits above."""
    if not 1 <= len(records) <= MAX_GRAPHS:
        raise DataError("graphs", f"at least 1, and at most {MAX_GRAPHS:,}", f"{len(records):,}", file="request")
    if not 1 <= top <= MAX_TOP / len(records):
        raise DataError("top", f"at least 1, and at most {MAX_TOP:,} for all graphs together", top, file="params")
    return [_ranked(ranker, record, top) for record in records]


def _ranked(ranker: Ranker, record: Mapping[Any, object], top: int) -> dict[str, Any]:
    """Rank the graph of a record; errors name it and its field, as the client does not know the temporary file."""
    name, field = str(record.get("graph") or ""), "npz" if record.get("program") is None else "program"
    try:
        with tempfile.TemporaryDirectory(prefix="hlorank-request-") as folder:
            path = Path(folder, "graph.npz" if field == "npz" else "program")
            path.write_bytes(_decoded(field, record.get(field)))
            if field == "npz":
                with NpzFile(path) as arrays:
                    check_sizes(arrays, **SIZES)
            limits = (SIZES["configurations"], CANDIDATES, 0, MAX_CHOICES, MAX_LAYOUTS)
            given = _only(GraphReader(ranker.spec.features, *limits, compile_dumps=True).read(path), top)
        scores = ranker.score(given.measured.graph, given.measured.configurations)
    except DataError as error:
        place = ": ".join(part for part in (name, field if error.file is not None else "") if part)
        raise (error.in_file(place) if place else error) from None
    ranked = ranked_graph(given, scores, ranking(scores), top, compare=False)
    return {"graph": name, "configurations": len(scores), "top": ranked["top"]}


def _only(graphs: Iterator[InputGraph], top: int) -> InputGraph:
    """Return the only graph of a file; refuse a program that is not right before layout assignment, or too large."""
    given, *more = islice(graphs, 2)
    if more:
        raise DataError("modules", "one module", "several", file=given.file)
    configurations = given.measured.configurations
    if (stage := given.stage) is None or not isinstance(configurations, LayoutConfigurations):
        return given
    if stage["not_compiled"] or stage["found"] != TRAINED or stage["other_backend"]:
        why = stage["not_compiled"] or stage["other_backend"] or stage["found"]
        raise DataError("file", f"a program that compiles to the stage {TRAINED} of the model", why, file=given.file)
    if (changes := min(top, CANDIDATES) * len(configurations.node_ids)) > MAX_TOP:
        raise DataError("top", f"at most {MAX_TOP:,} times configurable nodes", f"{changes:,}", file=given.file)
    return given


def _decoded(field: str, value: object) -> bytes:
    program = field == "program"
    expected = "a program as text, or in base64" if program else "the bytes of an npz file in base64"
    if not isinstance(value, str):
        raise DataError(field, expected, reprlib.repr(value))
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError as error:
        if not program:
            raise DataError(field, expected, error) from None
        data = value.encode()  # a text, whose blanks base64 has not
    if program and len(data) > MAX_PROGRAM:
        raise DataError(field, f"at most {MAX_PROGRAM:,} bytes", f"{len(data):,}")
    return data


class RankingModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # MLflow ships no types
    """Ranker of the graphs of a data frame; a request that waits longer than `seconds` has a response of status 504."""

    def __init__(self, ranker: Ranker | None = None, seconds: float = -1) -> None:
        self._ranker, self._seconds = ranker, seconds
        # MLflow's server calls `predict` in several threads, which together would exceed the memory of one ranking.
        self._one_at_a_time = threading.Lock()

    def load_context(self, context: Any) -> None:
        """Load the model of a package."""
        folder = Path(context.artifacts["model"])
        for name in checked_spec(folder).get("plugins", {}):
            import_plugin(name)  # its code is in the package, as this file is
        self._ranker, self._seconds = Ranker(folder), float(MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get_raw() or -1)

    def predict(
        self,
        context: Any,  # noqa: ARG002 - MLflow's signature
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return `rank_records` of the rows; a wrong request is an MlflowException, which the server returns as 400."""
        assert self._ranker is not None
        # Rows and columns of other names may be many; one row too many is enough for the error.
        table = model_input.iloc[: MAX_GRAPHS + 1].reindex(columns=[*FIELDS])
        # pandas writes NaN where a row lacks a column.
        records = table.astype(object).where(table.notna(), None).to_dict("records")
        if not self._one_at_a_time.acquire(timeout=self._seconds):
            raise mlflow.MlflowException(f"not ranked: it waited {self._seconds:g} s for other requests")
        level = _PROGRAMS.level
        _PROGRAMS.setLevel(logging.ERROR)  # warnings would fill an output that nobody reads, and then stop the server
        try:
            return rank_records(self._ranker, records, (params or {}).get("top", TOP))
        except DataError as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None
        finally:
            _PROGRAMS.setLevel(level)
            self._one_at_a_time.release()


def _signature() -> ModelSignature:
    text, number = DataType.string, DataType.long
    columns = [ColSpec(text, name, required=False) for name in FIELDS]
    fields = [Property("rank", number), Property("configuration", number), Property("score", DataType.double)]
    ranked = Object([*fields, Property("changes", AnyType(), required=False)])
    response = [ColSpec(text, "graph"), ColSpec(number, "configurations"), ColSpec(Array(ranked), "top")]
    return ModelSignature(Schema(columns), Schema(response), ParamSchema([ParamSpec("top", number, TOP)]))


def scoring_server(ranker: Ranker) -> Any:
    """Return MLflow's scoring server of a model, an application of ASGI."""
    from mlflow.pyfunc import FLAVOR_NAME, PyFuncModel
    from mlflow.pyfunc import scoring_server as server

    served = RankingModel(ranker, MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get())
    model = SimpleNamespace(predict=partial(served.predict, None))
    application = server.init(PyFuncModel(Model(signature=_signature(), flavors={FLAVOR_NAME: {}}), model))

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        try:
            await application(scope, receive, send)
        except Exception as error:
            if type(error).__name__ != "ClientDisconnect":  # whose tracebacks fill an output that nobody reads
                raise

    return respond


def requirements() -> list[str]:
    """Return the requirements of a package: `REQUIRED`, each with the version that is installed here."""
    # A local version such as 2.13.0+cpu is on no public index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]


def _code_of(plugins: Iterable[str]) -> list[str]:
    """Return the paths of the source code of plugins: of the packages that they are in, or of single modules."""
    files = {Path(str(import_plugin(name.partition(".")[0]).__file__)) for name in plugins}
    return sorted(str(file.parent if file.name == "__init__.py" else file) for file in files)


def log_package(folder: Path, spec: Spec, run_id: str, **registered: Any) -> Any:
    """Log a package of weights, plugins and requirements, without pickled objects, as a model of a run."""
    # Without it, MLflow would put the package into its default experiment.
    mlflow.set_experiment(experiment_id=mlflow.get_run(run_id).info.experiment_id)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*An input example was not provided")  # the signature has the types
        staged = Path(temporary) / "model"  # the package takes this name
        staged.mkdir()
        for name in (SPEC, WEIGHTS):
            shutil.copyfile(folder / name, staged / name)
        return Model.log(
            artifact_path=None,
            name="ranker",
            flavor=mlflow.pyfunc,
            run_id=run_id,
            python_model=__file__,
            code_paths=[str(Path(hlorank.__file__).parent), *_code_of(spec.plugins)],
            artifacts={"model": str(staged)},
            signature=_signature(),
            pip_requirements=requirements(),
            **registered,
        )


mlflow.models.set_model(RankingModel())

"""Requests of the HTTP servers: their schema, a writer for clients, and a reader for servers."""

from __future__ import annotations

import base64
import reprlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import DataError
from hlorank.hlo.extra import extra_path
from hlorank.ranking.inputs import GraphReader, InputGraph
from hlorank.ranking.limits import Limits


class _Part(BaseModel):
    """A part of a request; keys that are not fields are ignored, as MLflow's server ignores them."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class GraphRecord(_Part):
    """One graph of a request.

    Attributes:
        npz: the bytes of its npz file in base64.
        graph: its name, repeated in the response and in errors.
        extra: the bytes of its `.extra.npz` in base64, for models trained with extra features.
    """

    npz: str
    graph: str | None = None
    extra: str | None = None


class RequestParams(_Part):
    """Options of a request.

    Attributes:
        top: configurations of each graph that the response holds.
    """

    top: int = Field(default=10, ge=1)


class RankingRequest(_Part):
    """A request to rank the configurations of graphs, in the JSON format of MLflow's scoring server.

    Attributes:
        dataframe_records: the graphs.
        params: the options.
    """

    dataframe_records: Annotated[list[GraphRecord], FailFast()]  # one error is reported, not one for each record
    params: RequestParams = RequestParams()


DEFAULT_TOP = RequestParams().top


def make_request(graphs: Sequence[Path], top: int = DEFAULT_TOP) -> dict[str, Any]:
    """Return the body of a request, as JSON values.

    Args:
        graphs: npz files; `<graph>.extra.npz` next to one is sent with it.
        top: configurations of each graph that the response should hold.
    """
    records = []
    for path in graphs:
        record = {"npz": _encoded(path), "graph": path.stem}
        if (extra := extra_path(path)).is_file():
            record["extra"] = _encoded(extra)
        records.append(record)
    return {"dataframe_records": records, "params": {"top": top}}


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def parse_request(body: bytes | bytearray | Mapping[str, object]) -> RankingRequest:
    """Validate the body of a request.

    Args:
        body: JSON in UTF-8, or its values.

    Raises:
        DataError: `body` is not JSON, or a value is missing or of the wrong type; the message has the first such value.
    """
    try:
        if isinstance(body, bytes | bytearray):
            return RankingRequest.model_validate_json(body)
        return RankingRequest.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"])) or "body"
        message = problem["msg"]
        if problem["type"] == "json_invalid":
            expected, found = "JSON", message
        elif problem["type"] == "missing":
            expected, found = "a value", "none"
        else:  # the value may be megabytes
            expected, found = message.removeprefix("Input should be "), _shortened(problem["input"])
        raise DataError(key, expected, found) from None


def _shortened(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no numbers of more digits
        return f"a number of more than {sys.get_int_max_str_digits():,} digits"


@contextmanager
def naming(record: GraphRecord) -> Iterator[None]:
    """Add the name of a graph to errors about it."""
    try:
        yield
    except DataError as error:
        place = [str(part) for part in (record.graph, error.file) if part]
        raise (error.in_file(": ".join(place)) if place else error) from None


@contextmanager
def _unpacked(record: GraphRecord, limits: Limits) -> Iterator[tuple[Path, int]]:
    """Write the files of a graph into a temporary folder, and yield the graph's path and the bytes of all arrays."""
    with tempfile.TemporaryDirectory(prefix="hlorank-request-") as folder:
        path, size = Path(folder) / "graph.npz", 0
        parts = {path: ("npz", record.npz)}
        if record.extra is not None:
            parts[extra_path(path)] = "extra", record.extra
        try:
            for file, (field, text) in parts.items():
                file.write_bytes(_decoded(field, text))
                size += limits.check_graph(file)
            yield path, size
        except DataError as error:
            if error.file is None:
                raise
            # The message has the field of the request, since the temporary file is unknown to the client.
            field, _ = parts.get(Path(error.file), ("extra", ""))
            raise error.in_file(field) from None


def graph_bytes(record: GraphRecord, limits: Limits) -> int:
    """Return the bytes of the arrays of a graph, from their headers.

    Raises:
        DataError: as `read_graph`, before an array is read.
    """
    with _unpacked(record, limits) as (_, size):
        return size


def read_graph(record: GraphRecord, spec: FeatureSpec, limits: Limits) -> InputGraph:
    """Read one graph of a request.

    Args:
        record: the graph.
        spec: the features that the model reads.
        limits: limits of the graph.

    Raises:
        DataError: `npz` or `extra` is not base64, is not an npz file of the schema, exceeds a limit, or has another
            kind of configurations than the model ranks; the message has the field and the array.
    """
    with _unpacked(record, limits) as (path, _):
        reader = GraphReader(spec, limits.configurations, 1, 0, limits.choices, limits.layouts)
        (given,) = reader.read(path)
    return given


def _decoded(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DataError(field, "the bytes of an npz file in base64", error) from None

"""Packages of trained models for MLflow, complete except for their pinned requirements."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import hlorank
from hlorank.config import import_plugin
from hlorank.data.collection import Kind, write_graph
from hlorank.data.configurations import (
    LAYOUT_VALUES,
    TILE_FEATURES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import NODE_FEATURES, Graph
from hlorank.files import SPEC, WEIGHTS
from hlorank.hlo.extra import EXTRA_SHAPES, extra_path
from hlorank.hlo.node_features import OPCODES
from hlorank.models.serialization import Spec
from hlorank.ranking.request import DEFAULT_TOP, GraphRecord, make_request

REQUIRED = (
    "filelock",
    "mlflow",
    "numpy",
    "omegaconf",
    "pandas",
    "protobuf",
    "pydantic",
    "pydantic-core",
    "pymetis",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "torch-geometric",
)
"""The dependencies of the project that ranking imports, directly or through other modules."""


def requirements() -> list[str]:
    """Return the requirements of a package: `REQUIRED`, each with the version that is installed here."""
    # A local version such as 2.13.0+cpu is on no public index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]


def _example_graph(kind: Kind) -> MeasuredGraph:
    """Return a graph of two nodes with two configurations, the smallest that can be ranked."""
    nodes, convolution = 2, OPCODES["convolution"]
    graph = Graph(
        np.zeros((nodes, NODE_FEATURES), dtype=np.float32),
        np.full(nodes, convolution, dtype=np.uint8),
        np.array([[1, 0]]),
        np.array([0, nodes]),
    )
    runtime = np.zeros(2, dtype=np.int64)
    if kind == "tile":
        feat = np.arange(2, dtype=np.float32)[:, None].repeat(TILE_FEATURES, axis=1)
        return MeasuredGraph("example", graph, TileConfigurations(feat), Measurements(runtime, runtime + 1))
    values = np.full((2, 1, LAYOUT_VALUES), -1)
    values[1, 0, 0] = 0
    return MeasuredGraph(
        "example", graph, LayoutConfigurations.from_chunks(np.array([1]), [values]), Measurements(runtime)
    )


def example(spec: Spec) -> dict[str, Any]:
    """Return the body of a request that the model of a specification can answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "example.npz"
        measured = _example_graph(spec.features.kind)
        write_graph(path, measured)
        if spec.features.options.protobuf:
            shapes = EXTRA_SHAPES.items()
            extra = {key: np.full((measured.graph.nodes, *shape), -1, dtype=np.int64) for key, shape in shapes}
            np.savez_compressed(extra_path(path), allow_pickle=False, **extra)
        return make_request([path])


def _code_of(plugins: Iterable[str]) -> list[str]:
    """Return the paths of the source code of plugins: of the packages that they are in, or of single modules."""
    files = {Path(str(import_plugin(name.partition(".")[0]).__file__)) for name in plugins}
    return sorted(str(file.parent if file.name == "__init__.py" else file) for file in files)


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Keep Python from writing bytecode into the package, as MLflow runs its code there to check the example."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def log_package(folder: Path, spec: Spec, run_id: str, **registered: Any) -> Any:
    """Make a package of a model folder and log it as a model of a run, without changing the state or end of the run.

    The package contains the weights and specification as its artifact `model`, the package hlorank, the source code of
    the plugins of the model, a signature, an example of a request and the pinned requirements of hlorank; nothing in it
    is pickled.

    Args:
        folder: the model folder.
        spec: the specification of the model.
        run_id: the run that trained it.
        registered: registered_model_name and tags of the version that is registered.

    Returns:
        MLflow's ModelInfo.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    text, number = DataType.string, DataType.long
    columns = [ColSpec(text, name, required=field.is_required()) for name, field in GraphRecord.model_fields.items()]
    ranked = Object([Property("rank", number), Property("configuration", number), Property("score", DataType.double)])
    response = [ColSpec(text, "graph"), ColSpec(number, "configurations"), ColSpec(Array(ranked), "top")]
    params = ParamSchema([ParamSpec("top", number, DEFAULT_TOP)])
    signature = ModelSignature(Schema(columns), Schema(response), params)
    # Without it, MLflow would put the package into its default experiment.
    mlflow.set_experiment(experiment_id=mlflow.get_run(run_id).info.experiment_id)
    body = example(spec)
    with tempfile.TemporaryDirectory() as temporary, _without_bytecode():
        staged = Path(temporary) / "model"  # the package takes this name
        staged.mkdir()
        for name in (SPEC, WEIGHTS):
            shutil.copyfile(folder / name, staged / name)
        return Model.log(
            artifact_path=None,
            name="ranker",
            flavor=mlflow.pyfunc,
            run_id=run_id,
            python_model=str(Path(__file__).with_name("model_code.py")),
            code_paths=[str(Path(hlorank.__file__).parent), *_code_of(spec.plugins)],
            artifacts={"model": str(staged)},
            signature=signature,
            input_example=(pd.DataFrame(body["dataframe_records"]), body["params"]),
            pip_requirements=requirements(),
            **registered,
        )

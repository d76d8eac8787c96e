"""Fixtures of tests of several packages."""

from __future__ import annotations

import csv
import gc
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf
from playwright.sync_api import sync_playwright

from hlorank.config import Config, extension_point
from hlorank.data.collection import Collection
from hlorank.files import SHARED_VARIABLE, shared_dir
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto
from hlorank.stages.command import load_composed
from tests.browser import PROGRAMS, Browser, chromium
from tests.sections import baseline_config, composed
from tests.tile_kernels import write_tile_kernels

if TYPE_CHECKING:
    from mlflow.entities import Run

ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # in one process, libtpu and PyTorch end it
hypothesis.settings.register_profile("hlorank", deadline=None)  # a busy machine changes no result
hypothesis.settings.load_profile("hlorank")
Settings = Callable[..., Config]


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage_of_tests_only() -> None:
    """Leave what packages hold out of garbage collections, which take 0.2 s with it: measuring starts with one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave tests without a width of the terminal, and without handlers of the log of a stage that ran before."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # a command sets it
    before = [*logging.root.handlers]
    yield
    for handler in logging.root.handlers:
        if type(handler) is logging.StreamHandler and handler not in before:
            logging.root.removeHandler(handler)  # it writes to the captured output of one test


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the test, which is the current folder while it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real TpuGraphs files; tests that need it are skipped where it is absent."""
    folder = shared_dir() / "data"
    if not (folder / "tpugraphs").is_dir():
        pytest.skip(f"no real data at {folder}; set {SHARED_VARIABLE}")
    return folder.resolve()


@pytest.fixture(scope="module")  # longer, its event loop would disturb tests with their own
def browser() -> Iterator[Browser]:
    """A headless Chromium; tests that need it are skipped where there is none."""
    program = chromium()
    if program is None:
        pytest.skip(f"none of the browsers {', '.join(PROGRAMS)} is installed")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as opened:
        yield Browser(opened.new_page())


@pytest.fixture(scope="session")
def tracking_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database to copy: making one takes seconds."""
    from mlflow.store.db import utils
    from mlflow.tracking import MlflowClient

    # Each store compares its tables with the last of MLflow's 60 migrations, which are modules to import.
    utils._get_latest_schema_revision = cache(utils._get_latest_schema_revision)
    path = tmp_path_factory.mktemp("tracking") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def tiny_collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders raw, features and segments of layout:synthetic:random and of tile:synthetic, of 3 + 2 + 1 graphs each."""
    from hlorank.featurize.featurize_collection import featurize_collection
    from hlorank.fetch.origins import fetch
    from hlorank.partition.segment_store import partition_collection

    root = tmp_path_factory.mktemp("collections")
    for address in ("layout:synthetic:random", "tile:synthetic"):
        collection = Collection.parse(address)
        sizes = {"train": 3, "valid": 2, "test": 1, "min_nodes": 50, "max_nodes": 70, "configurations": 60}
        composition = composed(
            "experiment=synthetic",
            *(f"data.synthetic.{name}={value}" for name, value in sizes.items()),
            "partition.max_nodes=20",
        )
        config = load_composed(composition)
        if collection.kind == "layout":
            fetch(collection, config.data, root / "raw" / collection.path)
        else:
            write_tile_kernels(root / "raw" / collection.path)
        featurize_collection(root / "raw", collection, config.featurize, root / "features" / collection.path)
        partition_collection(root / "features" / collection.path, config.partition, root / "segments" / collection.path)
    return root


@pytest.fixture
def tracking_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave a test without a store of MLflow, and end its active run."""
    import mlflow

    mlflow.set_tracking_uri(None)
    on_server = ("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "PGCONNECT_TIMEOUT")
    variables = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "HLORANK_PARENT_RUN", *on_server)
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)
    for name in variables:
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def settings_in(tiny_collections: Path, tracking_database: Path) -> Callable[[Path], Settings]:
    """Return a function that makes `settings` for outputs and tracking in a folder."""
    return lambda folder: _settings(folder, tiny_collections, tracking_database)


@pytest.fixture
def settings(settings_in: Callable[[Path], Settings], tracking_environment: None, tmp_path: Path) -> Settings:
    """Compose the real conf/ for a training of seconds on the tiny collections, tracked in the test's folder."""
    return settings_in(tmp_path)


def _settings(folder: Path, collections: Path, tracking_database: Path) -> Settings:
    import torch

    torch.set_num_threads(1)
    shutil.copy(tracking_database, folder / "mlflow.db")
    fixed = {
        "experiment": "synthetic",
        "collection": "layout/synthetic/random",
        "compute": "serial",
        "model.width": 8,
        "model.blocks": 2,
        "trainer.accelerator": "cpu",
        "trainer.configs_per_step": 8,
        "trainer.learning_rate": 0.01,
        "trainer.max_epochs": 3,
        "trainer.steps_per_epoch": 4,
        "trainer.workers": 0,
    }
    places = {  # merged afterwards, so that tests share compositions
        **{f"paths.{name}": collections / name for name in ("raw", "features", "segments")},
        **{f"paths.{name}": folder / name for name in ("models", "reports", "state")},
        "tracking.uri": f"sqlite:///{folder}/mlflow.db",
        "tracking.artifacts": folder / "artifacts",
        "sweep.storage": f"sqlite:///{folder}/searches.db",
    }

    def make(**values: Any) -> Config:
        changes = {name.replace("__", "."): value for name, value in values.items()}
        composition = composed(*(f"{name}={value}" for name, value in {**fixed, **changes}.items()))
        kept = OmegaConf.from_dotlist([f"{name}={value}" for name, value in places.items() if name not in changes])
        merged = OmegaConf.merge(composition, kept)
        assert isinstance(merged, DictConfig)
        return load_composed(merged)

    return make


@pytest.fixture(scope="session")
def linear_model(tiny_collections: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write the folder of a linear model with random weights, which needs no training; keywords change its spec."""
    from hlorank.featurize.feature_store import FeatureStore
    from hlorank.models.baselines.baseline import BaselineSpec, save_baseline
    from hlorank.models.baselines.pooled_features import pooled_columns
    from hlorank.models.baselines.predictors import Linear
    from hlorank.models.serialization import input_sizes
    from hlorank.version import __version__

    def make(address: str = "layout:synthetic:random", **changes: Any) -> Path:
        store = FeatureStore(tiny_collections / "features" / Collection.parse(address).path)
        columns = pooled_columns(input_sizes(store.spec))
        spec = BaselineSpec(
            version=__version__,
            collection=address,
            method="linear_ranking",
            data=store.fingerprint,
            steps=3,
            features=store.spec,
            settings=baseline_config(),
        )
        folder = tmp_path_factory.mktemp("model")
        weight = np.random.default_rng(0).normal(size=columns)
        save_baseline(folder, Linear(weight, np.ones(columns)), spec.model_copy(update=changes))
        return folder

    return make


@pytest.fixture(scope="session")
def history() -> Callable[[Path], list[dict[str, str]]]:
    """Read history.csv of a model folder."""
    return lambda folder: [*csv.DictReader((folder / "history.csv").read_text().splitlines())]


@pytest.fixture(scope="session")
def runs() -> Callable[[Config], list[Run]]:
    """Find the MLflow runs of a configuration's experiment."""
    from mlflow.tracking import MlflowClient

    def find(config: Config) -> list[Run]:
        client = MlflowClient(config.tracking.uri)
        experiment = client.get_experiment_by_name(config.tracking.experiment)
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))

    return find


@pytest.fixture
def dot_and_reshape() -> HloModuleProto:
    """Return a module of a (4, 6) parameter, its product with its transpose, tanh, and a reshape, which is the root."""
    module = HloModuleProto(name="m")
    computation = module.computations.add(name="main", id=7, root_id=14)
    shapes = {10: ("parameter", [], [4, 6]), 11: ("transpose", [10], [6, 4]), 12: ("dot", [10, 11], [4, 4])}
    shapes[13] = ("tanh", [12], [4, 4])
    shapes[14] = ("reshape", [13], [2, 2, 4])
    for number, (opcode, operands, dimensions) in shapes.items():
        one = HloInstructionProto(name=f"{opcode}.{number}", opcode=opcode, id=number, operand_ids=operands)
        one.shape.element_type = 11
        one.shape.dimensions.extend(dimensions)
        one.shape.layout.minor_to_major.extend(reversed(range(len(dimensions))))
        computation.instructions.append(one)
    computation.instructions[2].dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    computation.instructions[2].dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    return module


@pytest.fixture
def make_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Return a function that writes a package that can be imported; after the test nobody has imported it."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv(extension_point.VARIABLE, raising=False)
    monkeypatch.setattr(extension_point, "_imported", [])

    def make(name: str, text: str) -> None:
        path = folder.joinpath(*name.split("."))
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").write_text(text)
        importlib.invalidate_caches()

    yield make
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]

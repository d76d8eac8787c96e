"""Common parts of the benchmarks: arguments, errors as lines, results as CSV, and trainings as the stages run them."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from hlorank.config import Config, ConfigError, import_plugin, parse
from hlorank.data.collection import Collection
from hlorank.files import SPEC, DataError, fingerprint, one_line, read_json, write_json
from hlorank.runs.store import error_lines
from hlorank.stages.command import load_composed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
sys.path.append(str(ROOT / "examples/reproductions"))  # the experiments that conf/ lacks, and their plugin
DATA = {
    "cpu": ("data=sample",),
    "synthetic": (
        *("data=synthetic", "data.synthetic.min_nodes=2000", "data.synthetic.max_nodes=20000"),
        *("data.synthetic.configurations=250", "data.synthetic.repeated=0.2", "data.synthetic.noise=0.001"),
    ),
    "xla": ("data=local", "data.local.root=$HLORANK_SHARED/data/tpugraphs/npz"),
}
"""Overrides for the origin of the collections of each source."""
SIZES = {"synthetic": ("segments.configs_per_graph=64", "trainer.validation_configs=64")}
"""Overrides that the size of a source's graphs needs."""
# Sections that change no figure, or only the place of files.
_IGNORED = ("paths", "tracking", "pipeline", "output", "sweep", "data", "compute")

Task = TypeVar("Task")
Result = TypeVar("Result")


class _Formatter(argparse.HelpFormatter):
    """Wraps each paragraph of the description, except indented ones, which are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.rstrip().split("\n\n")
        fill = super()._fill_text
        return "\n\n".join(part if part.startswith("    ") else fill(part, width, indent) for part in paragraphs)


class Parser(argparse.ArgumentParser):
    """Parser of the arguments of a benchmark, which its docstring describes."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after one line."""
        self.exit(2, f"error: {one_line(message)}\n")

    def add_json(self, help: str = "also write the figures as JSON") -> None:  # noqa: A002 (as argparse names it)
        """Add --json, which takes a path that can be written."""
        self.add_argument("--json", type=output_file, metavar="FILE", help=help)


def positive(text: str) -> float:
    """Return a finite number above 0; the type of an option."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return value


def output_file(path: str | Path) -> Path:
    """Return a path after a check that it can be written; the type of an option. The parent folder is created.

    Raises:
        OSError: no file can be created there.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def expect(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check names that are given on the command line.

    Raises:
        ConfigError: a name is not known.
    """
    known = sorted(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: expected one of {', '.join(known)}")


def run(main: Callable[[], object]) -> None:
    """Run the command of a benchmark and report its errors as lines on standard error.

    The status is 2 for a wrong name, setting or file, and 1 for a file or store that cannot be used.
    """
    try:
        main()
    except HydraException as error:
        lines, status = [f"error: {str(error).splitlines()[0]}"], 2
    except Exception as error:
        found = error_lines(error)
        if found is None:
            raise
        lines, status = found, 2 if isinstance(error, ConfigError | DataError) else 1
    else:
        return
    sys.stderr.write("\n".join(lines) + "\n")
    sys.exit(status)


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Add rows to a CSV file, floats to six decimals, below a header if they are its first."""
    frame = pd.DataFrame(rows, columns=list(columns)).round(6)
    frame.to_csv(path, mode="a", header=not path.exists(), index=False, lineterminator="\n")


def read_rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a CSV file; none where there is no file yet."""
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(columns))


def in_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int, label: Callable[[Task], str]
) -> Iterator[tuple[Task, Result]]:
    """Yield the result of each task as soon as it is done, each from a process of its own; a failed task is reported.

    The other results are worth having, and the same command tries again.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(function, task): task for task in tasks}
        for number, future in enumerate(as_completed(futures), 1):
            task, error = futures[future], future.exception()
            text = f"failed: {error!r}" if error is not None else "done"
            print(f"[{number}/{len(futures)}] {label(task)}: {text}", file=sys.stderr, flush=True)
            if error is None:
                yield task, future.result()


def composed(
    collection: str, overrides: Sequence[str], seed: int, work: Path, data: Sequence[str] | None = None
) -> Config:
    """Return the configuration of a training.

    Args:
        collection: the path of the collection.
        overrides: those of the experiment.
        seed: the seed.
        work: folder of its files.
        data: overrides for the origin; None = those of the collection's source.
    """
    values = {
        "collection": collection,
        "seed": seed,
        **{f"paths.{name}": work / name for name in ("raw", "features", "segments", "models", "reports", "state")},
        "tracking.uri": f"sqlite:///{work}/mlflow.db",
        "tracking.artifacts": work / "artifacts",
        "trainer.accelerator": "cpu",
    }
    source = Collection.parse(collection).source
    origin = DATA[source] if data is None else data
    fixed = [*(f"{key}={value}" for key, value in values.items()), *origin, *SIZES.get(source, ())]
    import_plugin("reproductions")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load_composed(compose("config", overrides=[*fixed, *overrides]))


def prepare_data(config: Config) -> str:
    """Fetch, featurize and partition a collection, unless up to date; return the fingerprint of the features."""
    from hlorank.featurize.feature_spec import FeatureSpec
    from hlorank.featurize.feature_store import FeatureStore
    from hlorank.featurize.featurize_collection import Options, featurize_collection
    from hlorank.fetch import origins
    from hlorank.partition.segment_store import partition_collection

    collection, paths = Collection.parse(config.collection), config.paths
    features = Path(paths.features) / collection.path
    options: Options = config.featurize
    if paths.pretrained is not None:
        options = parse(FeatureSpec, read_json(Path(paths.pretrained) / SPEC)["features"], prefix="paths.pretrained")
    origins.fetch(collection, config.data, Path(paths.raw) / collection.path)
    featurize_collection(Path(paths.raw), collection, options, features)
    if collection.kind == "layout":
        partition_collection(features, config.partition, Path(paths.segments) / collection.path)
    return FeatureStore(features).fingerprint


def training_key(config: Config, data: str) -> str:
    """Return the key of a training: its data, by fingerprint, and the settings that can change a figure."""
    settings = config.model_dump(mode="json")
    return fingerprint([data, {part: settings[part] for part in settings if part not in _IGNORED}])


def train_and_evaluate(config: Config, model: Path, report: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train, unless that is done, and evaluate; return the figures of the training, and a row for each graph.

    A kept model is that of the code that trained it: remove it to train by other code.
    """
    import logging

    from safetensors.numpy import load_file

    from hlorank.stages.train import train

    logging.disable(logging.INFO)
    known = model / "figures.json"
    if not known.exists():
        start = time.process_time()
        tau = train(config, model)
        figures = {
            "parameters": sum(array.size for array in load_file(model / "weights.safetensors").values()),
            "steps": read_json(model / "spec.json")["steps"],
            "cpu_seconds": round(time.process_time() - start, 1),
            "valid_tau": None if tau is None else round(tau, 4),
            "machine_gflops": machine_gflops(),
        }
        write_json(known, figures)
    return read_json(known), _evaluated(config, model, report)


def machine_gflops() -> float:
    """Return how many Gflop a large product of matrices does in a second of CPU time, the best of ten."""
    square, taken = np.ones((1024, 1024), dtype=np.float32), []
    for _ in range(10):
        start = time.process_time()
        square @ square
        taken.append(time.process_time() - start)
    return round(2 * 1024**3 / min(taken) / 1e9, 1)


def networks_alone(config: Config, model: Path, report: Path) -> tuple[float, pd.DataFrame]:
    """Evaluate the networks of a blend; return their mean Kendall tau on valid, and a row for each graph."""
    import torch

    from hlorank.models.serialization import load_model, save_model

    members, spec = load_model(model, torch.device("cpu"))
    taus = pd.read_csv(model / "history.csv").groupby("member")["valid_kendall_tau"].max()
    model, report = model / "networks", report / "networks"
    save_model(model, members, spec.model_copy(update={"baselines": [], "weights": []}))
    return round(float(taus.mean()), 4), _evaluated(config, model, report)


def _evaluated(config: Config, model: Path, report: Path) -> pd.DataFrame:
    from scipy.stats import somersd

    from hlorank.evaluation.evaluate import evaluate
    from hlorank.evaluation.graph_report import PER_GRAPH, PREDICTIONS

    evaluate(config, model, report)
    graphs, ranks = pd.read_csv(report / PER_GRAPH), pd.read_csv(report / PREDICTIONS).groupby("graph")
    of_pairs = {name: somersd(part["measured_rank"], part["predicted_rank"]).statistic for name, part in ranks}
    return graphs.assign(somers_d=graphs["graph"].map(of_pairs))

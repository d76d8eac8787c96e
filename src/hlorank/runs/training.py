"""The run of a training: its locks, an earlier result, the MLflow run, and the record of what was trained."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import psutil

from hlorank import files
from hlorank.config import Config, ConfigError, TrackingConfig
from hlorank.data.collection import SPLITS
from hlorank.metrics import BEST_TAU, EXPERIMENT, TRAIN_SECONDS
from hlorank.runs import store
from hlorank.runs.search import current_trial, report
from hlorank.runs.sweeps import chosen_experiment, claim, in_sweep, job_tags, short_value, task_overrides
from hlorank.training.fit import Record, Report
from hlorank.training.process_group import ProcessGroup
from hlorank.training.setup import Setup, Trained

log = logging.getLogger(__name__)

# Sections and keys of overrides that a name has already, or that do not describe the training.
_UNNAMED = {"collection", "method", "output", "paths", "tracking", "sweep", "evaluate", "hparams_search"}
_PAUSE_SECONDS = 60  # after a request that failed, of which a silent server took those of a response
_COLUMNS = ["member", "epoch", "train_loss", "valid_kendall_tau"]


class Metrics:
    """Metrics of a training; while the store does not answer a file keeps them, also for a later process."""

    def __init__(self, run_id: str, file: Path) -> None:
        self._run_id, self._file, self._again = run_id, file, 0.0
        self._kept: list[dict[str, Any]] = files.read_json(file)["metrics"] if file.exists() else []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics, and those that are kept; or keep them, with one warning."""
        import mlflow

        now = round(time.time() * 1000)
        self._kept += [{"key": key, "value": metrics[key], "timestamp": now, "step": step} for key in metrics]
        try:
            if time.monotonic() >= self._again:
                with store.briefly():
                    self.log_kept()
        except mlflow.MlflowException as error:
            if not self._again:
                said = getattr(error.__cause__, "orig", None)  # by a database
                reason = str(said or files.first_line(error).rpartition(": ")[2].strip("\"')"))
                message = "metrics are kept, and logged later: %s (MLflow store); the training goes on"
                log.warning(message, files.one_line(reason))
            self._again = time.monotonic() + _PAUSE_SECONDS
        if self._kept:
            files.write_json(self._file, {"metrics": self._kept})

    def log_kept(self) -> None:
        """Log the metrics that are kept, as many at a time as a store takes."""
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        while self._kept:
            MlflowClient().log_batch(self._run_id, [Metric(**metric) for metric in self._kept[:1000]])
            del self._kept[:1000]
        self._file.unlink(missing_ok=True)


def run_training(
    config: Config,
    setup: Setup,
    output: Path,
    ranks: ProcessGroup,
    fit: Callable[[Path, Record | None, Report | None], Trained | None],
) -> float | None:
    """Run a training, which no other process runs meanwhile, and whose output no other process writes.

    A training that has finished is not repeated in a sweep, by a process that waited for it, and under DVC without
    --force, which may have been killed before it recorded the end. All ranks get the Kendall tau; rank 0 writes. `fit`
    takes the folder of checkpoints, and on rank 0 what it logs and reports with.
    """
    folder, tau = Path(config.paths.state) / "training" / setup.key, None
    with ExitStack() as locks:
        if ranks.first:
            names = {files.fingerprint(str(output.resolve())): f"a stage that writes {output}"}
            names[setup.key] = "this training"
            paths = {Path(config.paths.state) / files.LOCKS / name: work for name, work in names.items()}
            waited = [locks.enter_context(files.one_process(path, work)) for path, work in paths.items()]
            if in_sweep() or any(waited) or _continued_by_dvc():
                tau = _finished(config.tracking, setup.key, output)
        ranks.wait()  # rank 0 may have waited for another process
        tau = ranks.broadcast(tau)
        if tau is None:
            with _tracked(config, setup, folder) if ranks.first else nullcontext("") as run_id:
                ranks.wait()  # for the files of rank 0
                with ranks.agreed():
                    if not (folder / files.RUN).exists():
                        lacks = "lacks the files of rank 0; name a folder that all ranks share"
                        raise ConfigError(f"paths.state: {folder.parents[1]} {lacks}")
                metrics = Metrics(run_id, folder / files.METRICS) if ranks.first else None
                trial = None if metrics is None or setup.method is None else current_trial(config.sweep)
                reported = None if trial is None else partial(report, trial)
                try:
                    trained = fit(folder, None if metrics is None else metrics.log, reported)
                except store.Pruned:
                    shutil.rmtree(folder)
                    raise
                if metrics is not None and trained is not None:
                    _record(setup, output, run_id, metrics, trained)
                ranks.wait()  # baselines, head finetuning and the record take rank 0 alone some time
                tau = ranks.broadcast(None if trained is None else trained.tau)
        if ranks.first:
            shutil.rmtree(folder, ignore_errors=True)  # also where a process was killed between its record and this
        return tau


def _continued_by_dvc() -> bool:
    """Return whether DVC started this process, and without --force, of which it tells no stage."""
    if "DVC_STAGE" not in os.environ:
        return False
    calls = [parent.as_dict(["cmdline"])["cmdline"] or [] for parent in psutil.Process().parents()]
    words = [word for call in calls if "dvc" in {Path(word).name for word in call} for word in call]
    return not any(re.fullmatch("--force|-[a-zA-Z]*f[a-zA-Z]*", word) for word in words)


def _finished(config: TrackingConfig, key: str, output: Path) -> float | None:
    """Return the tau of a run that has finished a training; outside of sweeps its model is written to `output`."""
    import mlflow

    if (finished := store.finished_training(config, key)) is None:
        return None
    run_id, tau = finished
    if not in_sweep():
        with TemporaryDirectory() as folder:
            try:
                model = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="model", dst_path=folder)
            except (mlflow.MlflowException, OSError):
                return None  # the store does not have it any more
            # A folder with its specification is complete.
            for file in sorted(Path(model).iterdir(), key=lambda file: file.name == files.SPEC):
                with files.atomic_path(output / file.name) as copy:
                    shutil.copyfile(file, copy)
    log.info("run %s has finished this training: validation Kendall tau %.4f", run_id, tau)
    claim(config, run_id)
    return tau


@contextmanager
def _tracked(config: Config, setup: Setup, state: Path) -> Iterator[str]:
    """Open the MLflow run of a training, or resume that of an interrupted one, and yield its id."""
    import mlflow
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.data.sources import LocalArtifactDatasetSource
    from mlflow.exceptions import MlflowException

    spec, graphs, overrides = setup.spec, setup.graphs.store, task_overrides()
    note = (
        f"Trained on {len(setup.train)} graphs of train; the epoch is chosen on {len(graphs.trainable('valid'))} of "
        f"valid. Overrides: {' '.join(f'`{override}`' for override in overrides) or 'none'}."
    )
    tags = {
        "collection": spec.collection,
        "method": spec.method,
        "data": spec.data,
        store.FINGERPRINT: setup.key,
        store.CODE: files.code_digest("hlorank"),
        store.FEATURES: graphs.fingerprint,
        store.NOTE: note[: store.NOTE_LENGTH],
        **({EXPERIMENT: name} if (name := chosen_experiment()) else {}),
        **setup.libraries,
        **job_tags(),
    }
    earlier = files.read_json(state / files.RUN)["run_id"] if (state / files.RUN).exists() else None
    with store.open_run(config.tracking, run_name(setup, overrides), tags, earlier) as (run_id, resumed):
        if resumed:
            claim(config.tracking, run_id)
        else:
            mlflow.log_params({**files.flatten(setup.settings), **_data_settings(setup)})
            source = LocalArtifactDatasetSource(str(graphs.root))
            for split in SPLITS:  # in the names, as MLflow keeps one context of a dataset
                data = MetaDataset(source, name=f"{spec.collection}/{split}", digest=graphs.fingerprint)
                try:
                    mlflow.log_input(data, context=split)
                except MlflowException:  # another process logged it at the same moment, and it is there now
                    mlflow.log_input(data, context=split)
        files.write_json(state / files.RUN, {"run_id": run_id})
        yield run_id


def run_name(setup: Setup, overrides: Sequence[str]) -> str:
    """Return method, changed settings and collection, in this order, as MLflow's tables show about 25 characters."""
    parts = [override.lstrip("+~").partition("=") for override in overrides]
    named = {key: value for key, _, value in parts if key.partition(".")[0] not in _UNNAMED}
    named |= {"seed": str(seed)} if (seed := setup.config.seed) else {}
    settings = {key: f"{key.rpartition('.')[2]}={short_value(value)}" for key, value in named.items()}
    own = {"method": setup.spec.method, "DVC": os.environ.get("DVC_EXP_NAME", ""), **settings}
    own["collection"] = setup.spec.collection
    varied = os.environ.get(store.VARIED_VARIABLE, "").split(",")
    ordered = sorted(own, key=lambda key: key not in varied)
    return " ".join(own[key] for key in ordered if own[key])[: store.NAME_LENGTH]


def _data_settings(setup: Setup) -> dict[str, Any]:
    """Return the settings that graphs were made with, and warn of settings that an experiment file sets otherwise."""
    graphs, experiment = setup.graphs, chosen_experiment()
    made = {"featurize": graphs.store.spec.options.model_dump(mode="json")}
    if graphs.options is not None:
        made["partition"] = graphs.options.model_dump(mode="json")
    wanted = files.flatten(setup.config.model_dump(mode="json", include={*made}))
    for key, value in files.flatten(made).items():
        if experiment is not None and wanted[key] != value:
            remedy = f"run the stage {key.partition('.')[0]} with experiment={experiment}, and the stages after it"
            log.warning("%s=%s: no effect, as the data were made with %s; %s", key, wanted[key], value, remedy)
    return files.flatten({"data": graphs.store.data, **made})


def _record(setup: Setup, output: Path, run_id: str, metrics: Metrics, trained: Trained) -> None:
    """Write the model folder, and log it into the open run; checkpoints stay where the store does not answer."""
    import mlflow

    trained.save(output, setup.spec)
    rows = [{"member": 0, **row} for row in trained.history]
    files.write_text(output / files.HISTORY, pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False))
    run: dict[str, Any] = {"run_id": run_id, "tracking_uri": files.redact_credentials(mlflow.get_tracking_uri())}
    run |= {EXPERIMENT: chosen_experiment(), "model": files.read_json(output / files.SPEC)["spec_sha256"]}
    files.write_json(output / files.RUN, run | setup.libraries)
    try:
        store.check_server.cache_clear()
        store.check_server(mlflow.get_tracking_uri())  # at once, where MLflow would try for minutes
        metrics.log_kept()
        mlflow.log_artifacts(str(output), "model")
    except (mlflow.MlflowException, ConnectionError):
        log.warning("%s: complete, but not recorded; the same command records it once the store answers", output)
        raise
    # What MLflow's tab of models shows; its weights are the artifact, and `hlorank register` logs what can be served.
    client, name = mlflow.MlflowClient(), re.sub(r"\W", "_", setup.spec.method)
    experiment, tags = client.get_run(run_id).info.experiment_id, {store.MODEL: run["model"]}
    model = client.create_logged_model(experiment, name, run_id, tags, model_type="ranker").model_id
    client.finalize_logged_model(model, "READY")
    if trained.members:
        parameters = sum(parameter.numel() for member in trained.members for parameter in member.parameters())
        mlflow.log_metric("train/parameters", parameters)
    # A single model has logged its time in each epoch: a curve, to which another value would not belong.
    total = {} if len({row["member"] for row in rows}) == 1 else {TRAIN_SECONDS: trained.seconds}
    # Last of all, so that a run with a best tau is complete.
    mlflow.log_metrics(total if trained.tau is None else total | {BEST_TAU: trained.tau}, model_id=model)
    # Several members have a mean tau, and a finetuned head has one of its own.
    best = [row["epoch"] for row in rows if trained.tau is not None and row["valid_kendall_tau"] == trained.tau]
    epoch = f" of epoch {best[0]}" if best else ""
    tau = "" if trained.tau is None else f", validation Kendall tau {trained.tau:.4f}"
    log.info("%s: model%s%s, MLflow run %s", output, epoch, tau, run_id)

"""Trainings read from folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import PREDICTION_COLUMNS
from hlorank.evaluation.report.trainings import Run, model_and_report_folders, read_run, records, scored
from hlorank.files import DataError, write_json

RANDOM = Collection.parse("layout:cpu:random")
COLUMNS = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling,note"
GST = "layout/cpu/random/gst"


def write(root: Path, place: str = GST) -> Path:
    """Write a minimal model folder and its report, without an MLflow run, and return the root."""
    model, report = root / "models" / place, root / "reports" / place
    *address, method = place.split("/")
    write_json(model / "spec.json", {"collection": ":".join(address), "method": method, "data": "d" * 16})
    write_json(model / "run.json", {"run_id": "0" * 32})
    write_json(report / "metrics.json", {"one_segment": True})
    (model / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,,0.5\n")
    (report / "per_graph.csv").write_text(f"{COLUMNS}\nvalid,007,all,27,64,60,0.25,,a note\nvalid,NA,all,1,1,1,,,\n")
    (report / "predictions.csv").write_text(f"{','.join(PREDICTION_COLUMNS)}\nvalid,007,3,0.5,0.0\n")
    return root


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path)


def found(name: str) -> list[Run]:
    return [read_run(*pair) for pair in model_and_report_folders(Path(name))]


@pytest.mark.parametrize("place", [GST, "layout/cpu/models/gst", "layout/reports/random/gst", "tile/models/gst"])
def test_a_model_and_its_report_are_found_from_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A search or a source may be called as a root."""
    monkeypatch.chdir(write(tmp_path, place))
    for name in (f"models/{place}", f"reports/{place}", "models", "reports", "."):
        (run,) = found(name)
        address = run.collection.path.as_posix()
        assert (run.place, f"{address}/gst", run.method) == (f"models/{place}", place, "gst")
        assert records(run.history) == [{"member": 0.0, "epoch": 1.0, "train_loss": None, "valid_kendall_tau": 0.5}]
        row, other = records(run.per_graph)
        assert (row["graph"], row["kendall_tau"], row["noise_ceiling"], row["note"]) == ("007", 0.25, None, "a note")
        assert (other["graph"], other["kendall_tau"], other["note"]) == ("NA", None, "")
        assert (run.predictions["configuration"].tolist(), run.properties.empty, run.one_segment) == ([3.0], True, True)
        assert (run.tracked, run.seed) == (None, None)


def test_a_report_alone_is_named_by_its_folder(written: Path) -> None:
    shutil.rmtree(written / "models")
    (run,) = found("reports")
    assert (run.collection, run.method, dict(run.spec), run.history.empty) == (RANDOM, "gst", {}, True)
    shutil.copytree(written / "reports" / GST, written / "elsewhere")
    with pytest.raises(DataError, match="elsewhere: folder: expected <collection>/<method>"):
        found("elsewhere")


def test_a_job_of_a_sweep_keeps_its_model_in_a_folder_of_its_own(written: Path) -> None:
    shutil.move(written / "models" / GST, written / "multirun/0")
    (run,) = found("multirun")
    assert (run.place, run.collection, len(run.history), run.per_graph.empty) == ("multirun/0", RANDOM, 1, True)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("configurations", "", r"columns: expected .*, found no \['configurations'"),
        ("a note", "a note,9,9", ""),
        ("64", "many", ".*many"),
        (None, "", ""),
    ],
)
def test_a_damaged_table_is_named(written: Path, old: str | None, new: str, complaint: str) -> None:
    path = written / "reports" / GST / "per_graph.csv"
    path.write_text(path.read_text().replace(old, new) if old else new)
    with pytest.raises(DataError, match=r"per_graph\.csv: " + complaint):
        found("models")


def test_a_model_is_scored_where_it_was_not_evaluated(written: Path) -> None:
    (run,) = found("models")
    model, report = Path("models") / GST, Path("reports") / GST

    def score(folder: Path, collection: Collection, output: Path) -> None:
        assert (folder, collection) == (model, RANDOM)
        shutil.copytree(report, output, dirs_exist_ok=True)

    def fail(*_: object) -> None:
        raise DataError("data", "features", "none")

    assert scored(run, model, fail) is run, "it was evaluated"
    empty = read_run(model, Path("nowhere"))
    assert scored(empty, model, None) is empty
    assert records(scored(empty, model, score).per_graph) == records(run.per_graph)
    failed = scored(empty, model, fail)
    assert (failed.per_graph.empty, failed.unscored) == (True, "data: expected features, found none")

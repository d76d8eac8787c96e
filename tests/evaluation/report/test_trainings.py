"""Trainings read from folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.report.trainings import Run, model_and_report_folders, read_run, records, scored
from hlorank.files import DataError, write_json

RANDOM = Collection.parse("layout:cpu:random")
COLUMNS = "split,graph,protocol,nodes,configurations,distinct,kendall_tau,noise_ceiling,note"


def write(root: Path, place: str = "layout/cpu/random/gst") -> Path:
    """Write a minimal model folder and its report, without an MLflow run, and return the root."""
    model, report = root / "models" / place, root / "reports" / place
    *address, method = place.split("/")
    write_json(model / "spec.json", {"collection": ":".join(address), "method": method, "data": "d" * 16})
    write_json(model / "run.json", {"run_id": "0" * 32})
    (model / "history.csv").write_text("member,epoch,train_loss,valid_kendall_tau\n0,1,,0.5\n")
    write_json(report / "metrics.json", {"one_segment": True})
    (report / "per_graph.csv").write_text(f"{COLUMNS}\nvalid,007,all,27,64,60,0.25,,a note\nvalid,NA,all,1,1,1,,,\n")
    (report / "predictions.csv").write_text(
        "split,graph,configuration,predicted_rank,measured_rank\nvalid,007,3,0.5,0.0\n"
    )
    return root


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path)


def found(name: str) -> list[Run]:
    return [read_run(*pair) for pair in model_and_report_folders(Path(name))]


@pytest.mark.parametrize(
    "name", ["models/layout/cpu/random/gst", "reports/layout/cpu/random/gst", "models", "reports", "."]
)
def test_a_model_and_its_report_are_found_from_either(written: Path, name: str) -> None:
    (run,) = found(name)
    assert (run.place, run.collection, run.method) == ("models/layout/cpu/random/gst", RANDOM, "gst")
    assert records(run.history) == [{"member": 0.0, "epoch": 1.0, "train_loss": None, "valid_kendall_tau": 0.5}]
    row, other = records(run.per_graph)
    assert (row["graph"], row["kendall_tau"], row["noise_ceiling"], row["note"]) == ("007", 0.25, None, "a note")
    assert (other["graph"], other["kendall_tau"], other["note"]) == ("NA", None, "")
    assert (run.predictions["configuration"].tolist(), run.properties.empty, run.one_segment) == ([3.0], True, True)
    assert (run.tracked, run.seed) == (None, None)


@pytest.mark.parametrize("place", ["layout/cpu/models/gst", "layout/reports/random/gst", "tile/models/gst"])
@pytest.mark.parametrize("name", ["models/{}", "reports/{}", "models", "reports", "."])
def test_a_search_or_a_source_may_be_called_as_a_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    monkeypatch.chdir(write(tmp_path, place))
    (run,) = found(name.format(place))
    assert (run.place, run.collection.path.as_posix()) == (f"models/{place}", place.removesuffix("/gst"))
    assert (len(run.history), len(run.per_graph)) == (1, 2)


def test_a_report_alone_is_named_by_its_folder(written: Path) -> None:
    shutil.rmtree(written / "models")
    (run,) = found("reports")
    assert (run.collection, run.method, dict(run.spec), run.history.empty) == (RANDOM, "gst", {}, True)
    shutil.copytree(written / "reports/layout/cpu/random/gst", written / "elsewhere")
    with pytest.raises(DataError, match="elsewhere: folder: expected <collection>/<method>"):
        found("elsewhere")


def test_a_job_of_a_sweep_keeps_its_model_in_a_folder_of_its_own(written: Path) -> None:
    shutil.move(written / "models/layout/cpu/random/gst", written / "multirun/0")
    (run,) = found("multirun")
    assert (run.place, run.collection, len(run.history), run.per_graph.empty) == ("multirun/0", RANDOM, 1, True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: "split,graph\n", r"per_graph.csv: columns: expected .*, found no \['configurations'"),
        (lambda text: "", "per_graph.csv: columns"),
        (lambda text: text + "valid,a,all,1,1,1,1,1,x,9,9\n", "per_graph.csv: columns: expected a table"),
        (lambda text: text.replace("64", "many"), "per_graph.csv: rows: expected a table of numbers.*'many'"),
    ],
)
def test_a_damaged_table_is_named(written: Path, change: object, complaint: str) -> None:
    path = written / "reports/layout/cpu/random/gst/per_graph.csv"
    assert callable(change)
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=complaint):
        found("models")


def test_a_model_is_scored_where_it_was_not_evaluated(written: Path) -> None:
    (run,) = found("models")
    model, report = Path("models/layout/cpu/random/gst"), Path("reports/layout/cpu/random/gst")

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

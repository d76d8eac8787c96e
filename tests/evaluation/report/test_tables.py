"""Trainings read from folders, and the scores of their groups."""

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from unittest.mock import Mock

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import PREDICTION_COLUMNS
from hlorank.evaluation.report.tables import Group, SplitScores, group_runs, scores
from hlorank.evaluation.report.trainings import Run, model_and_report_folders, read_run, records, scored
from hlorank.files import DataError, read_json, write_json
from hlorank.metrics import interval
from tests.evaluation.conftest import graph_row, training

RANDOM, DEFAULT = Collection.parse("layout:cpu:random"), Collection.parse("layout:cpu:default")
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
def written(cwd: Path) -> Path:
    return write(cwd)


def found(name: str) -> list[Run]:
    return [read_run(*pair) for pair in model_and_report_folders(Path(name))]


@pytest.mark.parametrize("place", [GST, "layout/cpu/models/gst", "layout/reports/random/gst", "tile/models/gst"])
def test_a_model_and_its_report_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
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


def test_a_report_of_another_model_is_left_out(written: Path) -> None:
    spec, metrics = written / "models" / GST / "spec.json", written / "reports" / GST / "metrics.json"
    for digest, evaluated in (("new", False), ("old", True)):
        write_json(spec, read_json(spec) | {"spec_sha256": digest})
        write_json(metrics, {"model": "old", "one_segment": True})
        (run,) = found("reports")
        assert (len(run.history), len(run.predictions), run.one_segment) == (1, evaluated, evaluated)
        assert (run.per_graph.empty, f"reports/{GST}" in run.unscored) == (not evaluated, not evaluated)


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
        ("valid,", "vlaid,", "split: .*vlaid"),
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
    model, report = Path("models", GST), Path("reports", GST)

    def score(folder: Path, collection: Collection, output: Path) -> None:
        assert (folder, collection) == (model, RANDOM)
        shutil.copytree(report, output, dirs_exist_ok=True)

    fail = Mock(side_effect=DataError("data", "features", "none"))
    assert scored(run, model, fail) is run, "it was evaluated"
    empty = read_run(model, Path("nowhere"), place="some place")
    assert scored(empty, model, None) is empty
    again = scored(empty, model, score)
    assert (records(again.per_graph), again.place) == (records(run.per_graph), "some place")
    failed = scored(empty, model, fail)
    assert (failed.per_graph.empty, failed.unscored) == (True, "data: expected features, found none")


def group_of(*runs: Run) -> Group:
    ((group,),) = group_runs(runs).values()
    return group


def score_of(*runs: Run) -> SplitScores:
    (((_, score),),) = scores([group_of(*runs)]).values()
    return score


def test_runs_that_differ_in_their_seed_are_one_group_and_labels_name_other_settings() -> None:
    runs = [
        *(training(seed=seed) for seed in (0, 1)),
        training(settings={"model.width": "32", "paths.raw": "elsewhere", "tracking.uri": "other"}),
        training("full"),
        *(training("random", None, place=place) for place in ("here", "there")),
        training(collection=DEFAULT, spec={"data": "e" * 16}),
    ]
    groups = group_runs(runs)
    assert [(group.label, group.seeds, len(group.runs)) for group in (*groups[RANDOM], *groups[DEFAULT])] == [
        ("gst (model.width=64)", 2, 2),
        ("gst (model.width=32)", 1, 1),
        ("full", 1, 1),
        ("random (run=here)", None, 1),
        ("random (run=there)", None, 1),
        ("gst", 1, 1),
    ]
    assert len({group.style for found in groups.values() for group in found}) == 6


def test_an_interval_is_a_bootstrap_interval() -> None:
    values = np.array([0.1, 0.4, 0.5, 0.9])
    found = interval(values)
    means = values[np.random.default_rng(5).integers(0, 4, size=(20_000, 4))].mean(axis=1)
    assert found == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)
    assert found == interval(values), "the same resamples"
    assert interval(np.full(5, 0.25)) == (0.25, 0.25)
    assert interval(values[:1]) == (None, None)


def test_scores_are_means_over_seeds_and_then_over_graphs() -> None:
    taus = ({"a": 0.2, "b": 0.6, "c": None}, {"a": 0.4, "b": 0.8, "c": None})
    runs = [training(seed=seed, taus=own) for seed, own in enumerate(taus)]
    score = score_of(*runs)
    tau = score.estimates["kendall_tau"]
    assert (score.graphs, score.left_out) == (2, 1)
    assert (tau.mean, tau.low, tau.high, tau.deviation) == pytest.approx((0.5, 0.3, 0.7, stdev([0.4, 0.6])))
    assert tau.runs == pytest.approx((0.4, 0.6))
    assert score.noise_ceiling == pytest.approx(0.9)
    assert [row["kendall_tau"] for row in records(group_of(*runs).rows)] == [
        pytest.approx(0.3),
        pytest.approx(0.7),
        None,
    ]


def test_what_is_unknown_for_one_graph_is_unknown() -> None:
    score = score_of(training(per_graph=[graph_row("a", 0.5), graph_row("b", 0.7, ceiling=None)]))
    assert (score.noise_ceiling, score.estimates["kendall_tau"].deviation) == (None, None)
    score = score_of(training(taus={"a": None}))
    assert (score.graphs, score.left_out, dict(score.estimates), score.noise_ceiling) == (0, 1, {}, None)
    assert score_of(training(taus={"a": 0.5})).estimates["kendall_tau"].low is None


def test_scores_are_over_the_graphs_that_all_runs_share_and_the_runs_that_have_a_metric() -> None:
    taus = ({"a": 0.25, "b": 0.75, "c": -1.0}, {"b": 0.25, "a": 0.25, "d": 1.0})
    runs = [*(training(seed=seed, taus=own) for seed, own in enumerate(taus)), training(seed=2, per_graph=[])]
    score = score_of(*runs)
    assert (score.runs, score.graphs, score.left_out) == (2, 2, 2)
    assert (score.estimates["kendall_tau"].mean, score.estimates["kendall_tau"].runs) == (0.375, (0.5, 0.25))
    assert [row["kendall_tau"] for row in records(group_of(*runs).rows)] == [0.25, 0.5, -1.0, 1.0]
    # Reports of another version lack columns; the order of the runs does not matter.
    old, new = training(seed=0), training(seed=1)
    old = replace(old, per_graph=old.per_graph.drop(columns="opa"))
    empty = replace(training(seed=2), per_graph=old.per_graph.assign(opa=float("nan")))
    for ordered in ([old, new, empty], [new, empty, old]):
        estimates = score_of(*ordered).estimates
        assert [len(estimates["kendall_tau"].runs), *estimates["opa"].runs] == pytest.approx([3, 0.8])
        assert [row["opa"] for row in records(group_of(*ordered).rows)] == pytest.approx([0.75, 0.85])
    assert "opa" not in score_of(old, empty).estimates


def test_folds_are_one_group_whose_scores_are_over_the_graphs_of_all() -> None:
    taus: list[dict[str, float | None]] = [{"a": 0.25, "b": 0.75}, {"a": 0.5, "b": None}, {"c": 0.75}]
    runs = [
        training(seed=seed, taus=own, spec={"data": fold}, settings={"data.graphs": "same", "data.local.fold": fold})
        for seed, (own, fold) in enumerate(zip(taus, "001", strict=True))
    ]
    group, score = group_of(*runs), score_of(*runs)
    assert (group.label, group.folds, group.repeated) == ("gst", 2, "seeds and folds")
    assert (score.runs, score.graphs, score.left_out) == (3, 2, 1)
    assert (score.estimates["kendall_tau"].mean, score.estimates["kendall_tau"].runs) == (0.5625, (0.25, 0.5, 0.75))
    other = training(settings={"data.graphs": "other", "data.local.fold": "0"})
    assert len(group_runs([runs[0], other])[RANDOM]) == 2


def test_splits_are_in_order_and_protocols_separate() -> None:
    rows = [graph_row("a", 0.5, "test"), graph_row("a", 0.5), graph_row("a", 0.1, protocol="indexed")]
    found = scores([group_of(training(per_graph=rows))])
    means = {place: score.estimates["kendall_tau"].mean for place, ((_, score),) in found.items()}
    assert [*means.items()] == [(("valid", "all"), 0.5), (("valid", "indexed"), 0.1), (("test", "all"), 0.5)]

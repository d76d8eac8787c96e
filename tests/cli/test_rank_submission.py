"""`hlorank rank`: submissions, and several files of which some are wrong."""

from __future__ import annotations

import csv
import errno
import io
import json
import shutil
from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.data.collection import read_graph
from hlorank.evaluation.submission import check_submission
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import ModuleTuningData, TuningData
from hlorank.ranking.ranker import Ranker

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("printed", [False, True])
def test_a_submission_has_complete_rankings(
    kind: str,
    printed: bool,
    model: Path,
    tile_model: Path,
    graphs: list[Path],
    kernel: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    files, folder, address = (graphs, model, LAYOUT) if kind == "layout" else ([kernel], tile_model, TILE)
    target = tmp_path / "new" / "submission.csv"
    assert main(["rank", "--model", str(folder), *map(str, files), "--csv", "-" if printed else str(target)]) == 0
    shown = capsys.readouterr().out
    if printed:
        target.parent.mkdir()
        target.write_text(shown)
    measured = [read_graph(path, "layout" if kind == "layout" else "tile") for path in files]
    check_submission(target, {f"{address}:{graph.name}": len(graph.configurations) for graph in measured})
    rows = {row["ID"]: row["TopConfigs"] for row in csv.DictReader(io.StringIO(target.read_text()))}
    for graph in measured:
        order = Ranker(folder).rank(graph.graph, graph.configurations).tolist()
        assert rows[f"{address}:{graph.name}"] == ";".join(map(str, order if kind == "layout" else order[:5]))


def test_only_the_first_of_two_graphs_with_one_name_is_ranked(
    model: Path, graphs: list[Path], record: Path, tmp_path: Path, capsys: Capture
) -> None:
    copy = Path(shutil.copy(graphs[0], tmp_path))
    twins = tmp_path / "twins.pb"
    twins.write_bytes(TuningData(modules=[record.read_bytes()] * 2).SerializeToString())
    files = [*[str(graphs[0])] * 2, str(copy), str(twins)]
    assert main(["rank", "--model", str(model), *files, "--csv", str(tmp_path / "out.csv"), "--json"]) == 2
    captured = capsys.readouterr()
    assert [graph["graph"] for graph in json.loads(captured.out)] == [copy.stem, "twins_1"]
    for path, line in zip(files[1:], captured.err.splitlines(), strict=True):
        assert line.startswith(f"error: {path}: graph: expected ")
    check_submission(tmp_path / "out.csv", {f"{LAYOUT}:{copy.stem}": 60, f"{LAYOUT}:twins_1": 3})


def test_other_files_are_ranked_after_a_wrong_one(
    model: Path, graphs: list[Path], kernel: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = [str(kernel), str(graphs[0]), str(tmp_path / "none.npz"), str(graphs[1])]
    arguments = ["rank", "--model", str(model), *files, "--csv", str(tmp_path / "out.csv"), "--json"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert [graph["file"] for graph in json.loads(captured.out)] == [str(graphs[0]), str(graphs[1])]
    assert {line.split(": ")[1] for line in captured.err.splitlines()} == {files[0], files[2]}
    check_submission(tmp_path / "out.csv", {f"{LAYOUT}:{path.stem}": 60 for path in graphs})


@pytest.mark.slow
def test_worker_processes_rank_what_one_process_does(
    model: Path, graphs: list[Path], kernel: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = [str(kernel), str(graphs[0]), str(tmp_path / "none.npz"), str(graphs[1]), str(graphs[0])]
    found = []
    for workers in (1, 2):
        target = tmp_path / f"{workers}.csv"
        arguments = ["rank", "--model", str(model), *files, "--csv", str(target), "--json", "--workers", str(workers)]
        assert main(arguments) == 2
        found.append((target.read_bytes(), capsys.readouterr()))
    assert found[0] == found[1]


def test_later_records_are_ranked_after_a_wrong_one(model: Path, record: Path, tmp_path: Path, capsys: Capture) -> None:
    def changed(fingerprint: int, root: int) -> bytes:
        tuning = ModuleTuningData.FromString(record.read_bytes())
        tuning.fingerprint, tuning.module.computations[0].root_id = fingerprint, root
        return tuning.SerializeToString()

    path = tmp_path / "all.pb"
    modules = [b"\xff", changed(1, root=2), changed(2, root=9), changed(3, root=2)]
    path.write_bytes(TuningData(modules=modules).SerializeToString())
    assert main(["rank", "--model", str(model), str(path), "--csv", str(tmp_path / "out.csv"), "--json"]) == 2
    captured = capsys.readouterr()
    assert [graph["graph"] for graph in json.loads(captured.out)] == ["all_1", "all_3"]
    first, second = captured.err.splitlines()
    assert f"{path}: modules[0].computations: expected at least one" in first
    assert f"{path}: modules[2].computations[0].root_id: expected" in second
    check_submission(tmp_path / "out.csv", {f"{LAYOUT}:all_1": 3, f"{LAYOUT}:all_3": 3})


@pytest.mark.parametrize("error", [DataError("ID", "2 rows", "1"), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("form", ["--json", "--compare"])
def test_rankings_are_printed_if_the_submission_fails_at_its_end(
    error: Exception,
    form: str,
    model: Path,
    graphs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def check(*_: object) -> None:
        raise error

    monkeypatch.setattr("hlorank.evaluation.submission.check_submission", check)
    status = main(["rank", "--model", str(model), *map(str, graphs), "--csv", str(tmp_path / "out.csv"), form])
    assert status == (2 if isinstance(error, DataError) else 1)
    captured = capsys.readouterr()
    assert all(
        f'"graph": "{path.stem}"' in captured.out or f"{path.stem}: the first" in captured.out for path in graphs
    )
    message = f"{tmp_path / 'out.csv'}: No space left on device" if isinstance(error, OSError) else str(error)
    assert captured.err == f"error: {message}\n"
    assert not list(tmp_path.iterdir())

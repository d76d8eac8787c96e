"""`hlorank rank`: rankings of graphs and programs, and files of which some are wrong."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.compute import map_graphs
from hlorank.data.collection import read_graph, write_graph
from hlorank.data.configurations import LayoutConfigurations, Measurements
from hlorank.evaluation.submission import read_submission
from hlorank.files import write_json
from hlorank.hlo.hlo_pb2 import ModuleTuningData, TuningData
from hlorank.metrics import noise_ceiling
from hlorank.ranking.ranker import Ranker

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
Capture = pytest.CaptureFixture[str]


def ranked(arguments: list[Any], capsys: Capture, status: int = 0) -> list[dict[str, Any]]:
    assert main(["rank", *map(str, arguments), "--json"]) == status
    printed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return printed


def refused(arguments: list[Any], capsys: Capture) -> str:
    """Return the error, which is one line, where nothing is ranked."""
    assert main(["rank", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out.strip() == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("printed", [False, True])
def test_rankings_are_those_of_the_ranker(
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
    arguments = ["--model", folder, *files, "--top", "3", "--csv"]
    if printed:
        assert main(["rank", *map(str, arguments), "-"]) == 0
        target.parent.mkdir()
        target.write_text(capsys.readouterr().out)
    else:
        shown = ranked([*arguments, target], capsys)
        assert [graph["file"] for graph in shown] == [str(path) for path in files]
    submitted = {row["ID"]: row["TopConfigs"] for row in csv.DictReader(io.StringIO(target.read_text()))}
    ranker, counts = Ranker(folder), {}
    for place, path in enumerate(files):
        measured = read_graph(path, "layout" if kind == "layout" else "tile")
        scores = ranker.score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable").tolist()
        counts[f"{address}:{path.stem}"] = len(order)
        complete = order if kind == "layout" else order[:5]
        assert submitted[f"{address}:{path.stem}"] == ";".join(map(str, complete))
        if not printed:
            graph = shown[place]
            assert (graph["graph"], graph["configurations"], graph["drawn"]) == (path.stem, len(scores), False)
            assert graph["top"] == [
                {"rank": rank, "configuration": index, "score": pytest.approx(scores[index])}
                for rank, index in enumerate(order[:3], start=1)
            ]
    lengths = {row: count if kind == "layout" else min(count, 5) for row, count in counts.items()}
    assert {row: len(indices) for row, indices in read_submission(target)} == lengths


def test_what_a_cluster_prints_is_not_in_the_output(
    model: Path, graphs: list[Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield from map_graphs(*arguments, **options)
        sys.stdout.write("(raylet) a node was lost")

    monkeypatch.setattr("hlorank.compute.map_graphs", noisy)
    assert len(ranked(["--model", model, *graphs], capsys)) == len(graphs)


def test_a_comparison_has_the_noise_ceiling_and_leaves_out_withheld_runtimes(
    model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    path = Path(shutil.copy(graphs[0], tmp_path / "f[bold].npz"))
    write_json(path.with_suffix(".json"), {"split_half_tau": 0.6})
    withheld = replace(read_graph(path, "layout"), measurements=Measurements(np.zeros(60, dtype=np.int64)))
    write_graph(tmp_path / "unknown.npz", withheld)
    arguments = ["--model", model, path, tmp_path / "unknown.npz", "--compare", "--top", "4"]
    known, unknown = ranked(arguments, capsys)
    assert known["comparison"]["noise_ceiling"] == pytest.approx(noise_ceiling(0.6))
    assert unknown["comparison"] is None
    assert "runtime_ns" not in unknown["top"][0]
    assert main(["rank", *map(str, arguments)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("f[bold]: the first 4 of 60 configurations\n")
    assert "\n\nunknown: the first" in shown
    for part in ("slowdown of the first", "runtime (ns)", "nothing to compare with: the runtimes are withheld"):
        assert part in shown
    scores = re.findall(r"^ +[1-4] +\d+ +(\S+)", shown, re.MULTILINE)
    assert len(scores) == 8
    assert {len(score.partition(".")[2]) for score in scores} == {4}


def test_a_tuning_record_is_ranked_with_its_runs(model: Path, record: Path, capsys: Capture) -> None:
    (printed,) = ranked(["--model", model, record, "--compare"], capsys)
    assert (printed["graph"], printed["configurations"], printed["drawn"]) == ("record", 3, False)
    assert {row["configuration"]: row["runtime_ns"] for row in printed["top"]} == {0: 3_000, 1: 2_000, 2: 2_500}
    changes = {row["configuration"]: [change["after"] for change in row["changes"]] for row in printed["top"]}
    assert changes == {0: [], 1: [[1, 0]], 2: [[1, 0]]}
    assert printed["stage"] is None


def test_candidates_are_drawn_for_a_dump(model: Path, program: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--model", model, "--candidates", "9", "--top", "9"]
    (printed,) = ranked([*arguments, program, "--save", tmp_path / "saved"], capsys)
    assert (printed["configurations"], printed["drawn"]) == (9, True)
    changes = {row["configuration"]: row["changes"] for row in printed["top"]}
    assert changes.pop(0) == []  # the compiler's default
    stage = "before_layout_assignment"
    assert printed["stage"] == {"found": stage, "trained": stage, "compiled": False, "not_compiled": None}
    path = tmp_path / "saved" / f"{printed['graph']}.npz"
    saved = read_graph(path, "layout")
    assert isinstance(saved.configurations, LayoutConfigurations)
    assert saved.measurements.withheld
    for index, layouts in changes.items():
        after = {change["tensor"]: change["after"] for change in layouts}
        expected = [after.get(tensor, [-1, -1]) + [-1] * 4 for tensor in ("output", "operand 0", "operand 1")]
        assert saved.configurations.values()[index].reshape(3, 6).tolist() == expected
        assert {(one["node"], one["opcode"], one["shape"], one["before"]) for one in layouts} == {
            (1, "dot", "f32[8,8]", None)
        }
    # Saved candidates have the same ranking, and so have candidates drawn again; another seed draws others.
    other = Path(shutil.copy(program, tmp_path / "other.hlo.pb"))
    for again in ([path], [other]):
        assert [row["score"] for row in ranked([*arguments, *again], capsys)[0]["top"]] == [
            row["score"] for row in printed["top"]
        ]
    assert ranked([*arguments, program, "--seed", "1"], capsys) != [printed]


def test_the_standard_input_is_shown_as_it_was_given(
    model: Path, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(program.read_bytes())))
    (printed,) = ranked(["--model", model, "-"], capsys)
    assert (printed["file"], printed["graph"]) == ("-", "stdin")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert refused(["--model", model, "-"], capsys).startswith("error: -: ")


def test_a_dump_with_nothing_to_configure_is_left_out(
    model: Path, program: Path, nothing: Path, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    (printed,) = ranked(["--model", model, nothing, program], capsys)
    assert printed["graph"] == "jit_f"
    (notice,) = caplog.messages
    assert str(nothing) in notice
    refused(["--model", model, nothing], capsys)


def test_other_files_and_records_are_ranked_after_a_wrong_one(
    model: Path, graphs: list[Path], kernel: Path, record: Path, tmp_path: Path, capsys: Capture
) -> None:
    def changed(fingerprint: int, root: int) -> bytes:
        tuning = ModuleTuningData.FromString(record.read_bytes())
        tuning.fingerprint, tuning.module.computations[0].root_id = fingerprint, root
        return tuning.SerializeToString()

    modules = tmp_path / "all.pb"
    records = [b"\xff", changed(1, root=2), changed(2, root=9), changed(3, root=2)]
    modules.write_bytes(TuningData(modules=records).SerializeToString())
    (tmp_path / "text.pb").write_text("HloModule m")
    files = [kernel, graphs[0], tmp_path / "none.npz", graphs[0], tmp_path / "text.pb", modules, tmp_path / "none*"]
    arguments = ["rank", "--model", model, *files, "--csv", tmp_path / "out.csv", "--json"]
    assert main([*map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert [graph["graph"] for graph in json.loads(captured.out)] == [graphs[0].stem, "all_1", "all_3"]
    wrong = [files[2], files[6], kernel, graphs[0], files[4], modules, modules]  # files that do not exist come first
    for path, line in zip(wrong, captured.err.splitlines(), strict=True):
        assert line.startswith(f"error: {path}: ")
    assert "modules[2].computations[0].root_id: expected" in captured.err
    lengths = {row: len(indices) for row, indices in read_submission(tmp_path / "out.csv")}
    assert lengths == {f"{LAYOUT}:{graphs[0].stem}": 60, f"{LAYOUT}:all_1": 3, f"{LAYOUT}:all_3": 3}


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


@pytest.mark.parametrize(("known", "file"), [(True, "none.txt"), (False, "graph")])
def test_what_does_not_exist_is_refused_before_pytorch_is_imported(
    known: bool, file: str, model: Path, graphs: list[Path]
) -> None:
    script = "import sys; from hlorank.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    arguments = ["rank", "--model", str(model) if known else "nowhere", str(graphs[0]) if file == "graph" else file]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_an_untrained_model_is_warned_of(
    linear_model: Callable[..., Path], graphs: list[Path], caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    with caplog.at_level(logging.WARNING):
        ranked(["--model", linear_model(steps=0), graphs[0]], capsys)
    assert "never trained" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "--csv", "-"],
        ["--changes", "-", "--csv", "-"],
        ["--changes", "."],
        ["--choose", "11"],
        ["--csv", "."],
        ["--save", __file__],
        ["--export", __file__],
        ["--arguments", "f32[2]"],
    ],
)
def test_options_that_contradict(arguments: list[str], dump: Path, capsys: Capture) -> None:
    assert arguments[0] in refused(["--model", "m", dump, *arguments], capsys)


def test_dumps_of_the_same_name_are_not_saved_to_one_file(
    model: Path, program: Path, tmp_path: Path, capsys: Capture
) -> None:
    twin = Path(shutil.copy(program, tmp_path))
    error = refused(["--model", model, program, twin, "--save", tmp_path / "saved"], capsys)
    assert error.startswith(f"error: {twin}: file name: ")
    assert str(program) in error
    assert not (tmp_path / "saved").exists()


def test_errors_are_one_line_in_a_narrow_terminal(
    model: Path, graphs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    empty = tmp_path / ("a long name " * 9)
    empty.touch()
    assert main(["rank", "--model", str(model), str(empty), str(graphs[0])]) == 2
    bar, error, end = capsys.readouterr().err.partition(f"error: {empty}: file: expected ")
    assert "Ranking" in bar
    assert error
    assert end.endswith(", found an empty file\n")
    assert end.count("\n") == 1


def test_rankings_are_printed_if_the_submission_fails_at_its_end(
    model: Path, graphs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        with TemporaryDirectory() as folder:
            yield Path(folder, "out.csv")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hlorank.evaluation.submission.atomic_path", full)
    assert main(["rank", "--model", str(model), *map(str, graphs), "--csv", str(tmp_path / "out.csv")]) == 1
    captured = capsys.readouterr()
    assert all(f"{path.stem}: the first" in captured.out for path in graphs)
    assert captured.err == "error: No space left on device\n"
    assert not list(tmp_path.iterdir())

"""`hlorank rank`: rankings as tables and JSON, comparisons, and errors."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.compute import map_graphs
from hlorank.data.collection import Collection, read_graph, write_graph
from hlorank.data.configurations import LayoutConfigurations, Measurements
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import SPEC, WEIGHTS, read_json, write_json
from hlorank.hlo.extra import write_extra
from hlorank.hlo.reader import featurize, read_records
from hlorank.metrics import kendall_tau, noise_ceiling, ordered_pair_accuracy, top_k_slowdown
from hlorank.models.serialization import sealed
from hlorank.ranking.ranker import Ranker
from hlorank.version import __version__

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
MakeModel = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def ranked(arguments: list[Any], capsys: Capture) -> list[dict[str, Any]]:
    assert main(["rank", *map(str, arguments), "--json"]) == 0
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
def test_json_holds_the_first_configurations_of_the_model(
    kind: str, model: Path, tile_model: Path, graphs: list[Path], kernel: Path, capsys: Capture
) -> None:
    files, folder = (graphs, model) if kind == "layout" else ([kernel], tile_model)
    printed = ranked(["--model", folder, *files, "--top", "3"], capsys)
    assert [graph["file"] for graph in printed] == [str(path) for path in files]
    for graph, path in zip(printed, files, strict=True):
        measured = read_graph(path, "layout" if kind == "layout" else "tile")
        scores = Ranker(folder).score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable")
        assert (graph["graph"], graph["configurations"], graph["drawn"]) == (path.stem, len(scores), False)
        assert graph["top"] == [
            {"rank": rank, "configuration": index, "score": pytest.approx(scores[index])}
            for rank, index in enumerate(order[:3].tolist(), start=1)
        ]


def test_what_a_cluster_prints_is_not_in_the_output(
    model: Path, graphs: list[Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield from map_graphs(*arguments, **options)
        sys.stdout.write("(raylet) a node was lost")

    monkeypatch.setattr("hlorank.compute.map_graphs", noisy)
    assert len(ranked(["--model", model, *graphs], capsys)) == len(graphs)


def test_the_table_is_readable(model: Path, graphs: list[Path], capsys: Capture) -> None:
    assert main(["rank", "--model", str(model), *map(str, graphs), "--top", "4", "--compare"]) == 0
    shown = capsys.readouterr().out
    for path in graphs:
        assert f"{path.stem}: the first 4 of 60 configurations" in shown
    assert f"\n\n{graphs[1].stem}: the first" in shown
    assert shown.count("(noise ceiling unknown)") == 2
    assert "slowdown of the first" in shown
    assert "runtime (ns)" in shown


def test_a_name_is_printed_as_it_is(model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    path = Path(shutil.copy(graphs[0], tmp_path / "f[bold].npz"))
    assert main(["rank", "--model", str(model), str(path)]) == 0
    assert capsys.readouterr().out.startswith("f[bold]: the first 10 of 60 configurations\n")


def test_the_comparison_has_the_values_of_the_metrics(
    model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    path = Path(shutil.copy(graphs[0], tmp_path))
    measured, top = read_graph(path, "layout"), ["--top", "60", "--compare"]
    label = measured.measurements.label
    (printed,) = ranked(["--model", model, path, *top], capsys)
    scores = np.empty(60)
    for row in printed["top"]:
        scores[row["configuration"]] = row["score"]
        assert row["runtime_ns"] == measured.measurements.runtime[row["configuration"]]
        assert row["slowdown"] == pytest.approx(row["runtime_ns"] / label.min() - 1)
    by_measurement = sorted(printed["top"], key=lambda row: int(row["measured_rank"]))
    assert [row["measured_rank"] for row in by_measurement] == list(range(1, 61))
    assert [row["runtime_ns"] for row in by_measurement] == sorted(label)
    compared = printed["comparison"]
    assert compared["kendall_tau"] == pytest.approx(kendall_tau(scores, label))
    assert compared["opa"] == pytest.approx(ordered_pair_accuracy(scores, label))
    assert compared["slowdown_1"] == pytest.approx(top_k_slowdown(scores, label, 1))
    assert compared["slowdown_5"] == pytest.approx(top_k_slowdown(scores, label, 5))
    assert compared["noise_ceiling"] is None
    write_json(path.with_suffix(".json"), {"split_half_tau": 0.6})
    (printed,) = ranked(["--model", model, path, *top], capsys)
    assert printed["comparison"]["noise_ceiling"] == pytest.approx(noise_ceiling(0.6))


def test_withheld_runtimes_are_not_compared(model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    measured = read_graph(graphs[0], "layout")
    withheld = replace(measured, measurements=Measurements(np.zeros(60, dtype=np.int64)))
    write_graph(tmp_path / "unknown.npz", withheld)
    (printed,) = ranked(["--model", model, tmp_path / "unknown.npz", "--compare"], capsys)
    assert printed["comparison"] is None
    assert "runtime_ns" not in printed["top"][0]
    assert main(["rank", "--model", str(model), str(tmp_path / "unknown.npz"), "--compare"]) == 0
    assert "nothing to compare with: the runtimes are withheld, or all equal" in capsys.readouterr().out


def test_a_tuning_record_is_ranked_with_its_runs(model: Path, record: Path, capsys: Capture) -> None:
    (printed,) = ranked(["--model", model, record, "--compare"], capsys)
    assert (printed["graph"], printed["configurations"], printed["drawn"]) == ("record", 3, False)
    assert {row["configuration"]: row["runtime_ns"] for row in printed["top"]} == {0: 3_000, 1: 2_000, 2: 2_500}
    keys = {"rank", "configuration", "score", "changes", "runtime_ns", "slowdown", "measured_rank"}
    assert printed["top"][0].keys() == keys
    changes = {row["configuration"]: [one["after"] for one in row["changes"]] for row in printed["top"]}
    assert changes == {0: [], 1: [[1, 0]], 2: [[1, 0]]}
    assert printed["stage"] is None


def test_candidates_are_drawn_for_a_dump(model: Path, program: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--model", model, program, "--candidates", "9", "--top", "9"]
    (printed,) = ranked([*arguments, "--save", tmp_path / "saved"], capsys)
    assert (printed["configurations"], printed["drawn"]) == (9, True)
    changes = {row["configuration"]: row["changes"] for row in printed["top"]}
    assert changes.pop(0) == []  # the compiler's default
    stage = "before_layout_assignment"
    assert printed["stage"] == {"found": stage, "trained": stage, "compiled": False, "not_compiled": None}
    saved = read_graph(tmp_path / "saved" / f"{printed['graph']}.npz", "layout")
    assert isinstance(saved.configurations, LayoutConfigurations)
    assert saved.measurements.withheld
    for index, layouts in changes.items():
        after = {one["tensor"]: one["after"] for one in layouts}
        expected = [after.get(tensor, [-1, -1]) + [-1] * 4 for tensor in ("output", "operand 0", "operand 1")]
        assert saved.configurations.values()[index].reshape(3, 6).tolist() == expected
        assert {(one["node"], one["opcode"], one["shape"], one["before"]) for one in layouts} == {
            (1, "dot", "f32[8,8]", None)
        }
    # Saved candidates have the same ranking, and so have those drawn again; another seed draws others.
    (again,) = ranked(["--model", model, tmp_path / "saved" / f"{printed['graph']}.npz", "--top", "9"], capsys)
    assert [row["score"] for row in again["top"]] == [row["score"] for row in printed["top"]]
    assert ranked(arguments, capsys) == [printed]
    assert ranked([*arguments, "--seed", "1"], capsys) != [printed]
    assert main(["rank", *map(str, arguments)]) == 0
    assert "configurations are drawn; 0 is the compiler's default" in capsys.readouterr().out


def test_candidates_do_not_depend_on_the_name_of_the_file(model: Path, program: Path, capsys: Capture) -> None:
    arguments = ["--candidates", "9", "--top", "9"]
    (before,) = ranked(["--model", model, program, *arguments], capsys)
    (after,) = ranked(["--model", model, program.rename(program.with_name("other.hlo.pb")), *arguments], capsys)
    assert after["top"] == before["top"]


def test_the_standard_input_is_shown_as_it_was_given(
    model: Path, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(program.read_bytes())))
    (printed,) = ranked(["--model", model, "-"], capsys)
    assert (printed["file"], printed["graph"]) == ("-", "stdin")


def test_a_dump_with_nothing_to_configure_is_left_out(
    model: Path, program: Path, nothing: Path, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    (printed,) = ranked(["--model", model, nothing, program], capsys)
    assert printed["graph"] == "jit_f"
    (notice,) = caplog.messages
    assert str(nothing) in notice
    refused(["--model", model, nothing], capsys)


def test_scores_of_a_table_have_equal_decimals(model: Path, graphs: list[Path], capsys: Capture) -> None:
    assert main(["rank", "--model", str(model), str(graphs[0]), "--top", "60"]) == 0
    scores = [line.split()[2] for line in capsys.readouterr().out.splitlines()[4:-1]]
    assert len(scores) == 60
    assert {len(score.partition(".")[2]) for score in scores} == {4}


def test_dumps_of_the_same_name_are_not_saved_to_one_file(
    model: Path, program: Path, tmp_path: Path, capsys: Capture
) -> None:
    twin = Path(shutil.copy(program, tmp_path))
    error = refused(["--model", model, program, twin, "--save", tmp_path / "saved"], capsys)
    assert f"error: {twin}: file name: expected a graph name of its own, found that of {program}" in error
    assert not (tmp_path / "saved").exists()


def test_another_kind_of_configurations(
    model: Path, tile_model: Path, graphs: list[Path], kernel: Path, record: Path, program: Path, capsys: Capture
) -> None:
    error = refused(["--model", model, kernel], capsys)
    assert f"{kernel}: config_feat: expected layout configurations, as the model of {LAYOUT} ranks, found tile" in error
    error = refused(["--model", tile_model, graphs[0]], capsys)
    assert f"node_config_feat: expected tile configurations, as the model of {TILE} ranks, found layout" in error
    assert f"{record}: runs: expected tile configurations" in refused(["--model", tile_model, record], capsys)
    error = refused(["--model", tile_model, program], capsys)
    assert (
        f"{program}: file: expected a tuning record or an npz file, with tiles to rank, found a compiler dump" in error
    )


def test_extra_features_that_are_missing(
    linear_model: MakeModel, tiny_collections: Path, program: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    spec = FeatureStore(tiny_collections / "features" / Collection.parse(LAYOUT).path).spec
    needing = linear_model(
        features=spec.model_copy(update={"options": spec.options.model_copy(update={"protobuf": True})})
    )
    path = Path(shutil.copy(graphs[0], tmp_path / "graph.npz"))
    error = refused(["--model", needing, path], capsys)
    assert f"{tmp_path}/graph.extra.npz: file: expected the extra features of graph.npz: fetch with" in error
    # A protobuf contains them, and so does the file next to an npz file.
    ranked(["--model", needing, program], capsys)
    (record,) = read_records(program)
    graph, flat = featurize(record)
    write_graph(tmp_path / "with.npz", graph)
    write_extra(tmp_path / "with.npz", flat)
    ranked(["--model", needing, tmp_path / "with.npz"], capsys)


def changed_arrays(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("node_opcode"), "keys: expected"),
        (lambda arrays: arrays.pop("node_config_feat"), "keys: expected"),
        (lambda arrays: arrays.pop("config_runtime"), "keys: expected"),
        (lambda arrays: arrays["node_config_feat"].__setitem__((3, 0, 1), np.nan), "found nan at [3, 0, 1]"),
        (lambda arrays: arrays["node_feat"].__setitem__((2, 30), np.nan), "found nan at [2, 30]"),
        (lambda arrays: arrays["node_config_feat"].__setitem__((3, 0, 1), 7), "found 7.0 at [3, 0, 1]"),
        (lambda arrays: arrays["node_feat"].__setitem__((2, 30), np.inf), "found inf at [2, 30]"),
        (lambda arrays: arrays.update(node_feat=arrays["node_feat"][:, :100]), "node_feat: expected shape"),
    ],
)
def test_bad_arrays(
    change: Callable[[dict[str, Any]], object],
    message: str,
    model: Path,
    graphs: list[Path],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    path = Path(shutil.copy(graphs[0], tmp_path))
    changed_arrays(path, change)
    error = refused(["--model", model, path], capsys)
    assert f"error: {path}: " in error
    assert message in error


def test_nan_tiles(tile_model: Path, kernel: Path, tmp_path: Path, capsys: Capture) -> None:
    path = Path(shutil.copy(kernel, tmp_path))
    changed_arrays(path, lambda arrays: arrays["config_feat"].__setitem__((1, 2), np.nan))
    error = refused(["--model", tile_model, path], capsys)
    assert f"{path}: config_feat: expected finite numbers, found nan at [1, 2]" in error


def test_ten_million_configurations_are_refused_by_the_header(
    model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    measured = read_graph(graphs[0], "layout")
    assert isinstance(measured.configurations, LayoutConfigurations)
    shape = (10_000_000, len(measured.configurations.node_ids), 18)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(graphs[0]) as given, zipfile.ZipFile(path, "w") as file:
        for member in given.infolist():
            whole = member.filename != "node_config_feat.npy"
            file.writestr(member.filename, given.read(member) if whole else header.getvalue())
        # The directory of the zip file announces gigabytes; reading them fails.
        file.getinfo("node_config_feat.npy").file_size += 4 * int(np.prod(shape))
    error = refused(["--model", model, path], capsys)
    assert f"{path}: node_config_feat: expected at most 1,000,000 configurations of a graph, found 10,000,000" in error
    assert "truncated" in refused(["--model", model, path, "--max-configurations", "10000000"], capsys)
    assert "at most 59" in refused(
        ["--model", model, graphs[0], "--max-configurations", "59", "--candidates", "1"], capsys
    )
    ranked(["--model", model, graphs[0], "--max-configurations", "60", "--candidates", "1"], capsys)


def test_too_many_runs(model: Path, record: Path, capsys: Capture) -> None:
    limit = ["--max-configurations", "2", "--candidates", "1"]
    assert f"{record}: runs: expected at most 2" in refused(["--model", model, record, *limit], capsys)


def test_files_of_another_kind(model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text.pb").write_text("HloModule m")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for path, message in (
        (tmp_path / "none.npz", "found no such file"),
        (tmp_path / "none.pb", "found no such file"),
        (tmp_path / "none*", "found none"),
        (tmp_path / "text.pb", "line 1, column 11"),
        (tmp_path / "broken.npz", "expected a complete npz (zip) file, found a truncated file, or not a zip file"),
    ):
        error = refused(["--model", model, path], capsys)
        assert f"error: {path}: " in error
        assert message in error


@pytest.mark.parametrize(("known", "file"), [(True, "none.txt"), (False, "graph")])
def test_what_does_not_exist_is_refused_before_pytorch_is_imported(
    known: bool, file: str, model: Path, graphs: list[Path]
) -> None:
    script = "import sys; from hlorank.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    arguments = ["rank", "--model", str(model) if known else "nowhere", str(graphs[0]) if file == "graph" else file]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def damaged(model: Path, folder: Path, damage: Callable[[Path], object]) -> Path:
    shutil.copytree(model, folder)
    damage(folder)
    return folder


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: flip_a_bit(folder / WEIGHTS), f"{WEIGHTS}: sha256: expected"),
        (lambda folder: (folder / WEIGHTS).unlink(), "found no such file"),
        (lambda folder: (folder / SPEC).unlink(), f"expected a folder that the stage train wrote, with {SPEC}"),
        (lambda folder: (folder / SPEC).write_text("{"), "expected valid JSON"),
        (
            lambda folder: write_json(folder / SPEC, read_json(folder / SPEC) | {"steps": 4}),
            f"{SPEC}: spec_sha256: expected",
        ),
        (
            lambda folder: write_json(folder / SPEC, sealed(read_json(folder / SPEC) | {"version": "99.1.0"})),
            f"version: expected that of this hlorank, {__version__}, but for the patch level, found 99.1.0; train",
        ),
    ],
)
def test_bad_models(
    damage: Callable[[Path], object], message: str, model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    folder = damaged(model, tmp_path / "damaged", damage)
    error = refused(["--model", folder, graphs[0], "--json"], capsys)
    assert str(folder) in error
    assert message in error


def test_models_that_do_not_exist(model: Path, graphs: list[Path], capsys: Capture) -> None:
    assert "nowhere: model: expected a model folder, an MLflow run id" in refused(
        ["--model", "nowhere", *graphs], capsys
    )
    assert "expected a folder, found a file" in refused(["--model", model / SPEC, *graphs], capsys)


def test_an_untrained_model_is_warned_of(
    linear_model: MakeModel, graphs: list[Path], caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    with caplog.at_level(logging.WARNING):
        ranked(["--model", linear_model(steps=0), graphs[0]], capsys)
    assert "the model was never trained; its scores are meaningless" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--csv", "-"], "--json"),
        (["--changes", "-", "--csv", "-"], "--changes -"),
        (["--changes", "."], "--changes .: a folder"),
        (["--choose", "11"], "--choose 11"),
        (["--csv", "."], "--csv .: a folder"),
        (["--save", __file__], "not a folder"),
    ],
)
def test_options_that_contradict(arguments: list[str], message: str, capsys: Capture) -> None:
    assert message in refused(["--model", "m", "x.npz", *arguments], capsys)


@pytest.mark.parametrize("option", ["--top", "--memory", "--max-configurations", "--candidates", "--seed"])
@pytest.mark.parametrize("value", ["-1", "many"])
def test_numbers_out_of_range(option: str, value: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["rank", "--model", "m", "x.npz", option, value])
    assert re.search(rf"{option}: .*{value}", capsys.readouterr().err)


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


def test_a_submission_that_cannot_be_written_is_status_one(
    model: Path, graphs: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    assert main(["rank", "--model", str(model), str(graphs[0]), "--csv", str(tmp_path / "file" / "all.csv")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'file'}")
    assert "Errno" not in line


def test_the_limit_of_memory_changes_no_score(model: Path, graphs: list[Path], capsys: Capture) -> None:
    assert ranked(["--model", model, *graphs, "--memory", "1"], capsys) == ranked(["--model", model, *graphs], capsys)

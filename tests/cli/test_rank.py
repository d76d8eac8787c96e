"""`hlorank rank`: rankings of graphs and programs, their output and exports, and files of which some are wrong."""

import csv
import errno
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import numpy as np
import pytest

import hlorank
from hlorank.cli.programs import find_programs
from hlorank.config import ConfigError
from hlorank.data.collection import Collection, read_graph, write_graph
from hlorank.data.configurations import LayoutConfigurations, Measurements
from hlorank.evaluation.submission import read_submission
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import read_json, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ModuleTuningData, TuningData
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.reader import DUMPS, read_records
from hlorank.hlo.stage import TRAINED, other_backend, stage_of
from hlorank.hlo.xla_process import has_jaxlib
from hlorank.metrics import noise_ceiling
from hlorank.ranking.ranker import Ranker
from tests.cli.conftest import Command

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
BEFORE = "module_0001.m.before_optimizations.hlo.pb"
STAGE = dict.fromkeys(("found", "trained"), TRAINED) | dict.fromkeys(("not_compiled", "other_backend"))
STAGE |= {"compiled": False, "backend": ""}
needs_jax = pytest.mark.skipif(not has_jaxlib(), reason="needs jax (extra collect)")


@pytest.fixture
def rank(model: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys, "rank", "--model", model)


@pytest.fixture
def no_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.ranking.ranked.has_jaxlib", lambda: False)


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_rankings_are_those_of_the_ranker(
    kind: str, model: Path, tile_model: Path, graphs: list[Path], kernel: Path, tmp_path: Path, call: Command
) -> None:
    files, folder, address = (graphs, model, LAYOUT) if kind == "layout" else ([kernel], tile_model, TILE)
    target = tmp_path / "new" / "submission.csv"
    arguments = ["rank", "--model", folder, *files, "--top", 3, "--csv"]
    shown = call.json(*arguments, target)
    assert call(*arguments, "-")[0] == target.read_text()
    submitted = {row["ID"]: row["TopConfigs"] for row in csv.DictReader(io.StringIO(target.read_text()))}
    ranker = Ranker(folder)
    for path, graph in zip(files, shown, strict=True):
        measured = read_graph(path, "layout" if kind == "layout" else "tile")
        scores = ranker.score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable").tolist()
        complete = order if kind == "layout" else order[:5]
        assert submitted.pop(f"{address}:{path.stem}") == ";".join(map(str, complete))
        top = [
            {"rank": place, "configuration": index, "score": pytest.approx(scores[index])}
            for place, index in enumerate(order[:3], start=1)
        ]
        about = {"file": str(path), "graph": path.stem, "configurations": len(scores), "drawn": False, "stage": None}
        assert graph == about | {"trained_on": None, "doubts": [], "top": top}
    assert not submitted


def test_a_comparison_has_the_ceiling_and_known_runtimes(rank: Command, graphs: list[Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(graphs[0], tmp_path / "f[bold].npz"))
    write_json(path.with_suffix(".json"), {"split_half_tau": 0.6})
    withheld = replace(read_graph(path, "layout"), measurements=Measurements(np.zeros(60, dtype=np.int64)))
    write_graph(tmp_path / "unknown.npz", withheld)
    arguments = [path, tmp_path / "unknown.npz", "--compare", "--top", "4"]
    known, unknown = rank.json(*arguments)
    assert known["comparison"]["noise_ceiling"] == pytest.approx(noise_ceiling(0.6))
    assert unknown["comparison"] is None
    assert "runtime_ns" not in unknown["top"][0]
    shown, _ = rank(*arguments)
    assert shown.startswith("f[bold]: the first 4 of 60 configurations\n")
    assert "\n\nunknown: the first" in shown
    for part in ("slowdown of the first", "runtime (ns)", "nothing to compare with: the runtimes are withheld"):
        assert part in shown
    scores = re.findall(r"^ +[1-4] +\d+ +(\S+)", shown, re.MULTILINE)
    assert len(scores) == 8
    assert {len(score.partition(".")[2]) for score in scores} == {4}


def test_a_tuning_record_is_ranked_with_its_runs(rank: Command, record: Path) -> None:
    (printed,) = rank.json(record, "--compare")
    assert [printed[key] for key in ("graph", "configurations", "drawn", "stage")] == ["record", 3, False, None]
    assert {row["configuration"]: row["runtime_ns"] for row in printed["top"]} == {0: 3_000, 1: 2_000, 2: 2_500}
    changes = {row["configuration"]: [change["after"] for change in row["changes"]] for row in printed["top"]}
    assert changes == {0: [], 1: [[1, 0]], 2: [[1, 0]]}


def test_candidates_are_drawn_for_a_dump(rank: Command, program: Path, tmp_path: Path) -> None:
    many = ["--candidates", "9", "--top", "9"]
    (printed,) = rank.json(*many, program, "--save", tmp_path / "saved")
    assert (printed["configurations"], printed["drawn"]) == (9, True)
    changes = {row["configuration"]: row["changes"] for row in printed["top"]}
    assert len({str(layouts) for layouts in changes.values()}) == 9
    assert changes.pop(0) == []  # the compiler's default
    assert printed["stage"] == STAGE
    path = tmp_path / "saved" / f"{printed['graph']}.npz"
    saved = read_graph(path, "layout")
    assert isinstance(saved.configurations, LayoutConfigurations)
    assert saved.measurements.withheld
    for index, layouts in changes.items():
        after = {change["tensor"]: change["after"] for change in layouts}
        expected = [after.get(tensor, [-1, -1]) + [-1] * 4 for tensor in ("output", "operand 0", "operand 1")]
        assert saved.configurations.values()[index].reshape(3, 6).tolist() == expected
        shown = {(one["node"], one["opcode"], one["shape"], one["before"]) for one in layouts}
        assert shown == {(1, "dot", "f32[8,8]", None)}
    # Saved candidates have the same ranking, and so have candidates drawn again; another seed draws others.
    for again in (path, shutil.copy(program, tmp_path / "other.hlo.pb")):
        assert [row["score"] for row in rank.json(*many, again)[0]["top"]] == [row["score"] for row in printed["top"]]
    assert rank.json(*many, program, "--seed", "1") != [printed]


def test_the_standard_input_is_shown_as_dash(rank: Command, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(program.read_bytes())))
    (printed,) = rank.json("-")
    assert (printed["file"], printed["graph"]) == ("-", "stdin")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert rank("-", status=2)[1].startswith("error: -: ")


def test_nothing_to_configure(rank: Command, program: Path, nothing: Path, caplog: pytest.LogCaptureFixture) -> None:
    (printed,) = rank.json(nothing, program)
    assert printed["graph"] == "jit_f"
    (notice,) = caplog.messages
    assert str(nothing) in notice
    assert rank(nothing, status=2)[0].strip() == ""


def test_other_files_and_records_are_ranked_after_a_wrong_one(
    rank: Command, graphs: list[Path], kernel: Path, record: Path, tmp_path: Path
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
    out, errors = rank(*files, "--csv", tmp_path / "out.csv", "--json", status=2)
    assert [graph["graph"] for graph in json.loads(out)] == [graphs[0].stem, "all_1", "all_3"]
    wrong = [files[2], files[6], kernel, graphs[0], files[4], modules, modules]  # files that do not exist come first
    for path, line in zip(wrong, errors.splitlines(), strict=True):
        assert line.startswith(f"error: {path}: ")
    assert "modules[2].computations[0].root_id: expected" in errors
    lengths = {row: len(indices) for row, indices in read_submission(tmp_path / "out.csv")}
    assert lengths == {f"{LAYOUT}:{graphs[0].stem}": 60, f"{LAYOUT}:all_1": 3, f"{LAYOUT}:all_3": 3}


@pytest.mark.slow
def test_worker_processes_rank_what_one_process_does(
    rank: Command, graphs: list[Path], kernel: Path, cwd: Path
) -> None:
    (cwd / "pickle.py").write_text("raise SystemExit")  # a file of the working folder, which is not imported
    files = [kernel, graphs[0], cwd / "none.npz", graphs[1], graphs[0]]
    found = []
    for workers in (1, 2):
        arguments = [*files, "--csv", cwd / f"{workers}.csv", "--json", "--workers", workers]
        printed = rank(*arguments, status=2)
        found.append((printed, (cwd / f"{workers}.csv").read_bytes()))
    assert found[0] == found[1]


def test_wrong_options_are_refused_before_anything_is_ranked(
    program: Path, tmp_path: Path, call: Command, linear_model: Callable[..., Path]
) -> None:
    for options in ("--json --csv -", "--csv .", "--choose 11", "--save /dev/null", "--export /dev/null"):
        assert options.partition(" ")[0] in call.error("rank", "--model", "m", program, *options.split())
    twin = Path(shutil.copy(program, tmp_path))  # both would be saved to one file
    error = call.error("rank", "--model", linear_model(), program, twin, "--save", tmp_path / "saved")
    assert error.startswith(f"{twin}: file name: ")
    assert str(program) in error
    assert not (tmp_path / "saved").exists()


def test_narrow_terminal(rank: Command, graphs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    empty = tmp_path / ("a long name " * 9)
    empty.touch()
    _, shown = rank(empty, graphs[0], status=2)
    bar, error, end = shown.partition(f"error: {empty}: file: expected ")
    assert "Ranking" in bar
    assert error
    assert end.endswith(", found an empty file\n")
    assert end.count("\n") == 1


def test_rankings_are_printed_if_the_submission_fails_at_its_end(
    rank: Command, graphs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        with TemporaryDirectory() as folder:
            yield Path(folder, "out.csv")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hlorank.evaluation.submission.atomic_path", full)
    out, error = rank(*graphs, "--csv", tmp_path / "out.csv", status=1)
    assert all(f"{path.stem}: the first" in out for path in graphs)
    assert error == "error: No space left on device\n"
    assert not list(tmp_path.iterdir())


def test_the_table_names_instructions_and_layouts(rank: Command, program: Path) -> None:
    arguments = [program, "--candidates", "9", "--top", "9"]
    (ranked,) = rank.json(*arguments)
    for row in ranked["top"][:3]:
        shown, _ = rank(*arguments, "--choose", row["rank"])
        assert "configurations are drawn; 0 is the compiler's default" in shown
        shown = shown.partition(f"rank {row['rank']}, configuration {row['configuration']}: ")[2]
        for change in row["changes"]:
            cells = (change["instruction"], change["opcode"], change["tensor"], "f32[8,8]", "the compiler's choice")
            after = f"{{{','.join(map(str, change['after']))}}}"
            (line,) = [line for line in shown.splitlines() if all(cell in line for cell in cells)]
            assert line.split("  ")[-1].strip() == after
        assert row["changes"] or "every layout is the compiler's choice" in shown


def constraints(module: HloModuleProto) -> list[list[int]]:
    (computation,) = module.computations
    calls = (node for node in computation.instructions if node.custom_call_target == "LayoutConstraint")
    return [[*node.shape.layout.minor_to_major] for node in calls]


@pytest.mark.usefixtures("no_jaxlib")
def test_the_choice_is_exported(rank: Command, program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "exported"
    for choose in (1, 4):
        (ranked,) = rank.json(program, "--candidates", "9", "--export", folder, "--choose", choose)
        assert "jit_f.hlo.txt" in caplog.messages[-1]  # not written
        chosen = ranked["top"][choose - 1]
        assert ranked["exported"] == [str(folder / "jit_f.json"), str(folder / "jit_f.hlo.pb")]
        saved = read_json(folder / "jit_f.json")
        assert [saved[key] for key in ("rank", "score", "collection")] == [choose, chosen["score"], LAYOUT]
        found = [
            tensor["minor_to_major"]
            for instruction in saved["instructions"]
            for tensor in (*instruction["operands"], instruction["output"])  # the order of the constraints
            if tensor["minor_to_major"] is not None
        ]
        assert sorted(found) == sorted(change["after"] for change in chosen["changes"])
        data = (folder / "jit_f.hlo.pb").read_bytes()
        assert constraints(HloModuleProto.FromString(data)) == found
        assert hlorank.apply_configuration(program, folder / "jit_f.json") == data


@pytest.mark.usefixtures("no_jaxlib")
def test_failed_exports(rank: Command, program: Path, graphs: list[Path], record: Path, tmp_path: Path) -> None:
    out = ["--export", tmp_path / "out"]
    _, errors = rank(graphs[0], record, program, *out, status=2)
    assert all(str(path) in line for path, line in zip((graphs[0], record), errors.splitlines(), strict=True))
    assert (tmp_path / "out" / "jit_f.json").is_file()
    rank(program, *out, "--candidates", "3", "--choose", "5", status=2)


@pytest.fixture
def cpu_rank(linear_model: Callable[..., Path], tiny_collections: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command with a model of a CPU, for which modules before XLA's passes are compiled up to layout assignment."""
    collection = Collection.parse("layout:cpu:random")
    spec = FeatureStore(tiny_collections / "features" / Collection.parse(LAYOUT).path).spec
    model = linear_model(
        collection=str(collection), features=spec.model_copy(update={"collection": collection, "backend": "cpu"})
    )
    return Command(capsys, "rank", "--model", model)


def test_dumps_for_another_backend_are_told_by_the_exit_status(cpu_rank: Command, program: Path) -> None:
    name = "module_0000.jit_f.cl_1.0014.Layout_assignment.after_pipeline-start.before_layout-assignment.hlo.pb"
    tpu = Path(shutil.copy(program, program.with_name(name)))
    (printed,) = cpu_rank.json(tpu, status=3)
    assert printed["stage"] == STAGE | {"backend": "cpu", "other_backend": "tpu"}
    module = next(read_records(tpu)).module
    name = "module_0000.jit_f.0010.HLO_passes_through_layout_assignment.after_x.before_layout-assignment.hlo.pb"
    backends = ("cpu", "tpu-v3", "gpu", "")
    assert [other_backend(Path(name), module, backend) for backend in backends] == [None, "cpu", "cpu", None]
    module.host_program_shape.parameters.add().layout.tiles.add(dimensions=[8, 128])
    assert [other_backend(program, module, backend) for backend in backends] == ["tpu", None, "tpu", None]


def test_what_is_not_compiled(cpu_rank: Command, rank: Command, program: Path, tmp_path: Path) -> None:
    before = shutil.copy(program, tmp_path / BEFORE)
    shutil.copy(program, program.with_name("module_0001.m.0003.p.after_dce.before_layout-assignment.hlo.pb"))
    shutil.move(program, program.with_name(BEFORE))
    for ranking, arguments, found in (
        (cpu_rank, [before, "--dump", "before_optimizations"], "before_optimizations"),
        (rank, [before], "before_optimizations"),
        (cpu_rank, [program.parent], TRAINED),  # the one right before layout assignment
    ):
        (printed,) = ranking.json(*arguments, status=0 if found == TRAINED else 3)
        assert printed["stage"] == STAGE | {"backend": "cpu" if ranking is cpu_rank else "", "found": found}


# A product, which the compiler leaves as it is, and two reshapes, which it removes.
TEXT = (Path(__file__).parent / "product.hlo.txt").read_text(encoding="utf-8")


@needs_jax
def test_a_module_is_compiled_and_exported(cpu_rank: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "module_0001.m.before_optimizations.txt"
    source.write_text(TEXT)
    rank = partial(cpu_rank.json, "--candidates", "5")
    (printed,) = rank(source, "--export", tmp_path / "out", "--choose", "3")
    assert printed["file"] == str(source)
    assert printed["stage"] == STAGE | {"backend": "cpu", "compiled": True}
    (line,) = caplog.messages
    assert str(source) in line
    assert "--dump" not in line
    json_file, protobuf, text = map(Path, printed["exported"])
    modules = [next(read_records(path)).module for path in (protobuf, text)]
    assert "reshape" not in {one.opcode for one in modules[0].computations[-1].instructions}
    assert constraints(modules[0]) == constraints(modules[1]) != []
    assert hlorank.apply_configuration(source, json_file) == protobuf.read_bytes()
    for again in (protobuf, text):
        (printed,) = rank(again)
        assert not printed["stage"]["compiled"], "compiled again"
        assert printed["stage"]["found"] == TRAINED


COLLECTIVE = (Path(__file__).parent / "collective.hlo.txt").read_text(encoding="utf-8")


@needs_jax
@pytest.mark.parametrize(("name", "status"), [("module_0001.m.before_optimizations.txt", 3), ("own.hlo", 0)])
def test_a_module_that_the_compiler_refuses_is_ranked_as_it_is(
    name: str, status: int, cpu_rank: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / name).write_text(COLLECTIVE)
    (printed,) = cpu_rank.json("--candidates", "5", path, status=status)
    assert not printed["stage"]["compiled"]
    assert "all-reduce" in printed["stage"]["not_compiled"]
    (line,) = caplog.messages
    assert str(path) in line
    assert printed["stage"]["not_compiled"] in line
    cpu_rank(path, tmp_path / "missing.pb", status=2)


@needs_jax
@pytest.mark.usefixtures("no_jaxlib")
def test_the_ranked_module_is_that_of_the_function(
    cpu_rank: Command, cwd: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The function is traced in another process, right before layout assignment."""
    (cwd / "own_mlp.py").write_text(
        "import jax\n\n@jax.jit\ndef inner(x, y):\n    return jax.nn.softmax(x @ y)\n\n"
        "def step(x, y):\n    return inner(x, y) @ jax.nn.softmax(y) - x\n\ndef fails(x):\n    return x + 'a'\n"
        "import hlorank_collect.program as q\nmine = q.JaxProgram('a', 'a', lambda: (step, 2 * (jax.numpy.eye(8),)))\n"
    )
    monkeypatch.syspath_prepend(cwd)
    arguments = "f32[8,8] f32[8,8]"
    rank = partial(cpu_rank.json, "--candidates", "5", "--export", "out")
    (function,) = rank("own_mlp:step", "--arguments", arguments)
    assert "own_mlp" not in sys.modules
    assert (function["file"], function["graph"], caplog.messages[2:]) == ("own_mlp:step", "own_mlp-step", [])
    import jax
    import own_mlp  # type: ignore[import-not-found] # written by the test

    caplog.clear()
    shape = jax.ShapeDtypeStruct((8, 8), "float32")
    Path("text.mlir").write_text(jax.jit(own_mlp.step).lower(shape, shape).as_text())
    (text,) = rank("text.mlir")
    assert "--dump before_layout-assignment" in caplog.text  # as XLA's name does not tell
    assert [ranking["stage"]["compiled"] for ranking in (text, function)] == [True, False]
    assert text["top"][0]["score"] == function["top"][0]["score"]
    modules = [next(read_records(Path(one["exported"][1]))).module for one in (text, function)]
    assert module_fingerprint(modules[0]) == module_fingerprint(modules[1])
    assert rank("own_mlp:mine")[0]["top"][0]["score"] == function["top"][0]["score"]
    ((program,), _) = find_programs(["own_mlp:step"], DUMPS[1], arguments)
    assert stage_of(program.path, next(read_records(program.path)).module) == "before_optimizations"
    for name, given, reason in (("fails", "f32[2]", "TypeError"), ("step", None, "--arguments")):
        with pytest.raises(ConfigError, match=reason) as error:
            find_programs([f"own_mlp:{name}"], None, given)
        assert (str(error.value).count("\n"), str(error.value).count("own_mlp:")) == (0, 1)


def test_functions_that_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.cli.programs.in_process", in_process := Mock(return_value=b""))
    for dump in (None, "before_layout_assignment", "before-optimizations"):
        find_programs(["own_mlp:step"], dump, "f32[2]", "tpu-v3")
    stages = [call.args[3:5] for call in in_process.call_args_list]
    assert stages == [(DUMPS[0], "tpu-v3"), (DUMPS[0], "tpu-v3"), (DUMPS[1], "tpu-v3")]
    with pytest.raises(ConfigError, match="after_optimizations"):
        find_programs(["own_mlp:step"], "after_optimizations", "f32[2]")
    with pytest.raises(ConfigError, match="--arguments"):
        find_programs(["file.txt"], None, "f32[2]")

"""Rankers of the package by the needs of programs, and `hlorank.rank`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hlorank
from hlorank.cli.main import main
from hlorank.config import ConfigError
from hlorank.data.collection import Collection, graph_files
from hlorank.files import DataError, write_json
from hlorank.hlo.hlo_pb2 import ModuleTuningData
from hlorank.ranking.rankers import CARD, cards, fitting_ranker
from scripts.release import RANKERS, code_of_features
from tests.graphs import matrix_product

Offer = Callable[..., Path]
Files = dict[str, Path]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Offer rankers of these names, such as layout.cpu, copies of a model or only cards; return their folder."""
    monkeypatch.setattr("hlorank.ranking.rankers.bundled", lambda name: tmp_path / name)
    monkeypatch.setattr("hlorank.ranking.ranked.has_jaxlib", lambda: False)  # XLA refuses so small a module

    def of(*names: str, model: Path | None = None) -> Path:
        for name in names:
            if model is not None:
                shutil.copytree(model, tmp_path / "rankers" / name)
            kind, _, backend = name.partition(".")
            about = {"name": name, "kind": kind, "backend": backend.rstrip("2"), "collections": ["layout/cpu/random"]}
            rest = {"method": "analytical", "tau": {}, "test_tau": 0.5, "not_for": "", "code": "", "version": "0.2.0"}
            write_json(tmp_path / "rankers" / name / CARD, about | rest)
        return tmp_path / "rankers"

    return of


@pytest.fixture
def files(tmp_path: Path, tiny_collections: Path) -> Files:
    """A dump without and with the name of its backend, and npz files with and without a sidecar of a TPU."""
    module = matrix_product()
    found = {"dump": tmp_path / "f.before_layout-assignment.hlo.pb", "gpu": tmp_path / "f.gpu_after_x.hlo.pb"}
    for path in found.values():
        path.write_bytes(module.SerializeToString())
    tuning = ModuleTuningData(module=module, fingerprint=1, config_index_to_node=[1])
    tuning.runs.add().module_config.layout_config.nodes.add()
    found["record"] = tmp_path / "tuning.pb"
    found["record"].write_bytes(tuning.SerializeToString())
    raw = tiny_collections / "raw"
    found["npz"] = graph_files(raw, Collection.parse("layout:synthetic:random"), "valid")[0]
    found["kernel"] = graph_files(raw, Collection.parse("tile:synthetic"), "valid")[0]
    found["tpu"] = tmp_path / "tpu.npz"
    shutil.copy(found["npz"], found["tpu"])
    write_json(tmp_path / "tpu.json", {"collection": "layout:tpu-v3:random"})
    return found


@pytest.mark.parametrize(
    ("names", "program", "found"),
    [
        ("layout.cpu tile.cpu", "dump npz", "layout.cpu"),
        ("layout.cpu tile.cpu", "kernel", "tile.cpu"),
        ("layout.cpu layout.tpu", "tpu npz", "layout.tpu"),
        ("layout.cpu tile.cpu", "gpu", "layouts of gpu"),
        ("layout.cpu layout.tpu", "record", "layout.tpu"),
        ("layout.cpu tile.cpu", "dump kernel", r"fits layouts .* \(.+\) and tiles .* \(.+\)"),
        ("layout.cpu layout.tpu", "dump", "several rankers fit"),
        ("layout.cpu layout.cpu2", "dump", "several rankers fit"),
        ("", "dump", "there is none; --model"),
    ],
)
def test_the_ranker_of_the_package_fits_kind_and_backend(
    names: str, program: str, found: str, offer: Offer, files: Files
) -> None:
    folder = offer(*names.split())
    paths = [files[name] for name in program.split()]
    if (folder / found).is_dir():
        path, card = fitting_ranker(paths)
        assert (path, card.name) == (folder / found, found)
    else:
        with pytest.raises(ConfigError, match=found) as error:
            fitting_ranker(paths)
        assert "\n" not in str(error.value)


def test_a_program_is_ranked_by_the_ranker_of_the_package_as_by_the_command(
    offer: Offer, files: Files, linear_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, program = linear_model(), files["dump"]
    offer("layout.cpu", "tile.cpu", model=model)
    ranking = hlorank.rank(program, top=3)
    assert (ranking.graph, ranking.model) == (program.name.removesuffix(".hlo.pb"), "layout.cpu")
    assert main(["rank", str(program), "--json", "--top", "3"]) == 0
    out, error = capsys.readouterr()
    assert "layout.cpu" in error.splitlines()[0]
    assert json.loads(out)[0]["top"] == ranking.top == hlorank.rank(program, model, top=3).top
    assert ranking.top == hlorank.load(model).rank_program(program.read_bytes(), top=3).top
    assert list(ranking.table["configuration"]) == [row["configuration"] for row in ranking.top]
    np.testing.assert_array_equal(ranking.scores[ranking.table["configuration"]], ranking.table["score"])
    assert len(ranking.changes) == len(ranking.top[0]["changes"])
    assert repr(ranking).splitlines()[0].endswith("by layout.cpu")
    assert ranking._repr_html_().count("<tr") == 4 + (len(ranking.changes) + 1 if len(ranking.changes) else 0)
    assert json.loads(ranking.export(tmp_path / "chosen", rank=2)[0].read_text())["rank"] == 2
    with pytest.raises(DataError, match="rank"):
        ranking.export(tmp_path / "chosen", rank=4)
    assert "runtime_ns" in hlorank.rank(files["npz"]).table.columns
    assert main(["rank", str(tmp_path / "nothing.pb")]) == 2


def test_the_rankers_of_the_package_are_of_its_code_of_features_and_small() -> None:
    known = cards()
    assert {card.name for card in known.values()} == {*RANKERS}
    assert {card.code for card in known.values()} == {code_of_features()}, "run `dvc repro -f rankers/dvc.yaml`"
    assert sum(path.stat().st_size for folder in known for path in folder.iterdir()) < 4_000_000
    for folder, card in known.items():
        assert hlorank.load(folder).collection.kind == card.kind

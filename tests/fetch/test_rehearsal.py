"""`make tpugraphs` on generated archives of the official form, with a hundredth of the nodes and configurations."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hlorank.data.collection import SPLITS, Collection
from hlorank.fetch.tpugraphs import COLLECTIONS
from hlorank.files import read_json, write_json
from tests.fetch.conftest import Fault, Server, member, tar

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from published_sizes import graph_sizes, write_sized_graph  # of the benchmarks

ROOT = Path(__file__).parents[2]


def generate(server: Server, folder: Path) -> set[tuple[str, str]]:
    """Serve archives of all collections, and write lists of configurations; return the graphs of valid."""
    valid, server.files["LICENSE"] = set[tuple[str, str]](), b"licence"
    for address in COLLECTIONS:
        collection, lists = Collection.parse(address), dict[str, list[int]]()
        for size in graph_sizes(collection, configurations=0.2, nodes=0.2, graphs=0.05):
            write_sized_graph(size, collection, folder)
            if size.split == "valid":
                lists[f"{collection.source}_{size.number:04d}"] = [*range(min(size.configurations, 50))]
        for split in SPLITS:
            paths = sorted((folder / collection.path / split).iterdir())
            members = [member(f"npz/{collection.path}/{split}/{path.name}", path.read_bytes()) for path in paths]
            server.files[f"npz_{'_'.join(collection.parts)}_{split}.tar"] = tar(*members)
        valid |= {(address, name) for name in lists}
        write_json(folder / f"{'_'.join(collection.parts[1:])}.json", lists)
    return valid


@pytest.mark.slow
def test_everything_is_fetched_trained_and_judged_once_and_continues(server: Server, tmp_path: Path) -> None:
    valid = generate(server, tmp_path / "generated")
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    indices, own = tmp_path / "generated", "layout/xla/random"
    model = f"tpugraphs/models/best/{own}/full"

    def run(*more: object, status: int = 0) -> str:
        fixed = ["--archives", server.base_url, "--indices", indices, "--steps", 4, "--jobs", 2]
        fixed += ["--set", "baseline.iterations=5", "--set", "trainer.accelerator=cpu"]
        command = [sys.executable, ROOT / "scripts/tpugraphs.py", *fixed, *more]
        done = subprocess.run([*map(str, command)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert done.returncode == status, done.stdout
        return done.stdout

    indices = tmp_path / "absent"  # evaluate fails
    server.faults += [Fault(stop_after=3), Fault(), Fault(stop_after=70_000)]
    first = run("--collections", own, status=1)
    assert first.startswith("Expected for 4 steps")
    assert "layout_xla_random_best: train" in first
    indices = tmp_path / "generated"
    second = run()
    assert "layout_xla_random_best: evaluate" in second
    assert not {"layout_xla_random: fetch", "layout_xla_random_best: train"} & {*second.replace(",", "\n").splitlines()}
    third = run("--collections", own, "--pretrained", model)
    ran = [line.partition(",")[0] for line in third.splitlines() if line.startswith("layout_")]
    assert ran == [f"layout_xla_random_pretrained: {stage}" for stage in ("featurize", "train", "evaluate")]
    assert sorted({*server.requests}) == sorted(server.files)
    assert len(server.requests) == len(server.files) + 2, "two were continued"

    found = pd.read_csv(tmp_path / "tpugraphs/results.csv")
    starts = {"best": "", "official": "", "best, listed": "layout", "pretrained": "layout:xla:random"}
    for system, start in starts.items():
        rows = found[found["system"] == system]
        expected = {(address, graph) for address, graph in valid if address.startswith(start)}
        assert {*zip(rows["collection"], rows["graph"], strict=True)} == expected
    assert third.count("GNN (Jain)") >= 4
    for folder in (tmp_path / "tpugraphs/reports").glob("*/*/*/*/*/submission.csv"):
        assert Path(f"{folder}.orders.json").is_file()
    models = tmp_path / "tpugraphs/models"
    pretrained, best = (read_json(models / f"{name}/{own}/full/spec.json") for name in ("pretrained", "best"))
    assert pretrained["features"] == best["features"]

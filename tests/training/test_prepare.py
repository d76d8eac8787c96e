"""Preparation of a training: members and folds, method auto, warnings, mistakes, and the identity of a training."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import grimp
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from hlorank.config import ConfigError
from hlorank.data.collection import Split, sidecar_path
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError, write_json
from hlorank.models.graph_inputs import GraphLoader
from hlorank.partition.segments import Partition
from hlorank.training import prepare as prepare_module
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ALONE, ProcessGroup
from hlorank.training.setup import Member, open_setup
from tests.training.training_helpers import Settings

FAMILIES = {"unet.1": "unet", "unet.2": "unet", "bert.1": "bert", "bert.2": "bert", "a": "a", "b": "b", "c": "c"}


@pytest.fixture
def members_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Member]]:
    """Make the members of a training on graphs of these families, which only the store names."""

    setup = open_setup(settings())
    entry = next(iter(setup.graphs.store.entries("train").values()))
    entries = {name: entry.model_copy(update={"family": family}) for name, family in FAMILIES.items()}
    monkeypatch.setattr(FeatureStore, "entries", lambda *_: entries)

    def make(seeds: int, folds: int, seed: int = 7) -> list[Member]:
        ensemble = setup.config.ensemble.model_copy(update={"seeds": seeds, "folds": folds})
        config = setup.config.model_copy(update={"ensemble": ensemble, "seed": seed})
        return prepare_module._members(replace(setup, config=config, train=list(FAMILIES)))

    return make


def test_members_differ_in_their_seed(members_of: Callable[..., list[Member]]) -> None:
    assert members_of(1, 1) == [Member(7)]
    seeds = [member.seed for member in members_of(4, 1)]
    assert (seeds[0], len(set(seeds))) == (7, 4)
    assert not set(seeds) & {member.seed for member in members_of(4, 1, seed=8)}


def test_folds_hold_out_every_graph_once_and_families_together(members_of: Callable[..., list[Member]]) -> None:
    members = members_of(2, 3)
    assert len({member.seed for member in members}) == 6
    folds = [set(member.held_out) for member in members]
    assert folds[:3] == folds[3:]
    assert sorted(name for fold in folds[:3] for name in fold) == sorted(FAMILIES)
    together = [{name for name in FAMILIES if FAMILIES[name] == family} for family in set(FAMILIES.values())]
    assert all(family <= fold or not family & fold for family in together for fold in folds)
    with pytest.raises(ConfigError, match=r"ensemble\.folds=6: .*\b5\b"):
        members_of(1, 6)


def test_folds_need_no_raw_data(settings: Settings, tmp_path: Path) -> None:
    """Without data/raw, as after `dvc pull` of the features alone, or with other families there, they are the same."""
    whole, raw = prepare(settings(ensemble__folds=3), ALONE), tmp_path / "other/layout/synthetic/random/train"
    for name in whole.train:
        write_json(sidecar_path(raw / f"{name}.npz"), {"family": "one"})
    for folder in ("none", "other"):
        alone = prepare(settings(ensemble__folds=3, paths__raw=tmp_path / folder), ALONE)
        assert alone.members == whole.members
        assert alone.key == whole.key


def test_skipped_graphs_and_graphs_of_few_segments_are_logged_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = prepare(settings(), ALONE).graphs
    counts = [len(graphs.open("train", name).segments) for name in graphs.store.graphs("train")]
    smallest, largest = min(counts), max(counts)
    monkeypatch.setattr(FeatureStore, "skipped", lambda self, split: {"twin": f"all identical in {split}"})
    for sampled, fewer in ((smallest, 0), (smallest + 1, counts.count(smallest)), (largest + 1, 3)):
        caplog.clear()
        prepare(settings(segments__sampled=sampled), ALONE)
        named = f"segments.sampled={sampled}: {fewer} of 3 training graphs have fewer segments"
        skipped = "layout:synthetic:random: training skips the graph twin: all identical in train"
        warned = [record.getMessage().partition(",")[0] for record in caplog.records]
        assert warned == [*[named] * (fewer > 0), skipped]
    caplog.clear()
    prepare(settings(method="full", segments__sampled=99), ALONE)
    assert len(caplog.records) == 1  # whole graphs sample nothing


LONG = {"trainer__max_epochs": 100, "trainer__steps_per_epoch": 100, "segments__redraw_epochs": 100}
DEEP = {"segments__sampled": 100}  # every segment has its gradient: nothing is saved by cutting
MIXED = {"model__block": "[layer_norm,sage,configuration_attention,gelu,residual]"}


def test_segments_are_opened_one_by_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems allow a process 1,024 open files, and the segments of a graph are three."""
    opened, alive, open_partition = WeakSet[Partition](), list[int](), GraphLoader.open_partition

    def open_and_count(self: GraphLoader, split: Split, name: str) -> Partition | None:
        alive.append(len(opened))
        if (partition := open_partition(self, split, name)) is not None:
            opened.add(partition)
        return partition

    def first_step(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GraphLoader, "open_partition", open_and_count)
    monkeypatch.setattr(GraphLoader, "open", first_step)
    with pytest.raises(KeyboardInterrupt):
        prepare(settings(method="gst"), ALONE)
    assert len(alive) > 2
    assert max(alive) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "other"}, r"method=other: .*full, gst"),
        ({"loss": "mse", "loss.mse": 0}, r"loss: "),
        ({"+loss.other": 1}, r"loss=other: .*hinge"),
        ({"+loss.hinge.margn": 1}, r"loss\.hinge\.margn: "),
        ({"ensemble.folds": 4}, r"ensemble\.folds=4: "),
        ({"ensemble.baselines": "[trees]"}, r"ensemble\.baselines: "),
        ({"method": "gst_e", "segments.table_bytes": 200}, r"segments\.table_bytes=200: one entry takes 264 bytes"),
        ({"method": "gst_e", "segments.table_bytes": 10**4}, r"segments\.table_bytes=10000: the working set of"),
        ({"model.opcode_width": 5}, r"model\.opcode_width"),
        ({"trainer.memory_bytes": 100}, r"trainer\.memory_bytes=100: "),
        ({"trainer.precision": "16-mixed"}, r"trainer\.precision=16-mixed"),
        ({"method": "default_configuration", "collection": "tile:synthetic"}, r"method=default_configuration: "),
        (
            {"ensemble.baselines": "[default_configuration]", "collection": "tile:synthetic", "method": "full"},
            r"method=default_configuration: ",
        ),
    ],
)
def test_a_mistake_writes_nothing(values: dict[str, Any], message: str, settings: Settings, tmp_path: Path) -> None:
    config, before = settings(**values), sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        prepare(config, ALONE)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("method", "missing"), [("gst", "features"), ("linear_ranking", "features"), ("gst", "segments")]
)
def test_missing_data_are_refused(method: str, missing: str, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="featurize" if missing == "features" else "partition"):
        prepare(settings(**{"method": method, f"paths__{missing}": tmp_path / "none"}), ALONE)


@pytest.mark.parametrize(
    ("per_step", "count", "named"), [(8, 4, "3 training graphs"), (1, 2, "trainer.graphs_per_step=1")]
)
def test_more_ranks_than_graphs(per_step: int, count: int, named: str, settings: Settings) -> None:
    with pytest.raises(ConfigError, match=named):
        prepare(settings(trainer__graphs_per_step=per_step), ProcessGroup(0, count))


def test_the_key_has_what_can_change_the_result(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**values: Any) -> str:
        return prepare(settings(**values), ALONE).key

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    first = key()
    same: list[dict[str, Any]] = [
        *({f"trainer__{name}": value} for name, value in (("workers", 3), ("threads", "auto"), ("devices", 2))),
        {"trainer__memory_bytes": 10**8},
        {"trainer__accelerator": "auto"} if not torch.cuda.is_available() else {},
        {"evaluate__memory_bytes": 10**8},
        {"sweep__name": "s"},
        {"segments__table_bytes": 10**7},  # which gst does not read
    ]
    assert {key(**values) for values in same} == {first}
    others: list[dict[str, Any]] = [{"seed": 1}, {"model__width": 4}, {"method": "full"}, {"loss": "mse"}]
    threads, linear = {"trainer__threads": 2}, {"method": "linear_ranking"}
    others += [threads, linear, threads | linear]
    keys = {first, *(key(**values) for values in others)}
    assert len(keys) == 8
    masks = {"model__dropout": 0.5, "model__block": "[sage,dropout]"}
    assert key(**masks) != key(**masks, trainer__memory_bytes=10**8), "parts have dropout masks of their own"


def test_all_libraries_have_the_threads_of_a_training_and_wait_without_a_core(settings: Settings) -> None:
    with threadpool_limits(1):
        prepare(settings(trainer__threads=2), ALONE)
        assert {pool["num_threads"] for pool in threadpool_info()} == {torch.get_num_threads()} == {2}
    torch.set_num_threads(1)
    shown = {**{name: value for name, value in os.environ.items() if name[:4] != "OMP_"}, "OMP_DISPLAY_ENV": "true"}
    command = [sys.executable, "-c", "import hlorank.stages.command, torch"]
    assert b"OMP_WAIT_POLICY = 'PASSIVE'" in subprocess.run(command, env=shown, capture_output=True, check=True).stderr


@pytest.mark.parametrize("method", ["gst", "linear_ranking"])
def test_the_key_has_the_code_of_the_result(method: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the commands: a new table must not train a sweep again."""
    digested: list[tuple[str, ...]] = []

    def digest(*names: str) -> str:
        digested.append(names)
        return "0" * 64

    first = prepare(settings(method="gst"), ALONE)
    monkeypatch.setattr(prepare_module, "code_digest", digest)
    assert prepare(settings(method="gst"), ALONE).key != first.key
    assert prepare_module.CODE in digested


def test_no_code_that_a_training_runs_is_outside_of_the_key() -> None:
    graph = grimp.build_graph("hlorank", exclude_type_checking_imports=True)
    modules = graph.find_upstream_modules("hlorank.training", as_package=True)
    others = {".".join(module.split(".")[:2]) for module in modules} - {*prepare_module.CODE}
    # Of features that other code makes the fingerprint stays; the settings and the version are in the key.
    assert others == {"hlorank.compute", "hlorank.config", "hlorank.files", "hlorank.version"}

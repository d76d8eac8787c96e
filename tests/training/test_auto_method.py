"""The choice of a method by the states that a step computes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank.config import Config, ConfigError
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train
from hlorank.training.auto_method import choose_method as choose_setup
from hlorank.training.setup import open_setup

Settings = Callable[..., Config]
LONG = {"trainer__max_epochs": 100, "trainer__steps_per_epoch": 100, "segments__redraw_epochs": 100}


def choose_method(config: Config) -> str:
    full, gst = (open_setup(config.model_copy(update={"method": name})) for name in ("full", "gst"))
    return choose_setup(full, gst)


@pytest.fixture
def finely_cut(settings: Settings, tmp_path: Path) -> Settings:
    """Cut the graphs into segments of five nodes, so that a sampled one is a small share."""
    config = settings()
    path = config.collection.replace(":", "/")
    cut = config.partition.model_copy(update={"max_nodes": 5})
    partition_collection(Path(config.paths.features) / path, cut, tmp_path / "cut" / path)
    return lambda **values: settings(method="auto", paths__segments=tmp_path / "cut", **values)


def test_graphs_of_one_segment_are_trained_whole(settings: Settings, tmp_path: Path) -> None:
    assert choose_method(settings(method="auto", collection="tile/synthetic")) == "full"
    config = settings(method="auto", paths__segments=tmp_path / "cut")
    path = config.collection.replace(":", "/")
    cut = config.partition.model_copy(update={"max_nodes": 10_000})
    partition_collection(Path(config.paths.features) / path, cut, tmp_path / "cut" / path)
    assert choose_method(config) == "full"


def test_a_table_that_is_warm_is_worth_its_stale_embeddings(finely_cut: Settings) -> None:
    assert choose_method(finely_cut(**LONG)) == "gst_e"


def test_a_table_that_holds_nothing_for_later_is_not_chosen(finely_cut: Settings) -> None:
    assert choose_method(finely_cut(**LONG, segments__table_bytes=2000)) != "gst_e"
    once = {"trainer__max_epochs": 1, "trainer__steps_per_epoch": 1}
    assert choose_method(finely_cut(**once)) != "gst_e"


def test_layers_that_mix_configurations_need_fresh_embeddings(finely_cut: Settings) -> None:
    block = "[layer_norm,sage,configuration_attention,gelu,residual]"
    assert choose_method(finely_cut(**LONG, model__block=block)) in {"full", "gst"}


def test_memory_excludes_whole_graphs(finely_cut: Settings) -> None:
    shallow = finely_cut(segments__sampled=100)  # every segment has its gradient: nothing is saved by cutting
    assert choose_method(shallow) == "full"
    tight = shallow.model_copy(update={"trainer": shallow.trainer.model_copy(update={"memory_bytes": 30_000})})
    assert choose_method(tight) != "full"
    none = shallow.model_copy(update={"trainer": shallow.trainer.model_copy(update={"memory_bytes": 1})})
    with pytest.raises(ConfigError, match=r"trainer\.memory_bytes=1: "):
        choose_method(none)


def test_the_model_is_that_of_the_chosen_method(
    finely_cut: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = finely_cut(trainer__max_epochs=1)
    chosen = choose_method(config)
    with caplog.at_level(logging.INFO):
        train(config, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "spec.json").read_text())["method"] == chosen
    assert chosen in caplog.text

"""Names of runs, and the settings that data were made with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hlorank.config import Config
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import Spec
from hlorank.training import run_description
from hlorank.training.methods import METHODS
from hlorank.training.run_description import data_settings, run_name

Settings = Callable[..., Config]


@pytest.mark.parametrize(
    ("seed", "overrides", "name"),
    [
        (0, [], "gst layout:cpu:random"),
        (2, [], "gst seed=2 layout:cpu:random"),
        (0, ["seed=0", "collection=layout/cpu/random", "tracking.uri=x"], "gst seed=0 layout:cpu:random"),
        (2, ["+trainer.warmup=0.012345678", "loss=hinge"], "gst warmup=0.01235 loss=hinge seed=2 layout:cpu:random"),
    ],
)
def test_the_name_of_a_run_begins_with_what_differs(
    seed: int, overrides: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec: Any = SimpleNamespace(method="gst", collection="layout:cpu:random")
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    assert run_name(cast("Spec", spec), seed, overrides) == name
    monkeypatch.setenv("DVC_EXP_NAME", "wide-model")
    assert run_name(cast("Spec", spec), seed, overrides) == name.replace("gst", "gst wide-model")


def test_data_settings_are_those_of_the_stores(
    settings: Settings,
    open_graphs: Callable[..., GraphLoader],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = settings(featurize__scaling="minmax", partition__max_nodes=7)
    graphs = open_graphs(config)
    made = data_settings(graphs, config.featurize, config.partition)
    assert (made["featurize"]["scaling"], made["partition"]["max_nodes"]) == ("standard", 20)
    assert caplog.text == ""  # outside of experiments the stores alone decide
    monkeypatch.setattr(run_description, "chosen_experiment", lambda: "synthetic")
    with caplog.at_level(logging.WARNING):
        data_settings(graphs, config.featurize, config.partition)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("featurize.scaling=minmax: ")
    assert "standard" in first
    assert second.startswith("partition.max_nodes=7: ")
    assert "20" in second
    assert "partition" not in data_settings(open_graphs(config, whole=True), config.featurize, config.partition)


def test_a_method_reads_its_own_settings_of_segments() -> None:
    read = {name: method.segment_settings(method.whole_graph) for name, method in METHODS.items()}
    assert read["full"] < read["gst"] < read["gst_e"] < read["gst_ed"] < read["gst_efd"]
    assert read["gst_efd"] - read["gst_ed"] == {"finetune_epochs"}
    assert METHODS["gst_efd"].segment_settings(whole_graph=True) == read["full"]

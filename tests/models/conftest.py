"""The plugin of examples/reproductions, a segment, layers by name, and what a model is saved with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hlorank.config import PartitionConfig, import_plugin
from hlorank.models.compression.segment import Segment
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.layers import registry
from hlorank.models.layers.layer import Layer
from hlorank.models.serialization import ModelSpec
from hlorank.version import __version__
from tests.models.dense_form import MakeInputs, MakeModel

import_plugin("reproductions")


@pytest.fixture
def segment(make_inputs: MakeInputs) -> Segment:
    """A graph of 24 nodes, 6 of them configurable."""
    (only,) = make_inputs().segments
    return only


@pytest.fixture(scope="session")
def make_layer(make_model: MakeModel) -> Callable[..., Layer]:
    """A function that makes a layer by its name, in float64; keywords change the configuration."""
    config = make_model().config

    def make(name: str, **changes: Any) -> Layer:
        torch.manual_seed(0)
        changed = config.model_copy(update=changes)
        return registry.make_layer(name, changed, "model.block", changed.width).double()

    return make


@pytest.fixture
def graphs(tiny_collections: Path) -> GraphLoader:
    path = Path("layout/synthetic/random")
    return GraphLoader(tiny_collections / "features" / path, tiny_collections / "segments" / path)


@pytest.fixture
def spec(graphs: GraphLoader, make_model: MakeModel) -> ModelSpec:
    return ModelSpec(
        version=__version__,
        collection="layout:synthetic:random",
        method="gst",
        model=make_model(block=["layer_norm", "sage", "gelu", "dropout", "residual"], dropout=0.1).config,
        aggregation="sum",
        whole_graph=False,
        partition=PartitionConfig(algorithm="topological", max_nodes=4, halo=1),
        partition_fingerprint=graphs.partition,
        data=graphs.fingerprint,
        steps=12,
        features=graphs.store.spec,
        members=1,
    )

"""The plugin of examples/reproductions, a segment, layers by name, and what a model is saved with."""

from pathlib import Path

import pytest

from hlorank.config import PartitionConfig, import_plugin
from hlorank.models.compression.segment import Segment
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import ModelSpec
from hlorank.version import __version__
from tests.graphs import make_inputs, make_model

import_plugin("reproductions")


@pytest.fixture
def segment() -> Segment:
    """A graph of 24 nodes, 6 of them configurable."""
    (only,) = make_inputs().segments
    return only


@pytest.fixture
def graphs(tiny_collections: Path) -> GraphLoader:
    path = Path("layout/synthetic/random")
    return GraphLoader(tiny_collections / "features" / path, tiny_collections / "segments" / path)


@pytest.fixture
def spec(graphs: GraphLoader) -> ModelSpec:
    return ModelSpec(
        version=__version__,
        collection="layout:synthetic:random",
        method="gst",
        model=make_model(block=["layer_norm", "sage", "gelu", "dropout", "residual"], dropout=0.1).config,
        aggregation="sum",
        whole_graph=False,
        partition=PartitionConfig(algorithm="topological", max_nodes=4),
        partition_fingerprint=graphs.partition,
        data=graphs.fingerprint,
        steps=12,
        features=graphs.store.spec,
        members=1,
    )

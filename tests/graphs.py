"""Graphs, their layout features and inputs, and models that fit them, for tests; random ones by a seed."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hlorank.config import ModelConfig
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, InputSizes
from hlorank.partition.segments import Partition, local_codes, whole_graph

MODEL = ModelConfig(
    width=6,
    stem=[],
    blocks=2,
    block=["layer_norm", "sage", "gelu", "residual"],
    post_layers=["layer_norm"],
    pooling=["mean", "max"],
    head="mlp",
    directions="separate",
    join="early",
    opcode_width=3,
    opcode_init=False,
    layout_width=2,
    layout_sizes=True,
    layout_costs=True,
    tile_bins=0,
    heads=2,
    dropout=0.0,
    drop_edge=0.0,
    permutations=1,
    operators={},
)


def layout_features(
    node_ids: NDArray[np.int64],
    codebook: NDArray[np.int8],
    sizes: NDArray[np.float32],
    codes: NDArray[Any],
    costs: NDArray[np.float32] | None = None,
) -> LayoutFeatures:
    """Make layout features; by default copies move nothing. No tensor but those of the codes' nodes is configured."""
    if costs is None:
        costs = np.zeros((len(codebook), 3), np.float32)
    tensors = np.zeros((len(node_ids), 22), np.int32)
    tensors[:, 0], tensors[:, 4:10] = np.arange(len(node_ids)), np.arange(6)
    return LayoutFeatures(node_ids, codebook, sizes, costs, tensors, np.zeros((0, 3), np.int32), codes)


def make_model(kind: str = "layout", aggregation: str = "sum", **changes: Any) -> CostModel:
    """Make a float64 model that fits random graphs; keywords change its configuration."""
    torch.manual_seed(0)
    sizes = InputSizes("tile" if kind == "tile" else "layout", 4, 6, 5 if kind == "tile" else 0)
    return CostModel(MODEL.model_copy(update=changes), sizes, aggregation).double()


def make_features(
    kind: str = "layout", nodes: int = 24, distinct: int = 12, seed: int = 0, dtype: type = np.float64
) -> GraphFeatures:
    """Make random features of one graph, by default in float64."""
    rng = np.random.default_rng(seed)
    edges = np.array([(u, int(rng.integers(u))) for u in range(1, nodes) for _ in range(2)], dtype=np.int64)
    configurations: LayoutFeatures | TileFeatures
    if kind == "tile":
        configurations = TileFeatures(rng.normal(size=(distinct, 5)).astype(dtype))
    else:
        node_ids = np.sort(rng.choice(nodes, size=max(1, nodes // 4), replace=False))
        # Few values, so that segments see the same local configuration several times.
        codes = np.unique(rng.integers(0, 2, size=(50 * distinct, len(node_ids))), axis=0)
        codes = rng.permutation(codes)[:distinct]
        assert len(codes) == distinct
        codebook = rng.integers(-1, 6, size=(3, 18)).astype(np.int8)
        # Drawn apart, so that all else is as without them.
        apart = np.random.default_rng(seed)
        sizes = apart.integers(1, 300, size=(3, 18)) * (codebook >= 0)
        configurations = layout_features(
            node_ids, codebook, sizes.astype(np.float32), codes.astype(np.uint8), apart.random((3, 3), dtype=np.float32)
        )
    runtime = rng.permutation(np.arange(1, distinct + 1)) * 1000
    return GraphFeatures(
        name="graph",
        node_feat=rng.normal(size=(nodes, 4)).astype(dtype),
        opcode=rng.integers(0, 6, size=nodes).astype(np.uint8),
        node_layout=rng.integers(-1, 6, size=(nodes, 6)).astype(np.int8),
        edge_index=edges,
        node_splits=np.array([0, nodes]),
        configurations=configurations,
        row_of=np.arange(distinct),
        runtime=runtime,
        normalizer=np.full(distinct, 1000) if kind == "tile" else None,
    )


def matrix_product() -> HloModuleProto:
    """Make a module of a parameter, f32[8,8], and its product with itself."""
    module = HloModuleProto(name="m")
    computation = module.computations.add(name="main", id=1, root_id=2)
    for number, (opcode, operands) in enumerate({"parameter": [], "dot": [1, 1]}.items(), start=1):
        added = computation.instructions.add(name=f"{opcode}.{number}", opcode=opcode, id=number, operand_ids=operands)
        added.shape.element_type = 11
        added.shape.dimensions[:] = [8, 8]
    added.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    added.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    return module


def make_inputs(segments: int = 1, **graph: Any) -> GraphInputs:
    """Make the inputs of a random graph, cut at random into segments; other arguments are the graph's."""
    features = make_features(**graph)
    if segments == 1:
        return GraphInputs(features, whole_graph(features))
    segment_of = np.random.default_rng(1).permutation(np.arange(features.nodes) % segments).astype(np.int32)
    configurations = features.configurations
    assert isinstance(configurations, LayoutFeatures)
    return GraphInputs(features, Partition(segment_of, local_codes(configurations, segment_of)))

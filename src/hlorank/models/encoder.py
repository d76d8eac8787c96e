"""The encoder: features and configurations to the first state of each node."""

import warnings
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.config import ConfigError, ModelConfig
from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.featurize.relayout import COSTS
from hlorank.models.compression.plan import JoinIndex, Plan
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.plan_tensors import propagate

_SCALE = 4  # sizes of 1 to 16,000 become 0.25 to 3.5, about as different as initial embeddings of layout values
_COST_UNITS = 1000  # of a graph's bytes, so that shares of 0.001 to 1 become 0.25 to 2.5


class _Embedding(nn.Embedding):
    """Embedding that draws no values on the device meta, for which PyTorch would import its compiler."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class PiecewiseLinear(nn.Module):
    """Piecewise linear encoding of numeric columns, by bins between quantiles (Gorishniy et al., arXiv 2203.05556).

    A value's component of a bin is 1 above the bin, 0 below it and linear within, shifted and scaled to [-1, 1].
    """

    edges: Tensor

    def __init__(self, columns: int, bins: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, bins + 1)[:, None].repeat(1, columns))

    def start(self, sample: NDArray[np.float32]) -> None:
        """Set the edges of the bins to quantiles of (rows, columns); without rows they stay as they are."""
        if len(sample):
            quantiles = np.quantile(sample, np.linspace(0, 1, len(self.edges)), axis=0)
            self.edges.copy_(torch.from_numpy(quantiles))

    def forward(self, values: Tensor) -> Tensor:
        """Encode (rows, columns) as (rows, bins * columns)."""
        width = (self.edges[1:] - self.edges[:-1]).clamp(min=1e-6)
        share = ((values[:, None] - self.edges[:-1]) / width).clamp(0, 1)
        return (2 * share - 1).flatten(1)


class Encoder(nn.Module):
    """Embedding of nodes and configurations.

    A node's state is the sum of linear maps of its numeric features, its opcode embedding and its layout in the graph;
    a configurable node adds a function of its configuration, and in a tile collection every node does. Layouts in the
    graph and of configurations share one embedding of layout values. With `model.layout_sizes` the function of a layout
    configuration also reads the sizes of the dimensions in the order of its layouts, and with `model.layout_costs` what
    copies to these layouts move. With `model.tile_bins` the columns of tiles have a piecewise linear encoding.
    """

    _values: Tensor

    def __init__(self, config: ModelConfig, sizes: InputSizes, width: int) -> None:
        super().__init__()
        self.numeric = nn.Linear(sizes.node_columns, width)
        self.opcode = _Embedding(sizes.opcodes, config.opcode_width)
        self.opcode_map = nn.Linear(config.opcode_width, width, bias=False)
        self.layout_value = _Embedding(LAYOUT_MAX - LAYOUT_MIN + 1, config.layout_width)
        self.register_buffer("_values", torch.tensor([*range(LAYOUT_MIN, LAYOUT_MAX + 1)]), persistent=False)
        self.node_layout_map = nn.Linear(LAYOUT_DIMS * config.layout_width, width, bias=False)
        self._reads_sizes, self._reads_costs = config.layout_sizes, config.layout_costs
        layout_columns = LAYOUT_VALUES * (config.layout_width + config.layout_sizes) + COSTS * config.layout_costs
        columns, encoding = layout_columns, list[nn.Module]()
        if sizes.kind == "tile":
            columns = sizes.tile_columns * (config.tile_bins or 1)
            encoding = [PiecewiseLinear(sizes.tile_columns, config.tile_bins)] if config.tile_bins else []
        with warnings.catch_warnings():
            # A collection whose training kernels all have the same tiles keeps no column.
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            first = nn.Linear(columns, width)
        self.configuration = nn.Sequential(*encoding, first, nn.GELU(), nn.Linear(width, width))

    def start_opcodes(self, embedding: NDArray[np.float32]) -> None:
        """Initialize the learned opcode embedding with (opcodes, opcode width); another width is a ConfigError."""
        if embedding.shape != tuple(self.opcode.weight.shape):
            raise ConfigError(
                f"model.opcode_init: the opcode embeddings have width {embedding.shape[1]}, the model "
                f"{self.opcode.embedding_dim}; set model.opcode_width to featurize.opcode_width"
            )
        with torch.no_grad():
            self.opcode.weight.copy_(torch.from_numpy(embedding))

    def _layout(self, values: Tensor) -> Tensor:
        """Embed layout values: (..., dims) to (..., dims * layout width)."""
        # A gather would sum its gradients row by row, into a table of seven rows.
        chosen = (values[..., None] == self._values).to(self.layout_value.weight.dtype)
        return (chosen @ self.layout_value.weight).flatten(-2)

    def configured(self, layouts: Tensor, sizes: Tensor, costs: Tensor) -> Tensor:
        """Embed the rows of a codebook: (rows, 18), (rows, 18) and (rows, 3), as in `Plan`, to (rows, width)."""
        columns = self._layout(layouts)
        read = [columns]
        if self._reads_sizes:
            read.append(torch.log2(1 + sizes.to(columns.dtype)) / _SCALE)
        if self._reads_costs:
            read.append(torch.log2(1 + _COST_UNITS * costs.to(columns.dtype)) / _SCALE)
        added: Tensor = self.configuration(torch.cat(read, dim=1))
        return added

    def nodes(self, plan: Plan[Tensor]) -> Tensor:
        """Embed the nodes without a configuration: (colours, width)."""
        values: Tensor = self.numeric(plan.numeric) + self.opcode_map(self.opcode(plan.opcode))
        values = values + self.node_layout_map(self._layout(plan.layout))
        return values if plan.initial is None else embedding(plan.initial, values)

    def join(self, values: Tensor, index: JoinIndex[Tensor], plan: Plan[Tensor]) -> Tensor:
        """Add configurations to the states of their nodes: (colours before, width) to (colours after, width)."""
        if index.layouts is None:
            added: Tensor = self.configuration(plan.tiles)
            states = values.view(-1, *added.shape) if index.states is None else embedding(index.states, values)
            joined: Tensor = states + added
            return joined.flatten(0, 1)
        # Each distinct row of the codebook is embedded once; every state then gathers one row of a table, or zeros.
        codebook = cast("Tensor", plan.codebook)
        configured = self.configured(codebook, cast("Tensor", plan.sizes), cast("Tensor", plan.costs))
        table = torch.cat([values, configured, values.new_zeros(1, values.shape[1])])
        return propagate(table, index.layouts)

"""The encoder: features and configurations to the first state of each node."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.config import ConfigError, ModelConfig
from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import Colouring
from hlorank.models.inputs import ConfigurationBatch, InputSizes, LayoutBatch, Segment
from hlorank.models.node_states import NodeStates

_SIZE_SCALE = 4  # sizes of 1 to 16,000 become 0.25 to 3.5, about as different as initial embeddings of layout values


class Encoder(nn.Module):
    """Embedding of nodes and configurations.

    A node's state is the sum of linear maps of its numeric features, its opcode embedding and its own layout; a
    configurable node adds a function of its configuration, and in a tile collection every node does. The nodes' own
    layouts and the configurations share one embedding of layout values. With `model.layout_sizes` the function of a
    layout configuration also reads the sizes of the dimensions in the order of its layouts. With
    `model.override_layout` the output layout of a configuration, if it has one, replaces the node's own.
    """

    def __init__(self, config: ModelConfig, sizes: InputSizes) -> None:
        super().__init__()
        width = config.width
        self.numeric = nn.Linear(sizes.node_columns, width)
        self.opcode = nn.Embedding(sizes.opcodes, config.opcode_width)
        self.opcode_map = nn.Linear(config.opcode_width, width, bias=False)
        self.layout_value = nn.Embedding(LAYOUT_MAX - LAYOUT_MIN + 1, config.layout_width)
        self.node_layout_map = nn.Linear(LAYOUT_DIMS * config.layout_width, width, bias=False)
        self._reads_sizes = config.layout_sizes
        self._overrides = config.override_layout and sizes.kind == "layout"
        layout_columns = LAYOUT_VALUES * (config.layout_width + config.layout_sizes)
        columns = sizes.tile_columns if sizes.kind == "tile" else layout_columns
        with warnings.catch_warnings():
            # A collection whose training kernels all have the same tiles keeps no column.
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            first = nn.Linear(columns, width)
        self.configuration = nn.Sequential(first, nn.GELU(), nn.Linear(width, width))

    def start_opcodes(self, embedding: NDArray[np.float32]) -> None:
        """Initialize the learned opcode embedding.

        Args:
            embedding: (opcodes, opcode width).

        Raises:
            ConfigError: the width of `embedding` is not `model.opcode_width`.
        """
        if embedding.shape != tuple(self.opcode.weight.shape):
            raise ConfigError(
                f"model.opcode_init: the opcode embeddings have width {embedding.shape[1]}, the model "
                f"{self.opcode.embedding_dim}; set model.opcode_width to featurize.opcode_width"
            )
        with torch.no_grad():
            self.opcode.weight.copy_(torch.from_numpy(embedding))

    def _layout(self, values: Tensor) -> Tensor:
        """Embed layout values: (..., dims) to (..., dims * layout width)."""
        embedded: Tensor = self.layout_value(values - LAYOUT_MIN)
        return embedded.flatten(-2)

    def configured(self, layouts: Tensor, sizes: Tensor) -> Tensor:
        """Embed layout configurations: (rows, 18) layout values and sizes, as in `LayoutBatch`, to (rows, width)."""
        columns = self._layout(layouts)
        if self._reads_sizes:
            columns = torch.cat([columns, torch.log2(1 + sizes.to(columns.dtype)) / _SIZE_SCALE], dim=1)
        added: Tensor = self.configuration(columns)
        return added

    def _own_layout(self, values: Tensor) -> Tensor:
        """Embed output layouts: (rows, 6) layout values to (rows, width)."""
        mapped: Tensor = self.node_layout_map(self._layout(values))
        return mapped

    def nodes(self, segment: Segment, configurations: int, share: bool) -> NodeStates:
        """Embed the nodes without a configuration.

        Args:
            segment: the nodes.
            configurations: number of configurations that will join.
            share: nodes with equal features share a colour.
        """
        first, colour = segment.colour_node, segment.initial_colour
        values: Tensor = self.numeric(segment.node_feat[first]) + self.opcode_map(self.opcode(segment.opcode[first]))
        layouts = self._own_layout(segment.node_layout[first])
        keys = colour if share else np.arange(segment.nodes)
        if self._overrides:
            # Configurable nodes, the first ones, get a layout when the configuration joins.
            values = torch.cat([values, values + layouts])
            fixed = np.arange(segment.nodes) >= segment.k_hop_prefix(0)
            colour = colour + len(first) * fixed
            keys = 2 * keys + fixed
        else:
            values = values + layouts
        colouring = Colouring.of_keys(np.empty((0, configurations), dtype=np.int64), keys)
        index = torch.from_numpy(colour[colouring.node]).to(values.device)
        return NodeStates(embedding(index, values), colouring, None)

    def join(self, states: NodeStates, segment: Segment, batch: ConfigurationBatch) -> NodeStates:
        """Add the configuration to the states of the nodes that it configures.

        Args:
            states: the states before.
            segment: the nodes.
            batch: the configurations.
        """
        if not isinstance(batch, LayoutBatch):
            return NodeStates.of_dense(states.dense() + self.configuration(batch.feat))
        # Each distinct row of the codebook is embedded once; every state then gathers one row of a table, or zeros.
        configured = self.configured(batch.codebook, batch.sizes)
        codes, none, before = batch.codes.T.cpu().numpy(), len(configured), states.colouring
        table = [states.values, configured, configured.new_zeros(1, configured.shape[1])]
        code_of = np.full((max(before.prefix, len(codes)), len(batch)), none)
        code_of[: len(codes)] = codes
        keys, prefix = before.colour_of * (none + 1), len(code_of)
        colouring = Colouring.of_keys(keys[:prefix] + code_of, keys[prefix:, 0] + none)
        code = np.full(len(colouring), none)
        varied = colouring.node < prefix
        code[varied] = code_of[colouring.node[varied], colouring.configuration[varied]]
        columns = [colouring.roots(before), len(before) + code]
        if self._overrides:
            given = (batch.codebook[:, :LAYOUT_DIMS] >= 0).any(dim=1)
            table[1] = configured + given[:, None] * self._own_layout(batch.codebook[:, :LAYOUT_DIMS])
            table.append(self._own_layout(segment.node_layout[segment.colour_node]))
            keeps = np.append(~given.cpu().numpy(), False)[code] & (colouring.node < len(codes))
            columns.append(len(before) + none + np.where(keeps, 1 + segment.initial_colour[colouring.node], 0))
        index = np.stack(columns, axis=1)
        starts = np.arange(0, index.size + 1, index.shape[1])
        values = torch.cat(table)
        joined = propagate(values, Adjacency(index.ravel(), starts, None, len(values), values.device))
        return NodeStates(joined, colouring, 0 if states.hops is None else states.hops)

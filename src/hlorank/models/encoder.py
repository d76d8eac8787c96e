"""From features and configurations to the first state of each node."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from hlorank.config import ConfigError, ModelConfig
from hlorank.data.graph import LAYOUT_DIMS, LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.compression.colouring import Colouring, NodeStates
from hlorank.models.inputs import ConfigurationBatch, InputSizes, LayoutBatch, Segment
from hlorank.models.layers.layer import Mixing

_SIZE_SCALE = 4  # sizes of 1 to 16,000 become 0.25 to 3.5, as far apart as the embeddings of layout values start


class Encoder(nn.Module):
    """Embeds nodes, and joins the configuration to them.

    A node's state is the sum of linear maps of its numeric features, its opcode embedding and its own layout; a
    configurable node adds a function of its configuration, and in a tile collection every node does. One embedding
    of layout values serves the nodes' own layouts and the configurations. With `model.layout_sizes` the function of
    a layout configuration also reads the sizes of the dimensions in the order of its layouts, so that nothing has to
    learn to look up a dimension by its number. With `model.override_layout` the output layout of a configuration, if
    it has one, is also read as the node's own layout is, in its place.

    Attributes:
        mixing: nodes are embedded one by one.

    Raises:
        ConfigError: layouts override those of nodes after these have been read.
    """

    mixing: ClassVar[Mixing] = Mixing.ROW

    def __init__(self, config: ModelConfig, sizes: InputSizes) -> None:
        super().__init__()
        if config.override_layout and config.join != "early":
            raise ConfigError(
                f"model.override_layout=true: with model.join={config.join} the node's own layout has been passed on "
                "before; set it to false, or model.join to early"
            )
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
        """Starts the learned opcode embedding from a given one, (opcodes, opcode width).

        Raises:
            ConfigError: its width is not `model.opcode_width`.
        """
        if embedding.shape != tuple(self.opcode.weight.shape):
            raise ConfigError(
                f"model.opcode_init: the opcode embeddings have width {embedding.shape[1]}, the model "
                f"{self.opcode.embedding_dim}; set model.opcode_width to featurize.opcode_width"
            )
        with torch.no_grad():
            self.opcode.weight.copy_(torch.from_numpy(embedding))

    def _layout(self, values: Tensor) -> Tensor:
        """(..., dims) layout values to (..., dims * layout width)."""
        embedded: Tensor = self.layout_value(values - LAYOUT_MIN)
        return embedded.flatten(-2)

    def configured(self, layouts: Tensor, sizes: Tensor) -> Tensor:
        """What configured nodes add: (rows, 18) layout values and sizes, as in `LayoutBatch`, to (rows, width)."""
        columns = self._layout(layouts)
        if self._reads_sizes:
            columns = torch.cat([columns, torch.log2(1 + sizes.to(columns.dtype)) / _SIZE_SCALE], dim=1)
        added: Tensor = self.configuration(columns)
        return added

    def _own_layout(self, values: Tensor) -> Tensor:
        """(rows, 6) layout values of nodes' outputs to (rows, width)."""
        mapped: Tensor = self.node_layout_map(self._layout(values))
        return mapped

    def nodes(self, segment: Segment, configurations: int, apart: bool) -> NodeStates:
        """The states before a configuration joins, once for nodes that look alike.

        Args:
            segment: the nodes.
            configurations: how many will join.
            apart: nodes share no state, even where they look alike.
        """
        first, look = segment.looks
        values: Tensor = self.numeric(segment.node_feat[first]) + self.opcode_map(self.opcode(segment.opcode[first]))
        layouts = self._own_layout(segment.node_layout[first])
        keys = np.arange(segment.nodes) if apart else look
        if self._overrides:
            # Configurable nodes come first; they get a layout when the configuration joins.
            values = torch.cat([values, values + layouts])
            fixed = np.arange(segment.nodes) >= segment.reached(0)
            look = look + len(first) * fixed
            keys = 2 * keys + fixed
        else:
            values = values + layouts
        rows = Colouring.distinct(np.empty((0, configurations), dtype=np.int64), keys)
        return NodeStates(embedding(torch.from_numpy(look[rows.node]).to(values.device), values), rows, None)

    def join(self, state: NodeStates, segment: Segment, batch: ConfigurationBatch) -> NodeStates:
        """Adds the configuration to the states of the nodes that it configures.

        Args:
            state: the states before.
            segment: the nodes.
            batch: the configurations.
        """
        if not isinstance(batch, LayoutBatch):
            return NodeStates.of(state.dense() + self.configuration(batch.feat))
        # Each distinct row of the codebook is embedded once a step; the states only gather, or add zero.
        configured = self.configured(batch.codebook, batch.sizes)
        codes, none, before = batch.codes.T.cpu().numpy(), len(configured), state.rows
        table = [state.values, configured, configured.new_zeros(1, configured.shape[1])]
        code_of = np.full((max(before.reached, len(codes)), len(batch)), none)
        code_of[: len(codes)] = codes
        keys, free = before.every * (none + 1), len(code_of)
        rows = Colouring.distinct(keys[:free] + code_of, keys[free:, 0] + none)
        code = np.full(len(rows), none)
        varied = rows.node < free
        code[varied] = code_of[rows.node[varied], rows.configuration[varied]]
        columns = [before.every.ravel()[rows.first], len(before) + code]
        if self._overrides:
            first, look = segment.looks
            given = (batch.codebook[:, :LAYOUT_DIMS] >= 0).any(dim=1)
            table[1] = configured + given[:, None] * self._own_layout(batch.codebook[:, :LAYOUT_DIMS])
            table.append(self._own_layout(segment.node_layout[first]))
            keeps = np.append(~given.cpu().numpy(), False)[code] & (rows.node < len(codes))
            columns.append(len(before) + none + np.where(keeps, 1 + look[rows.node], 0))
        index = np.stack(columns, axis=1)
        starts = np.arange(0, index.size + 1, index.shape[1])
        values = torch.cat(table)
        joined = propagate(values, Adjacency(index.ravel(), starts, None, len(values), values.device))
        return NodeStates(joined, rows, 0 if state.hops is None else state.hops)

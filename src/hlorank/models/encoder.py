"""From features and configurations to the first state of each node."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hlorank.config import ConfigError, ModelConfig
from hlorank.graph import LAYOUT_DIMS, LAYOUT_MAX, LAYOUT_MIN, LAYOUT_VALUES
from hlorank.models.adjacency import Adjacency, propagate
from hlorank.models.inputs import ConfigurationBatch, InputSizes, LayoutBatch, Segment
from hlorank.models.layers.layer import Mixing
from hlorank.models.state import Rows, State

_SIZE_SCALE = 4  # sizes of 1 to 16,000 become 0.25 to 3.5, as far apart as the embeddings of layout values start


class Encoder(nn.Module):
    """Embeds nodes, and joins the configuration to them before any message passing (early join).

    A node's state is the sum of linear maps of its numeric features, its opcode embedding and its own layout; a
    configurable node adds a function of its configuration, and in a tile collection every node does. One embedding
    of layout values serves the nodes' own layouts and the configurations. With `model.layout_sizes` the function of
    a layout configuration also reads the sizes of the dimensions in the order of its layouts, so that nothing has to
    learn to look up a dimension by its number.

    Attributes:
        mixing: nodes are embedded one by one.
    """

    mixing: ClassVar[Mixing] = Mixing.ROW

    def __init__(self, config: ModelConfig, sizes: InputSizes) -> None:
        super().__init__()
        width = config.width
        self.numeric = nn.Linear(sizes.node_columns, width)
        self.opcode = nn.Embedding(sizes.opcodes, config.opcode_width)
        self.opcode_map = nn.Linear(config.opcode_width, width, bias=False)
        self.layout_value = nn.Embedding(LAYOUT_MAX - LAYOUT_MIN + 1, config.layout_width)
        self.node_layout_map = nn.Linear(LAYOUT_DIMS * config.layout_width, width, bias=False)
        self._reads_sizes = config.layout_sizes
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

    def forward(self, segment: Segment, batch: ConfigurationBatch, apart: bool = False) -> State:
        """The first states: configurable nodes depend on the configuration, all others do not.

        Args:
            segment: the nodes.
            batch: the configurations.
            apart: nodes share no state, even where they look alike.
        """
        first, look = segment.looks
        nodes: Tensor = self.numeric(segment.node_feat[first]) + self.opcode_map(self.opcode(segment.opcode[first]))
        nodes = nodes + self.node_layout_map(self._layout(segment.node_layout[first]))
        if not isinstance(batch, LayoutBatch):
            return State.of(nodes[look, None] + self.configuration(batch.feat))
        # Each distinct row of the codebook is embedded once a step; the states only gather, or add zero.
        configured = self.configured(batch.codebook, batch.sizes)
        table = torch.cat([nodes, configured, nodes.new_zeros(1, nodes.shape[1])])
        codes, none = batch.codes.T.cpu().numpy(), len(configured)
        own = np.arange(segment.nodes) if apart else look
        keys = own * (none + 1)
        rows = Rows.distinct(keys[: len(codes), None] + codes, keys[len(codes) :] + none)
        varied = rows.node < len(codes)
        code = np.full(len(rows), none)
        code[varied] = codes[rows.node[varied], rows.configuration[varied]]
        columns = np.stack([look[rows.node], len(nodes) + code], axis=1).ravel()
        starts = np.arange(0, len(columns) + 1, 2)
        return State(propagate(table, Adjacency(columns, starts, None, len(table), nodes.device)), rows)

"""Families that look up or scatter rows: recommenders and graph neural networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from .layers import dense, embed, layer_norm
from .model import Model, Parameters, floats, indices


def dlrm(*, axes: str, batch: int, tables: int, width: int, hidden: int, layers: int = 2) -> Model:
    """Build a predictor of clicks (Naumov et al., "Deep learning recommendation model", 2019)."""

    def forward(p: Parameters, numbers: Array, categories: Array) -> Array:
        bottom = numbers
        for size in (*[hidden] * (layers - 1), width):
            bottom = jax.nn.relu(dense(p, bottom, size))
        features = [bottom, *(embed(p, categories[table], 1000, width) for table in range(tables))]
        stacked = jnp.stack(features, axis=axes.index("f"))
        pairs = jnp.einsum(f"{axes}d,{axes.replace('f', 'g')}d->bfg", stacked, stacked)
        x = jnp.concatenate([bottom, pairs.reshape(batch, -1)], axis=-1)
        for _ in range(layers):
            x = jax.nn.relu(dense(p, x, hidden))
        return dense(p, x, 2)

    return Model(forward, (floats(batch, 16), indices(1000, tables, batch)))


def gnn(*, nodes: int, width: int, layers: int, graphs: int = 1, edges: int | None = None) -> Model:
    """Build a classifier of the nodes of graphs by messages along edges (Kipf and Welling, 2016)."""

    def forward(p: Parameters, x: Array, *structure: Array) -> Array:
        for _ in range(layers):
            messages = dense(p, layer_norm(p, x), width)
            if edges is None:
                received = jnp.einsum("gij,gjd->gid", structure[0], messages) / nodes
            else:
                senders, receivers = structure
                sent = jnp.take(messages, senders, axis=0, mode="clip")
                received = jax.ops.segment_sum(sent, receivers, nodes) * (nodes / edges)
            x = x + jax.nn.relu(dense(p, jnp.concatenate([x, received], axis=-1), width))
        return dense(p, x, 16)

    if edges is None:
        return Model(forward, (floats(graphs, nodes, width), floats(graphs, nodes, nodes)))
    ends = indices(nodes, 2, edges)
    return Model(forward, (floats(nodes, width), ends[0], ends[1]))

"""Layout configurations of generated graphs, found by either search, and the graphs with their measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from hlorank.data.configurations import (
    LAYOUT_DIMS,
    LAYOUT_VALUES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    pack_layouts,
    unpack_layouts,
)
from hlorank.data.graph import Graph, Int64
from hlorank.fetch.synthetic.graphs import build_graph
from hlorank.fetch.synthetic.program import DIMS, OPCODES
from hlorank.fetch.synthetic.runtime import Float64, Operands, RuntimeModel

Codes = NDArray[np.unsignedinteger[Any]]

# Rows that nodes of one opcode and ranks choose from, besides the default. Real graphs have 14 to 62 distinct rows.
_ROWS_PER_SIGNATURE = 8
_BATCH = 1024
_GENERATIONS = 16
_ELITE = 0.25
# The search from the default configuration changes this share of the nodes at once, but on average three or more.
_MUTATED, _MUTATIONS = 0.02, 3.0
_BARREN_BATCHES = 8


def layout_graph(
    rng: Generator,
    nodes: int,
    configurable_nodes: int | None,
    configurations: int,
    search: str,
    repeated: float,
    noise: float,
    name: str = "synthetic",
) -> MeasuredGraph:
    """Draw a graph with measured layout configurations.

    Args:
        rng: random generator of every choice.
        nodes: number of nodes, at least 50.
        configurable_nodes: their number; None places as many as real graphs have.
        configurations: their number, repeated ones included.
        search: `random` draws each configuration alone: a share of the nodes, itself drawn from 0..1, gets random
            layouts. `default` starts at the default configuration (all -1) and evolves it: each generation changes
            a few nodes of configurations among the fastest quarter so far.
        repeated: share of the configurations that repeat another one exactly; more if the graph has too few.
        noise: standard deviation of the log-normal factor of each measurement.
        name: the graph's name.

    Returns:
        The graph; runtimes in ns are `layout_runtime` times noise, rounded.

    Raises:
        ConfigError: there are more configurable nodes than a graph of this size can have.
    """
    graph, node_ids = build_graph(rng, nodes, configurable_nodes)
    space = _draw_space(rng, graph, node_ids)
    distinct = max(1, configurations - round(repeated * configurations))
    codes, runtime = _explore(rng, RuntimeModel(graph, node_ids, space.codebook), space, distinct, search)
    order = rng.permutation(
        np.concatenate([np.arange(len(codes)), rng.integers(len(codes), size=configurations - len(codes))])
    )
    measured = measure(rng, runtime[order], noise)
    return MeasuredGraph(name, graph, _compact(node_ids, space.codebook, codes, order), Measurements(measured))


def measure(rng: Generator, runtime: Float64, noise: float) -> Int64:
    """Return measurements: runtimes times log-normal noise, in whole ns of at least 1."""
    return np.maximum(np.rint(runtime * np.exp(rng.normal(0.0, noise, runtime.shape))), 1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Space:
    """Rows that each configurable node may take.

    Attributes:
        codebook: (U, 18) int8 in lexicographic order; row 0 is the default, all -1.
        options: (configurable nodes, choices) codes besides the default.
    """

    codebook: NDArray[np.int8]
    options: Codes


def _draw_space(rng: Generator, graph: Graph, node_ids: Int64) -> _Space:
    """Draw a few rows for each opcode and ranks: full permutations of the ranks, padded with -1."""
    ranks = (graph.node_feat[:, DIMS : DIMS + LAYOUT_DIMS] > 0).sum(axis=1)
    operands = Operands.of(graph, node_ids)
    has_kernel = graph.node_opcode[node_ids] == OPCODES["convolution"]
    signature = np.stack([ranks[node_ids], ranks[operands.input], ranks[operands.weights] * has_kernel], axis=1)
    signatures, member = np.unique(signature, axis=0, return_inverse=True)
    keys = np.empty((len(signatures), _ROWS_PER_SIGNATURE), dtype=np.int64)
    for of_signature, slots in zip(keys, signatures, strict=True):
        rows = np.full((_ROWS_PER_SIGNATURE, LAYOUT_VALUES), -1, dtype=np.int8)
        for tensor, rank in enumerate(slots):
            start = tensor * LAYOUT_DIMS
            rows[:, start : start + rank] = rng.permuted(np.tile(np.arange(rank), (_ROWS_PER_SIGNATURE, 1)), axis=1)
        of_signature[:] = pack_layouts(rows)
    default = pack_layouts(np.full(LAYOUT_VALUES, -1, dtype=np.int8))
    known, codes = np.unique(np.append(keys, default), return_inverse=True)
    options = codes[:-1].reshape(keys.shape)[member.ravel()]
    return _Space(unpack_layouts(known), options.astype(np.min_scalar_type(len(known) - 1)))


def _explore(rng: Generator, model: RuntimeModel, space: _Space, wanted: int, search: str) -> tuple[Codes, Float64]:
    """Find up to `wanted` distinct configurations, the default first, and their runtimes.

    Both searches propose batches and keep new configurations; they differ in their parents and in the changes to them.
    """
    count, choices = space.options.shape
    found = np.zeros((wanted, count), dtype=space.options.dtype)
    runtime = np.empty(wanted)
    runtime[:1] = model(found[:1])
    seen, size, barren = {found[0].tobytes()}, 1, 0
    batch = min(_BATCH, -(-wanted // _GENERATIONS)) if search == "default" else _BATCH
    while size < wanted and barren < _BARREN_BATCHES:
        if search == "default":
            elite = np.argsort(runtime[:size], kind="stable")[: max(1, int(_ELITE * size))]
            parents = found[rng.choice(elite, batch)]
            share = np.full((batch, 1), max(_MUTATED, _MUTATIONS / count))
        else:
            parents = np.zeros((batch, count), dtype=found.dtype)
            share = rng.random((batch, 1))
        picks = space.options[np.arange(count), rng.integers(choices, size=parents.shape)]
        children = np.where(rng.random(parents.shape) < share, picks, parents)
        fresh = {row.tobytes(): row for row in children}
        new = [row for key, row in fresh.items() if key not in seen][: wanted - size]
        seen.update(fresh)
        barren = 0 if new else barren + 1
        if new:
            found[size : size + len(new)] = new
            runtime[size : size + len(new)] = model(found[size : size + len(new)])
            size += len(new)
    return found[:size], runtime[:size]


def _compact(node_ids: Int64, codebook: NDArray[np.int8], codes: Codes, order: Int64) -> LayoutConfigurations:
    """Return the configurations in this order, with a codebook of the rows in use, as a reader of the file does."""
    used = np.zeros(len(codebook), dtype=bool)
    used[codes] = True
    rank = (np.cumsum(used) - 1).astype(np.min_scalar_type(int(used.sum()) - 1))
    return LayoutConfigurations(node_ids, codebook[used], rank[codes[order]])

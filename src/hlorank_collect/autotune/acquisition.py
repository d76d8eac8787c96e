"""Choice of the configurations to measure next: expected improvement under a Gaussian process of node effects."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, hstack
from scipy.special import ndtr

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.data.graph import Graph, Int64
from hlorank.hlo.layout_space import Float64, Layouts
from hlorank.hlo.node_features import COLUMNS

# The scale of the prior fits the sample: the marginal likelihood of its log runtimes is highest about there, and the
# gain that is found changes little within a factor of two (docs/explanation/autotuning.md).
_SLOPE, _SLOPE_DEVIATION = 0.14, 0.05  # log runtime per unit of score
_EFFECT_DEVIATION = 0.25  # of an effect that a unit of score stands for
_SHARED = 0.6  # share of the variance of effects that any other layouts of a node have in common
_NOISE = 0.03  # standard deviation of quick measurements, and of interactions between nodes
_FASTER = 0.3  # deviation towards faster runtimes by that towards slower ones: most changes slow a program down
_LEAST_EFFECT = 0.02  # score of a change that the model thinks irrelevant


def node_kinds(graph: Graph, node_ids: Int64) -> Int64:
    """Number nodes such that equal nodes, with operands of equal opcodes and shapes, have the same number."""
    features = np.column_stack([graph.node_opcode, graph.node_feat])
    _, own = np.unique(features[node_ids], axis=0, return_inverse=True)
    # Up to the shape: the number of a parameter, for example, is another one in each layer.
    _, colour = np.unique(features[:, : 1 + COLUMNS["tuple_size"].start], axis=0, return_inverse=True)
    operands: dict[int, list[int]] = {node: [] for node in node_ids.tolist()}
    for user, used in graph.edge_index.tolist():
        if user in operands:
            operands[user].append(int(colour[used]))
    numbers: dict[tuple[int, ...], int] = {}
    keys = ((kind, *sorted(used)) for kind, used in zip(own.tolist(), operands.values(), strict=True))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _counts(rows: Int64, columns: Int64, shape: tuple[int, int]) -> csr_array:
    """Count how often each pair of a row and a column occurs."""
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)  # sums duplicates


@dataclass(frozen=True, eq=False)
class NodeEffects:
    """Gaussian process of log runtimes relative to the default, with the scores of a model as prior mean.

    A log runtime is the sum of the score, times an uncertain slope, and of an effect for each node with other layouts
    than the default's. Effects are equal for equal layouts of nodes of one kind, correlated for other layouts of that
    kind, and independent between kinds. Their deviation is that of the model's score for such a change: what the model
    thinks irrelevant hardly gains anything, while what it thinks slow may also be fast. So a few measurements of
    configurations that change several nodes tell which nodes are responsible.
    """

    layouts: Layouts
    """(configurations, configurable nodes, 18) int8."""
    kinds: Int64
    """(configurable nodes,) int64, see `node_kinds`."""
    scores: Float64
    """(configurations,), larger = slower: 0 is the default's, 1 the standard deviation over random configurations."""

    @cached_property
    def changed(self) -> csr_array:
        """(configurations, kinds), the number of nodes of each kind with other layouts than the default's."""
        rows, nodes = np.nonzero((self.layouts != -1).any(axis=2))
        return _counts(rows, self.kinds[nodes], (len(self.layouts), int(self.kinds.max()) + 1))

    @cached_property
    def _features(self) -> csr_array:
        """(configurations, features): the covariance of two configurations is the product of their features."""
        deviations = _EFFECT_DEVIATION * self._effects()
        parts = [self.changed * (math.sqrt(_SHARED) * deviations), csr_array(_SLOPE_DEVIATION * self.scores[:, None])]
        tensors = self.layouts.reshape(*self.layouts.shape[:2], len(LAYOUT_TENSORS), LAYOUT_DIMS)
        base = LAYOUT_DIMS + 1
        for tensor in range(len(LAYOUT_TENSORS)):
            rows, nodes = np.nonzero((tensors[:, :, tensor] != -1).any(axis=2))
            codes = (tensors[rows, nodes, tensor].astype(np.int64) + 1) @ base ** np.arange(LAYOUT_DIMS)
            found, columns = np.unique(self.kinds[nodes] * base**LAYOUT_DIMS + codes, return_inverse=True)
            own = deviations[found // base**LAYOUT_DIMS] * math.sqrt((1 - _SHARED) / len(LAYOUT_TENSORS))
            parts.append(_counts(rows, columns, (len(self.layouts), len(found))) * own)
        return csr_array(hstack(parts, format="csr"))

    def _effects(self) -> Float64:
        """Return the typical score of changing a node, by kind: ridge regression of the scores."""
        counts = self.changed
        gram = (counts.T @ counts).toarray() + np.eye(counts.shape[1])
        effects = np.abs(np.linalg.solve(gram, counts.T @ self.scores))
        least: Float64 = np.maximum(effects, _LEAST_EFFECT / np.maximum(np.bincount(self.kinds), 1))
        return least

    def posterior(self, measured: Mapping[int, float]) -> tuple[Float64, Float64]:
        """Return mean and standard deviation of the log runtimes relative to the default, given the measured ones."""
        features = self._features
        mean = _SLOPE * np.maximum(self.scores, 0)
        variance: Float64 = (features * features).sum(axis=1)
        if measured:
            known = [*measured]
            covariance: Float64 = (features @ features[known].T).toarray()
            gram = covariance[known] + _NOISE**2 * np.eye(len(known))
            residuals = np.array([*measured.values()]) - mean[known]
            mean = mean + covariance @ np.linalg.solve(gram, residuals)
            variance = variance - (covariance * np.linalg.solve(gram, covariance.T).T).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def improvement(self, measured: Mapping[int, float], best: float) -> Float64:
        """Return the expected improvement on the best log runtime, in units of log runtime."""
        mean, deviation = self.posterior(measured)
        deviation = _FASTER * deviation
        u = (best - mean) / deviation
        expected: Float64 = deviation * (u * ndtr(u) + np.exp(-np.square(u) / 2) / math.sqrt(2 * math.pi))
        return expected

    def batch(self, measured: Mapping[int, float], excluded: set[int], count: int) -> list[int]:
        """Choose configurations to measure together, each by its expected improvement after the ones before it.

        Each chosen one counts as measured with its expected runtime (kriging believer; Ginsbourger et al., Kriging is
        well-suited to parallelize optimization, 2010), so that configurations with the same changes gain less.
        """
        believed = dict(measured)
        best = min([0.0, *measured.values()])
        chosen: list[int] = []
        for _ in range(min(count, len(self.scores) - len(excluded))):
            expected = self.improvement(believed, best)
            expected[[*excluded, *chosen]] = -1
            chosen.append(int(np.argmax(expected)))
            believed[chosen[-1]] = float(self.posterior(believed)[0][chosen[-1]])
        return chosen

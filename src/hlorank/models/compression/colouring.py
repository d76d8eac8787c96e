"""Colourings of a segment's nodes under several configurations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hlorank.models.compression.segment import Neighbourhood


@dataclass(frozen=True, eq=False)
class Colouring:
    """Colours of nodes under configurations: two (node, configuration) pairs of one colour have equal states.

    Colours are numbered by their first occurrence in `colour_of`, row by row.
    """

    colour_of: NDArray[np.int64]  # (nodes, configurations), the colour of each node under each configuration
    prefix: int  # number of the first nodes whose colour may depend on the configuration; of later nodes it does not
    first: NDArray[np.int64]  # (colours,), index of the first occurrence of each colour in the flat `colour_of`

    @classmethod
    def identity(cls, nodes: int, configurations: int) -> Colouring:
        """Return the colouring of the dense form: every pair of a node and a configuration has another colour."""
        every = np.arange(nodes * configurations)
        return cls(every.reshape(nodes, configurations), nodes, every)

    @classmethod
    def of_keys(cls, prefix: NDArray[Any], others: NDArray[Any]) -> Colouring:
        """Give each distinct key a colour: keys (prefix nodes, configurations), and (other nodes,), equal under all."""
        nodes, configurations = prefix.shape
        number = pd.factorize(np.concatenate([prefix.ravel(), others]))[0]
        first = np.flatnonzero(np.diff(np.maximum.accumulate(number), prepend=-1))
        varied, fixed = number[: prefix.size].reshape(prefix.shape), number[prefix.size :, None]
        colour_of = np.concatenate([varied, np.broadcast_to(fixed, (len(fixed), configurations))])
        outside = nodes * configurations + (first - prefix.size) * configurations
        return cls(colour_of, nodes, np.where(first < prefix.size, first, outside))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_identity(self) -> bool:
        """True if no two (node, configuration) pairs share a colour."""
        return len(self) == self.colour_of.size

    @cached_property
    def node(self) -> NDArray[np.int64]:
        """(colours,) the first node of each colour."""
        return np.asarray(self.first // self.colour_of.shape[1])

    @cached_property
    def configuration(self) -> NDArray[np.int64]:
        """(colours,) the first configuration under which `node` has the colour."""
        return np.asarray(self.first % self.colour_of.shape[1])

    def roots(self, before: Colouring) -> NDArray[np.int64]:
        """Return the colour that each colour had in a coarser colouring, (colours,) int64."""
        return before.colour_of.ravel()[self.first]

    def refine(self, neighbourhood: Neighbourhood, prefix: int) -> Colouring:
        """Return the colouring after a layer of message passing, if configurations reach the first `prefix` nodes."""
        # Colours get random hashes. Their sums over two neighbourhoods that differ agree with probability below 2^-50.
        hashes = np.random.default_rng(0).integers(2**64, size=len(self), dtype=np.uint64)
        near, far = neighbourhood.rows(prefix)
        reached = self.colour_of[: near.shape[1]]
        return Colouring.of_keys(near @ hashes.take(reached), far @ hashes.take(self.colour_of[:, 0]))

"""The paper's protocol: metrics over a published list of configurations of each validation graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.files import DataError, read_json


def read_indices(path: Path, configurations: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Reads the lists of the graphs at hand from a JSON file of graph -> configuration indices.

    An index may stand in a list several times and then counts as often; the published list of unet_3d in
    layout:xla:random holds 481 different ones among 1,000. Lists of graphs that are not at hand are left out.

    Args:
        path: the file.
        configurations: graph -> number of configurations, for each graph at hand.

    Returns:
        Graph -> (listed,) int64, for each graph at hand that the file lists.

    Raises:
        DataError: not a JSON object; none of the graphs is listed; a list that is empty or holds something other than
            indices of configurations.
    """
    listed = {name: indices for name, indices in read_json(path).items() if name in configurations}
    if not listed:
        graphs = ", ".join(sorted(configurations)[:5]) or "no graph"
        raise DataError("graphs", f"at least one graph of the split valid ({graphs})", "none of them", file=path)
    for name, indices in listed.items():
        count = configurations[name]
        if not isinstance(indices, list) or not indices:
            raise DataError(name, "a list of configuration indices", indices, file=path)
        if wrong := [index for index in indices if type(index) is not int or not 0 <= index < count]:
            raise DataError(name, f"configuration indices in 0..{count - 1}", wrong[0], file=path)
    return {name: np.array(indices, dtype=np.int64) for name, indices in listed.items()}

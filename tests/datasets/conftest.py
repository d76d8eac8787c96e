"""Trees of npz files, and the loopback server of the tests of fetch."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.npz_files import Arrays, layout_arrays, save, tile_arrays
from tests.fetch.conftest import server as server


def second_layout() -> Arrays:
    """Return five nodes, one of them configurable, and four configurations, of which the last repeats the first."""
    arrays = layout_arrays()
    feat = np.full((4, 1, 18), -1, dtype=np.float32)
    feat[1, 0, :2] = [1, 0]
    feat[2, 0, :2] = [0, 1]
    return arrays | {
        "node_feat": np.full((5, 140), 7, dtype=np.float32),
        "node_opcode": np.array([1, 2, 3, 4, 5], dtype=np.uint8),
        "edge_index": np.array([[4, 0], [4, 2]]),
        "node_splits": np.array([[0, 5]]),
        "node_config_ids": np.array([4]),
        "node_config_feat": feat,
        "config_runtime": np.array([5, 7, 6, 8]),
    }


@pytest.fixture
def layout_tree(tmp_path: Path) -> Path:
    """Write layout:own:random: train/a of four nodes, valid/b of five, and test/c, whose labels are withheld."""
    folder = tmp_path / "own" / "layout" / "own" / "random"
    withheld = layout_arrays() | {"config_runtime": np.zeros(3, dtype=np.int64)}
    for place, arrays in (("train/a", layout_arrays()), ("valid/b", second_layout()), ("test/c", withheld)):
        (folder / place).parent.mkdir(parents=True)
        save(folder / f"{place}.npz", arrays)
    return tmp_path / "own"


@pytest.fixture
def tile_tree(tmp_path: Path) -> Path:
    """Write npz/tile/own, without splits: kernels k0 to k3; the labels of the last one are withheld."""
    folder = tmp_path / "own" / "npz" / "tile" / "own"
    folder.mkdir(parents=True)
    for number in range(4):
        arrays = tile_arrays()
        arrays["config_feat"] += number
        arrays["config_runtime"] *= number < 3
        save(folder / f"k{number}.npz", arrays)
    return tmp_path / "own"

"""Raw npz files for tests: arrays in the form of the official files, and how they are written and compared."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.collection import Kind
from hlorank.data.configurations import LAYOUT_VALUES, TILE_FEATURES, LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import NODE_FEATURES

Arrays = dict[str, NDArray[Any]]

# Files are overwritten by every example, which is what the property is about.
same_folder = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def layout_arrays() -> Arrays:
    """Return three configurations of two nodes, in the form of the official files."""
    feat = np.full((3, 2, LAYOUT_VALUES), -1, dtype=np.float32)
    feat[0, 0, :3] = [0, 2, 1]
    feat[1, 1, 6:8] = [1, 0]
    return {
        "node_feat": np.arange(4 * NODE_FEATURES, dtype=np.float32).reshape(4, NODE_FEATURES),
        "node_opcode": np.array([2, 26, 0, 120], dtype=np.uint8),
        "edge_index": np.array([[1, 0], [2, 1], [3, 1]]),
        "node_splits": np.array([[0, 1, 4]]),
        "node_config_ids": np.array([1, 3]),
        "node_config_feat": feat,
        "config_runtime": np.array([30, 10, 20]),
    }


def tile_arrays() -> Arrays:
    return {
        "node_feat": np.ones((2, NODE_FEATURES), dtype=np.float32),
        "node_opcode": np.array([63, 26], dtype=np.uint8),
        "edge_index": np.array([[1, 0]]),
        "config_feat": np.arange(3 * TILE_FEATURES, dtype=np.float32).reshape(3, TILE_FEATURES),
        "config_runtime": np.array([30, 10, 20]),
        "config_runtime_normalizers": np.array([10, 10, 40]),
    }


ARRAYS: dict[Kind, Callable[[], Arrays]] = {"layout": layout_arrays, "tile": tile_arrays}


def save(path: Path, arrays: Arrays, write: Callable[..., None] = np.savez) -> None:
    write(path, **arrays)


def member(array: NDArray[Any], **header: Any) -> bytes:
    """Return the bytes of a .npy member, with entries of its header replaced."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array) | header)
    return stream.getvalue() + array.tobytes(order="A")


def write_members(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def members_of(arrays: Arrays) -> dict[str, bytes]:
    return {f"{key}.npy": member(array) for key, array in arrays.items()}


def assert_holds(measured: MeasuredGraph, arrays: Arrays) -> None:
    """Assert that a graph that was read equals the raw arrays, in the schema's dtypes."""
    graph, configurations = measured.graph, measured.configurations
    found: Arrays = {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "config_runtime": measured.measurements.runtime,
    }
    if isinstance(configurations, LayoutConfigurations):
        found["node_splits"] = graph.node_splits[None]
        found["node_config_ids"] = configurations.node_ids
        found["node_config_feat"] = configurations.values().astype(np.float32)
    else:
        assert measured.measurements.normalizer is not None
        found["config_feat"] = configurations.feat
        found["config_runtime_normalizers"] = measured.measurements.normalizer
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array, strict=True)


def arrays_of(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}

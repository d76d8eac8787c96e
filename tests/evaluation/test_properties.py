from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.properties import properties
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.hlo.node_features import OPCODES

MakeGraph = Callable[..., GraphFeatures]


def layout(*orders: tuple[int, ...]) -> list[int]:
    """Return a row of layouts of output, input and kernel."""
    return [value for order in (*orders, *((),) * (3 - len(orders))) for value in (*order, *(-1,) * (6 - len(order)))]


def test_layouts_are_what_copies_move_and_elements_by_contiguous_dimension(
    make_graph: MakeGraph, tiny_collections: Path
) -> None:
    spec = FeatureStore(tiny_collections / "features/layout/synthetic/random").spec
    spec = spec.model_copy(update={"opcodes": np.array([OPCODES["dot"], OPCODES["reshape"]], dtype=np.uint8)})
    codebook = np.array([layout((0, 1), (0,)), layout((1, 0)), layout((1, 2, 0))], dtype=np.int8)
    sizes = np.zeros((3, 18), dtype=np.float32)
    sizes[0, [0, 1, 6]], sizes[1, :2], sizes[2, :3] = (2, 3, 5), (4, 6), (1, 7, 2)
    configurations = LayoutFeatures(
        node_ids=np.array([0, 1, 2]),
        codebook=codebook,
        sizes=sizes,
        moves=np.array([[0.25, 0, 0], [0.5, 0, 0], [0, 0, 0]], dtype=np.float32),
        tensors=np.zeros((0, 16), dtype=np.int32),
        uses=np.zeros((0, 3), dtype=np.int32),
        codes=np.array([[0, 1, 2], [1, 1, 2]], dtype=np.uint8),
    )
    opcode = np.array([1, 1, 2], dtype=np.uint8)
    graph = replace(make_graph([0, 1], [1, 2]), opcode=opcode, configurations=configurations)
    found = {name: values.tolist() for name, values in properties(graph, np.array([0, 1]), spec).items()}
    assert found == {
        "dot moved": [0.25 + 0.5, 0.5 + 0.5],
        "dot output minor -1": [24, 24 + 24],
        "dot output minor -2": [6, 0],
        "dot input minor -1": [5, 0],
        "reshape output minor -2": [14, 14],  # of three dimensions the second
    }


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_every_configuration_of_a_store_has_properties(tiny_collections: Path, address: str) -> None:
    store = FeatureStore(tiny_collections / "features" / Collection.parse(address).path)
    graph = store.open("valid", store.graphs("valid")[0])
    rows = np.arange(graph.distinct)[::-1]
    found = properties(graph, rows, store.spec)
    assert len(found) > 3
    assert all(values.shape == (graph.distinct,) for values in found.values())
    assert any(" output minor -1" in name or name == "tile[0]" for name in found)
    alone = properties(graph, rows[:1], store.spec)
    assert all(values[0] == alone.get(name, [0])[0] for name, values in found.items())

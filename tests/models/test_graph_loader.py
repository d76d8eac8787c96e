"""Opening a graph checks that its segments fit its features."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hlorank.featurize.feature_store import graph_folder
from hlorank.files import DataError, write_array
from hlorank.models.graph_inputs import GraphLoader

CPU = torch.device("cpu")
COLLECTION = Path("layout/synthetic/random")


@pytest.fixture
def graphs(tiny_collections: Path, tmp_path: Path) -> GraphLoader:
    """The tiny layout collection, with a copy of its segments that a test may damage."""
    shutil.copytree(tiny_collections / "segments" / COLLECTION, tmp_path / "segments")
    return GraphLoader(tiny_collections / "features" / COLLECTION, tmp_path / "segments")


def test_a_cut_is_the_opened_graphs(graphs: GraphLoader) -> None:
    (name, *_) = graphs.store.graphs("train")
    cut, opened = graphs.open_partition("train", name), graphs.open("train", name)
    assert cut is not None
    assert cut.segments == len(opened.segments) > 1
    np.testing.assert_array_equal(cut.segment_of, opened.partition.segment_of)
    assert GraphLoader(graphs.store.root, None).open_partition("train", name) is None


@pytest.mark.parametrize(("key", "rows"), [("segment_of", "nodes"), ("local_codes", "distinct configurations")])
@pytest.mark.parametrize("change", [-1, 1])
def test_segments_that_miss_a_row_are_named(
    key: str, rows: str, change: int, graphs: GraphLoader, tmp_path: Path
) -> None:
    (name, *_) = graphs.store.graphs("train")
    path = graph_folder(tmp_path / "segments", "train", name) / f"{key}.npy"
    whole = np.load(path)
    changed = whole[:-1] if change < 0 else np.concatenate([whole, whole[-1:]])
    write_array(path, changed)
    for read in (graphs.open_partition, graphs.open):
        with pytest.raises(DataError) as caught:
            read("train", name)
        assert str(caught.value) == (
            f"{path.parent}: {key}: expected one row for each of the graph's {len(whole)} {rows}, "
            f"found {len(changed)}; re-run the stage partition"
        )

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hlorank.evaluation.indices import read_indices
from hlorank.files import DataError


def write(folder: Path, content: object) -> Path:
    path = folder / "indices.json"
    path.write_text(json.dumps(content))
    return path


def test_lists_keep_order_and_repeats_and_other_graphs_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [3, 0, 3], "elsewhere": [99]})
    indices = read_indices(path, {"a": 4, "not listed": 2})
    assert indices.keys() == {"a"}
    assert indices["a"].dtype == np.int64
    assert indices["a"].tolist() == [3, 0, 3]


@pytest.mark.parametrize("wrong", [4, -1, 1.0, "1", True, None, [1]])
def test_what_is_no_index_is_named_with_file_graph_and_value(tmp_path: Path, wrong: object) -> None:
    path = write(tmp_path, {"a": [0, wrong]})
    with pytest.raises(DataError) as caught:
        read_indices(path, {"a": 4})
    assert (caught.value.file, caught.value.key, caught.value.found) == (path, "a", wrong)
    assert "0..3" in str(caught.value)


@pytest.mark.parametrize("wrong", [[], {"0": 1}, 7, "0"])
def test_what_is_no_list_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(DataError, match="a: expected a list of configuration indices"):
        read_indices(write(tmp_path, {"a": wrong}), {"a": 4})


def test_a_file_of_another_collection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least one graph of the split valid \(unet\)"):
        read_indices(write(tmp_path, {"bert": [0]}), {"unet": 4})


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a JSON object"):
        read_indices(write(tmp_path, [0, 1]), {"a": 4})


def test_the_published_list_of_unet_3d_in_random_repeats(shared_data: Path) -> None:
    path = shared_data / "eval_indices" / "xla_random.json"
    indices = read_indices(path, {"unet_3d.4x4.bf16": 481})["unet_3d.4x4.bf16"]
    assert (len(indices), len(np.unique(indices))) == (1000, 481)

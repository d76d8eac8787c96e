"""Files of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hlorank.data.collection import Collection
from hlorank.evaluation.scores import read_scores
from hlorank.evaluation.submission import open_submission
from hlorank.files import DataError
from tests.data.npz_files import Arrays, same_folder, save

LAYOUT, TILE = Collection.parse("layout:cpu:random"), Collection.parse("tile:cpu")

finite = arrays(np.float64, st.integers(1, 5), elements=st.floats(allow_nan=False, allow_infinity=False))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["graph,configuration,score", *lines]) + "\n")
    return path


@same_folder
@given(scores=st.dictionaries(st.from_regex(r"[a-z.,\"' ]{1,9}", fullmatch=True), finite, min_size=1, max_size=3))
def test_every_score_is_read_to_the_last_digit(tmp_path: Path, scores: Arrays) -> None:
    lines = []
    for name, values in scores.items():
        quoted = '"' + name.replace('"', '""') + '"'
        lines += [f"{quoted},{index},{value!r}" for index, value in enumerate(values.tolist())]
    found = read_scores(write(tmp_path / "scores.csv", *reversed(lines)), LAYOUT)
    assert {name: values.tolist() for name, values in found.items()} == {n: v.tolist() for n, v in scores.items()}


def test_arrays_of_an_npz_file_are_scores(tmp_path: Path) -> None:
    save(tmp_path / "scores.npz", {"unet.b2": np.array([3, 1, 2]), "mlp": np.array([0.5], dtype=np.float32)})
    found = read_scores(tmp_path / "scores.npz", TILE)
    assert {name: values.tolist() for name, values in found.items()} == {"unet.b2": [3.0, 1.0, 2.0], "mlp": [0.5]}


def test_a_submission_is_read_as_ranks(tmp_path: Path) -> None:
    path = tmp_path / "submission.csv"
    with open_submission(path, LAYOUT) as add:
        add("unet", np.array([2, 0, 1]))
    with path.open("a") as file:
        file.write("layout:xla:random:bert,1;0\n")
    assert {name: scores.tolist() for name, scores in read_scores(path, LAYOUT).items()} == {"unet": [1.0, 2.0, 0.0]}
    with pytest.raises(DataError, match="five tiles"):
        read_scores(path, TILE)


def test_blank_lines_and_a_byte_order_mark_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_bytes(b"\xef\xbb\xbfgraph,configuration,score\r\na,0,1\r\n\r\n")
    assert read_scores(tmp_path / "scores.csv", LAYOUT)["a"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["a,0,1", "a,2,1"], r"a: .*\b2\b.*no 1$"),
        (["a,1,1", "a,2,1"], r"a: .*\b2\b.*no 0$"),
        (["a,0,1", "a,0,2", "a,1,2"], r"a: .*\b1\b.*\b0 twice"),
        (["a,0,1", "a,-1,2"], r"a: .*\b0\b.*-1$"),
        (["a,0,1", "a,1"], "line 3.*a,1"),
        (["a,0,1,2"], "line 2"),
        (["a,0,fast"], "line 2.*fast"),
        (["a,0.5,1"], "line 2"),
        ([f"a,{2**70},1"], "line 2"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, lines: list[str], match: str) -> None:
    with pytest.raises(DataError, match=match):
        read_scores(write(tmp_path / "scores.csv", *lines), LAYOUT)


@pytest.mark.parametrize("content", ["", "ID,Score\n", "graph,score\na,1\n", "\0\1"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "scores.csv").write_text(content)
    with pytest.raises(DataError, match="line 1"):
        read_scores(tmp_path / "scores.csv", LAYOUT)
    (tmp_path / "scores.npz").write_text(content)
    with pytest.raises(DataError, match=r"scores\.npz"):
        read_scores(tmp_path / "scores.npz", LAYOUT)
    with pytest.raises(DataError, match="no such file"):
        read_scores(tmp_path / "absent.csv", LAYOUT)

"""Submissions, and other files of scores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike

from hlorank.data.collection import Collection
from hlorank.evaluation.submission import open_submission, read_scores, read_submission
from hlorank.files import DataError
from tests.data.npz_files import Arrays, same_folder, save

LAYOUT, TILE = Collection.parse("layout:nlp:random"), Collection.parse("tile:xla")
GOOD = "ID,TopConfigs\nlayout:nlp:random:a,2;0;1\ntile:xla:k,7;1;2;3;0\n"
TABLE = "graph,configuration,score\n"

finite = arrays(np.float64, st.integers(1, 5), elements=st.floats(allow_nan=False, allow_infinity=False))


def write(folder: Path, text: str, name: str = "submission.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def submit(path: Path, collection: Collection, *rankings: tuple[str, ArrayLike]) -> None:
    with open_submission(path, collection) as add:
        for graph, ranking in rankings:
            add(graph, np.asarray(ranking))


@pytest.mark.parametrize(
    ("name", "ranking"),
    [*((name, [0, 1]) for name in ("a,b", 'a"b', "a b", "a\nb", "added")), ("a", [0, 0]), ("a", [1, 2]), ("a", [0, 3])],
)
def test_a_row_that_would_break_the_file_leaves_the_old_file(tmp_path: Path, name: str, ranking: list[int]) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(DataError):
        submit(path, LAYOUT, ("added", [0]), (name, ranking))
    assert [(file, file.read_text()) for file in tmp_path.iterdir()] == [(path, GOOD)]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from([LAYOUT, TILE]))
def test_a_written_file_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], seed: int, collection: Collection
) -> None:
    path = tmp_path_factory.mktemp("submission") / "s.csv"
    rng, counts = np.random.default_rng(seed), [*counts, 50_000 if seed < 2**28 else 1]  # longer than a csv field
    rankings = {f"g{i}": rng.permutation(count) for i, count in enumerate(counts)}
    submit(path, collection, *rankings.items())
    kept = 5 if collection.kind == "tile" else None
    read = {row_id: indices.tolist() for row_id, indices in read_submission(path)}
    assert read == {f"{collection}:{graph}": ranking[:kept].tolist() for graph, ranking in rankings.items()}


@same_folder
@given(scores=st.dictionaries(st.from_regex(r"[a-z.,\"' ]{1,9}", fullmatch=True), finite, min_size=1, max_size=3))
def test_every_score_is_read_to_the_last_digit(tmp_path: Path, scores: Arrays) -> None:
    lines = []
    for name, values in scores.items():
        quoted = '"' + name.replace('"', '""') + '"'
        lines += [f"{quoted},{index},{value!r}\n" for index, value in enumerate(values.tolist())]
    found = read_scores(write(tmp_path, TABLE + "".join(reversed(lines))), LAYOUT)
    assert {name: values.tolist() for name, values in found.items()} == {n: v.tolist() for n, v in scores.items()}


def test_tables_with_a_byte_order_mark_arrays_and_submissions_are_scores(tmp_path: Path) -> None:
    save(tmp_path / "scores.npz", {"unet.b2": np.array([3, 1, 2]), "mlp": np.array([0.5], dtype=np.float32)})
    for name, text, expected in (
        ("scores.npz", "", {"unet.b2": [3.0, 1.0, 2.0], "mlp": [0.5]}),
        ("s.csv", "\ufeffgraph,configuration,score\r\na,0,1\r\n\r\n", {"a": [1.0]}),
        ("submission.csv", GOOD, {"a": [1.0, 2.0, 0.0]}),
    ):
        path = write(tmp_path, text, name) if text else tmp_path / name
        assert {graph: scores.tolist() for graph, scores in read_scores(path, LAYOUT).items()} == expected
    for name, complaint in (("submission.csv", "five tiles"), ("absent.csv", "no such file")):
        with pytest.raises(DataError, match=complaint):
            read_scores(tmp_path / name, TILE)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *(
            (GOOD.replace(old, new), named)
            for old, new, named in (
                ("2;0;1", "2;0", r"random:a: .*0\.\.1 once"),
                ("2;0;1", "2;0;0", r"random:a: .*0\.\.2 once"),
                *(("2;0;1", row, "line 2") for row in ("2;0;-1", "2;0;1;", "2;0;" + 20 * "9", "2,0,1", "")),
                ("7;1;2;3;0", "7;1;2;3;0;4", "xla:k: "),
                ("7;1;2;3;0", "7;1;2;3;7", "xla:k: "),
                ("tile:xla:k", "kernel:xla:k", "line 3"),
                ("tile:xla:k,7;1;2;3;0\n", "layout:nlp:random:a,2;0;1\n", "random:a: .*once"),
                ("tile:xla", "\ntile:xla", "line 3"),
            )
        ),
        *(
            (TABLE + rows, named)
            for rows, named in (
                ("a,0,1\na,2,1", r"a: .*\b1\b.* 2$"),
                ("a,1,1\na,2,1", r"a: .*\b0\b.* 1$"),
                ("a,0,1\na,0,2\na,1,2", r"a: .*\b1\b.* 0$"),
                ("a,0,1\na,-1,2", r"a: .*\b0\b.* -1$"),
                ("a,0,1\na,1", "line 3.*a,1"),
                ("a,0,1,2", "line 2"),
                ("a,0,fast", "line 2.*fast"),
                ("a,0.5,1", "line 2"),
                (f"a,{2**70},1", "line 2"),
            )
        ),
        *((content, "line 1") for content in ("", "ID,Score\n", "id,TopConfigs\na,1", "graph,score\na,1\n", "\0\1")),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, content: str, named: str) -> None:
    with pytest.raises(DataError, match=rf"s\.csv: .*{named}"):
        read_scores(write(tmp_path, content, "s.csv"), LAYOUT)
    with pytest.raises(DataError, match=r"s\.npz"):
        read_scores(write(tmp_path, content, "s.npz"), LAYOUT)

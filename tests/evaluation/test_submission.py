"""Submissions, and other files of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hlorank.data.collection import Collection
from hlorank.evaluation.submission import (
    main,
    open_submission,
    read_scores,
    read_submission,
)
from hlorank.files import DataError
from tests.data.npz_files import Arrays, same_folder, save

LAYOUT, TILE = Collection.parse("layout:nlp:random"), Collection.parse("tile:xla")
GOOD = "ID,TopConfigs\nlayout:nlp:random:a,2;0;1\ntile:xla:k,7;1;2;3;0\n"


def write(folder: Path, text: str, name: str = "submission.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rows_hold_all_layouts_or_the_first_five_tiles(tmp_path: Path) -> None:
    for collection, row in ((LAYOUT, b"layout:nlp:random:a,5;1;2;3;0;4\n"), (TILE, b"tile:xla:a,5;1;2;3;0\n")):
        with open_submission(tmp_path / "new" / "s.csv", collection) as add:
            add("a", np.array([5, 1, 2, 3, 0, 4]))
        assert (tmp_path / "new" / "s.csv").read_bytes() == b"ID,TopConfigs\n" + row
    with open_submission(tmp_path / "new" / "s.csv", LAYOUT):
        pass
    assert (tmp_path / "new" / "s.csv").read_text() == "ID,TopConfigs\n", "a header without rows"


def test_an_interrupted_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(ZeroDivisionError), open_submission(path, LAYOUT) as add:
        add("a", np.arange(3 // len([])))
    assert [(file, file.read_text()) for file in tmp_path.iterdir()] == [(path, GOOD)]


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a b", "a\nb"])
def test_a_name_that_would_break_the_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="graph: "), open_submission(tmp_path / "s.csv", LAYOUT) as add:
        add(name, np.arange(2))


@pytest.mark.parametrize("ranking", [[0, 0], [1, 2], [0, 1, 3]])
def test_a_ranking_that_is_no_permutation_is_not_written(tmp_path: Path, ranking: list[int]) -> None:
    with pytest.raises(DataError, match="once"), open_submission(tmp_path / "s.csv", LAYOUT) as add:
        add("a", np.array(ranking))
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from([LAYOUT, TILE]))
def test_a_written_file_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], seed: int, collection: Collection
) -> None:
    path = tmp_path_factory.mktemp("submission") / "s.csv"
    rng, counts = np.random.default_rng(seed), [*counts, 50_000 if seed < 2**28 else 1]  # longer than a csv field
    rankings = {f"g{i}": rng.permutation(count) for i, count in enumerate(counts)}
    with open_submission(path, collection) as add:
        for graph, ranking in rankings.items():
            add(graph, ranking)
    kept = 5 if collection.kind == "tile" else None
    read = {row_id: indices.tolist() for row_id, indices in read_submission(path)}
    assert read == {f"{collection}:{graph}": ranking[:kept].tolist() for graph, ranking in rankings.items()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ID,TopConfigs", "id,TopConfigs", "line 1: expected the header"),
        ("ID,TopConfigs\n", "", "line 1: expected the header"),
        ("2;0;1", "2;0", "expected each of 0..1 once"),
        ("2;0;1", "2;0;0", "expected each of 0..2 once"),
        *(("2;0;1", row, "line 2: expected layout") for row in ("2;0;-1", "2;0;1;", "2;0;" + 20 * "9", "2,0,1", "")),
        ("7;1;2;3;0", "7;1;2;3;0;4", "at most 5 different indices"),
        ("7;1;2;3;0", "7;1;2;3;7", "at most 5 different indices"),
        ("tile:xla:k", "kernel:xla:k", "line 3: expected layout"),
        ("tile:xla:k,7;1;2;3;0\n", "layout:nlp:random:a,2;0;1\n", "line 3: expected each ID once"),
        ("tile:xla", "\ntile:xla", "line 3: expected layout"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(DataError) as caught:
        list(read_submission(path))
    assert message in str(caught.value)
    assert caught.value.file == path


def test_files_of_several_collections_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, layout, tile = GOOD.splitlines(keepends=True)
    files = [write(tmp_path, header + row, f"{i}.csv") for i, row in enumerate((layout, tile))]
    merged = tmp_path / "merged.csv"
    main([str(merged), *map(str, files)])
    assert merged.read_text() == GOOD
    assert [row_id for row_id, _ in read_submission(merged)] == ["layout:nlp:random:a", "tile:xla:k"]
    assert "merged.csv: 2 rows" in capsys.readouterr().out.replace("\n", "")


def test_a_graph_of_two_files_is_refused(tmp_path: Path) -> None:
    files = [write(tmp_path, GOOD, name) for name in ("a.csv", "b.csv")]
    with pytest.raises(DataError, match=r"b\.csv: layout:nlp:random:a: .*a\.csv"):
        main([str(tmp_path / "merged.csv"), *map(str, files)])
    assert not (tmp_path / "merged.csv").exists()


CPU, CPU_TILES = Collection.parse("layout:cpu:random"), Collection.parse("tile:cpu")

finite = arrays(np.float64, st.integers(1, 5), elements=st.floats(allow_nan=False, allow_infinity=False))


def write_table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["graph,configuration,score", *lines]) + "\n")
    return path


@same_folder
@given(scores=st.dictionaries(st.from_regex(r"[a-z.,\"' ]{1,9}", fullmatch=True), finite, min_size=1, max_size=3))
def test_every_score_is_read_to_the_last_digit(tmp_path: Path, scores: Arrays) -> None:
    lines = []
    for name, values in scores.items():
        quoted = '"' + name.replace('"', '""') + '"'
        lines += [f"{quoted},{index},{value!r}" for index, value in enumerate(values.tolist())]
    found = read_scores(write_table(tmp_path / "scores.csv", *reversed(lines)), CPU)
    assert {name: values.tolist() for name, values in found.items()} == {n: v.tolist() for n, v in scores.items()}


def test_arrays_of_an_npz_file_are_scores(tmp_path: Path) -> None:
    save(tmp_path / "scores.npz", {"unet.b2": np.array([3, 1, 2]), "mlp": np.array([0.5], dtype=np.float32)})
    found = read_scores(tmp_path / "scores.npz", CPU_TILES)
    assert {name: values.tolist() for name, values in found.items()} == {"unet.b2": [3.0, 1.0, 2.0], "mlp": [0.5]}


def test_a_submission_is_read_as_ranks(tmp_path: Path) -> None:
    path = tmp_path / "submission.csv"
    with open_submission(path, CPU) as add:
        add("unet", np.array([2, 0, 1]))
    with path.open("a") as file:
        file.write("layout:xla:random:bert,1;0\n")
    assert {name: scores.tolist() for name, scores in read_scores(path, CPU).items()} == {"unet": [1.0, 2.0, 0.0]}
    with pytest.raises(DataError, match="five tiles"):
        read_scores(path, CPU_TILES)


def test_blank_lines_and_a_byte_order_mark_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_bytes(b"\xef\xbb\xbfgraph,configuration,score\r\na,0,1\r\n\r\n")
    assert read_scores(tmp_path / "scores.csv", CPU)["a"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["a,0,1", "a,2,1"], r"a: .*\b1\b.* 2$"),
        (["a,1,1", "a,2,1"], r"a: .*\b0\b.* 1$"),
        (["a,0,1", "a,0,2", "a,1,2"], r"a: .*\b1\b.* 0$"),
        (["a,0,1", "a,-1,2"], r"a: .*\b0\b.* -1$"),
        (["a,0,1", "a,1"], "line 3.*a,1"),
        (["a,0,1,2"], "line 2"),
        (["a,0,fast"], "line 2.*fast"),
        (["a,0.5,1"], "line 2"),
        ([f"a,{2**70},1"], "line 2"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, lines: list[str], match: str) -> None:
    with pytest.raises(DataError, match=match):
        read_scores(write_table(tmp_path / "scores.csv", *lines), CPU)


@pytest.mark.parametrize("content", ["", "ID,Score\n", "graph,score\na,1\n", "\0\1"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "scores.csv").write_text(content)
    with pytest.raises(DataError, match="line 1"):
        read_scores(tmp_path / "scores.csv", CPU)
    (tmp_path / "scores.npz").write_text(content)
    with pytest.raises(DataError, match=r"scores\.npz"):
        read_scores(tmp_path / "scores.npz", CPU)
    with pytest.raises(DataError, match="no such file"):
        read_scores(tmp_path / "absent.csv", CPU)

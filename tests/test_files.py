"""Atomic files, JSON, mapped arrays, fingerprints, and errors with the name of their file."""

import errno
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from hlorank import files


def test_a_data_error_names_file_key_expected_and_found() -> None:
    error = files.DataError("node_feat", "2 rows", 3)
    placed = error.in_file(Path("a.npz"))
    assert f"a.npz: {error}" == str(placed) == "a.npz: node_feat: expected 2 rows, found 3"
    for error in (placed, pickle.loads(pickle.dumps(placed))):
        assert (error.key, error.expected, error.found, error.file) == ("node_feat", "2 rows", 3, Path("a.npz"))


@pytest.mark.parametrize(
    ("address", "redacted"),
    [
        ("http://me:secret@host:5000/a", "http://***@host:5000/a"),
        ("HTTPS://secret@host/a?b=c@d", "HTTPS://***@host/a?b=c@d"),
        ("http://me:se@cret@host", "http://***@host"),
        ("mysql+pymysql://me:s/e?c#r:e@t@host:3306/name", "mysql+pymysql://***@host:3306/name"),
        ("postgresql://:secret@host/name?password=secret&x=1", "postgresql://***@host/name?password=***&x=1"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/home/me/a@b:c@d", "/home/me/a@b:c@d"),
        (
            "https://host/a?X-Amz-Signature=secret&part=1&access_token=secret#x",
            "https://host/a?X-Amz-Signature=***&part=1&access_token=***#x",
        ),
        ("see 'http://me:secret@a', https://me:secret@b/c.", "see 'http://***@a', https://***@b/c."),
    ],
)
def test_credentials_are_redacted(address: str, redacted: str) -> None:
    assert files.redact_credentials(address) == redacted
    assert files.redact_credentials(redacted) == redacted


def test_messages_are_one_printable_line() -> None:
    line = r"Größe\nb\x1b[31m\x00\udcff\u202e http://***@host"
    assert files.one_line("Größe\nb\x1b[31m\x00\udcff\u202e http://me:secret@host") == files.one_line(line) == line
    long = str(files.DataError("x" * 10**6, "y", "\x1b" * 10**6 + "end", file="a.npz"))
    assert len(long) == 500
    assert long.startswith("a.npz: xx")
    assert files.one_line("\x1b" * 1000 + "end").endswith("end")
    assert files.first_line(OSError()) == "OSError", "which has no lines"
    assert files.first_line(ValueError("\na\nb")) == "a"


def test_paths_of_the_configuration_are_portable(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(files.SHARED_VARIABLE, "/some/where")
    monkeypatch.setenv("HOME", "/home/me")
    for path, resolved in {
        "$HLORANK_SHARED/data/x": "/some/where/data/x",
        "$HLORANK_SHARED": "/some/where",
        "$HLORANK_SHARED_NOT/x": "$HLORANK_SHARED_NOT/x",
        "~/x": "/home/me/x",
        "data/x": "data/x",
        "data/sample/x": str(files.bundled("sample") / "x"),
    }.items():
        assert files.resolve_path(path) == files.resolve_path(Path(path)) == Path(resolved)
    Path("data/sample").mkdir(parents=True)
    assert files.resolve_path("data/sample/x") == Path("data/sample/x")
    monkeypatch.setenv(files.SHARED_VARIABLE, "")
    assert files.shared_dir() == Path("../shared")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_an_atomic_file_appears_whole_in_a_new_folder_or_not_at_all(tmp_path: Path, mask: int, mode: int) -> None:
    path, before = tmp_path / "new" / "folder" / "file", os.umask(mask)
    try:
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            assert temporary.parent == path.parent  # the same file system
            assert not path.exists()
        files.write_text(path, "ü")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode

    def fail(file: Any) -> None:
        file.write(b"half of the n")
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        files.write_atomic(path, fail)
    assert path.read_bytes() == "ü".encode()
    assert list(path.parent.iterdir()) == [path]


def test_an_atomic_folder_replaces_the_old_one_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for suffix in ("partial", "old"):  # as a kill leaves them
        (tmp_path / "new" / f".folder.{suffix}").mkdir(parents=True)
        (tmp_path / "new" / f".folder.{suffix}" / "half").touch()
    for name in ("old", "new"):
        with files.atomic_folder(folder) as temporary:
            (temporary / name).write_text(name)
            assert not (folder / name).exists()
    with pytest.raises(UnicodeEncodeError), files.atomic_folder(folder) as temporary:
        (temporary / "newer").write_text("\udcff")  # fails once the file is open
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "new", folder, folder / "new"]


def test_json_has_sorted_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"b": [1, 2.5, None], "a": {"d": "é", "c": True}})
    assert [*files.read_json(path).items()] == [("a", {"c": True, "d": "é"}), ("b", [1, 2.5, None])]
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    assert path.read_text().endswith("}\n")


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe{}", b"[1]", b"", b"[" * 10**5])
def test_broken_json_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(files.DataError, match=r"a\.json: file: expected .*JSON"):
        files.read_json(path)


ROWS = np.arange(6, dtype=np.int16).reshape(2, 3)


def test_texts_that_are_formulas_to_a_spreadsheet_are_quoted_but_numbers() -> None:
    for text in ("=1+1", "+A", "-1+1", "@A", "\t=1", "-", "+1e"):
        assert files.csv_cell(text) == f"'{text}"
    for value in ("-1", "+.5e-3", "-2.", "a=1", "", -1, None):
        assert files.csv_cell(value) is value


@pytest.mark.parametrize("array", [ROWS, ROWS.T, np.zeros((0, 3), dtype=np.float32), np.array(2.5)])
def test_arrays_map_back_read_only_and_truncated_ones_are_refused(tmp_path: Path, array: Any) -> None:
    path = tmp_path / "a.npy"
    files.write_array(path, array)
    mapped = files.map_array(path)
    assert isinstance(mapped, np.memmap)
    assert (mapped.shape, mapped.dtype, mapped.flags.writeable) == (array.shape, array.dtype, False)
    np.testing.assert_array_equal(mapped, array)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(files.DataError, match=r"a\.npy: file: "):
            files.map_array(path)


def test_object_arrays_and_other_files_are_neither_written_nor_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(ValueError, match="allow_pickle"):
        files.write_array(path, np.array([{}], dtype=object))
    assert not path.exists()
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    for number, shape in enumerate([(-1, 3), (2**70,), (2**70, 0), (5,)]):
        with (tmp_path / f"{number}.npy").open("wb") as file:
            npy.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
            file.write(bytes(32))
    for other in (*tmp_path.iterdir(), tmp_path, tmp_path / "none.npy"):
        with pytest.raises(files.DataError, match="file: "):
            files.map_array(other)


def test_errors_name_a_relative_path_not_its_temporary_file(cwd: Path) -> None:
    with pytest.raises(PermissionError) as denied, files.atomic_path(Path("r.html")) as temporary:
        raise PermissionError(errno.EACCES, "Permission denied", str(temporary.absolute()))
    with pytest.raises(OSError, match="is the disk full") as full, files.atomic_path(Path("r.html")):
        raise OSError("3 requested and 0 written")  # as NumPy raises it
    with pytest.raises(OSError, match="No space") as unnamed, files.atomic_path(Path("r.html")):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert denied.value.filename == full.value.filename == unnamed.value.filename == "r.html"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none", tmp_path / ("x" * 300), Path(os.devnull)):
        with pytest.raises(files.DataError, match="file: expected data, found ") as caught:
            files.open_file(path, "data")
        assert caught.value.file == path


def test_fingerprints_depend_on_content_and_not_on_key_order() -> None:
    assert files.fingerprint({"a": 1, "b": [2, "ü"]}) == files.fingerprint({"b": [2, "ü"], "a": 1})
    values = [{"a": 1}, {"a": [1]}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None}]
    assert len({files.fingerprint(value) for value in values}) == len(values)


def test_the_digest_of_code_covers_a_whole_package(tmp_path: Path, make_plugin: Callable[[str, str], None]) -> None:
    make_plugin("other", "")
    make_plugin("mine.inner", "")
    make_plugin("mine", "")

    def digest(*names: str) -> str:
        files.code_digest.cache_clear()
        return files.code_digest(*names)

    before, alone = digest("mine", "other"), digest("other")
    assert digest("mine", "other") == before
    make_plugin("mine.inner", "x = 1\n")
    changed = digest("mine", "other")
    (tmp_path / "plugins/mine/inner").rename(tmp_path / "plugins/mine/moved")
    assert len({before, changed, digest("mine", "other")}) == 3
    assert digest("other") == alone

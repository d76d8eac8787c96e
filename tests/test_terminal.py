"""Tables of any text in terminals, pipes and files of any encoding."""

import os
import sys
from io import BytesIO, TextIOWrapper

import pytest

from hlorank.cli.main import main
from hlorank.files import bundled
from hlorank.terminal import Column, print_table, quiet_pipe


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[red]a[/red] :smile:", "[red]a[/red] :smile:"),
        ("a\x1b[31m\n\t\x00b", r"a\x1b[31m\n\t\x00b"),
        (b"\xff\xc3\xa9.npz".decode(errors="surrogateescape"), r"\udcffé.npz"),
        ("\u202egpj", r"\u202egpj"),
        ("\ud800", r"\ud800"),
    ],
)
def test_names_are_printed_in_one_line_as_they_are(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Column("name")], [[text], text])
    assert lines(capsys)[2:] == [shown, shown]


def test_encodings_without_the_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
    with quiet_pipe():
        print_table([Column("name")], [["é"]])
    assert written.getvalue().splitlines() == [b"name", b"----", rb"\xe9"]


def printed(text: str) -> None:
    with quiet_pipe():
        sys.stdout.write(text)


@pytest.mark.parametrize("text", ["short", "long" * 10_000, None])  # buffered, written at once, of a command
def test_a_reader_that_stops_early_ends_the_process_quietly(
    text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect = ["inspect", str(next(bundled("sample").rglob("*.npz")))]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit, match="141"):
            main(inspect) if text is None else printed(text)
    assert capsys.readouterr().err == ""


def test_columns_are_left_out_by_rank(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("id"), Column("a\nb", 1, number=True), Column("c", 2), Column("empty"), Column("d", detail=True)]
    rows = [["漢字", "1", "c" * 30, "", "d"], ["x", "12", "c", "", "d"]]
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(columns, rows)
    *shown, blank, missing, every = lines(capsys)
    assert shown == ["       a", "id     b  c", "─" * 40, f"漢字   1  {'c' * 30}", "x     12  c"]
    assert (blank, missing, every) == ("", "Not shown: d.", "All columns: --wide")
    monkeypatch.setenv("COLUMNS", "39")
    print_table(columns, rows)
    assert lines(capsys)[3] == "漢字   1"
    print_table([columns[0], Column("wide", 1), Column("thin", 2)], [["x", "y" * 40, "z"]])
    assert lines(capsys)[2] == "x   z"
    monkeypatch.setenv("COLUMNS", "3")
    print_table(columns, rows)
    assert lines(capsys)[2] == "漢字"
    print_table(columns, rows, wide=True)
    assert lines(capsys)[3:] == [f"漢字   1  {'c' * 30}  d", f"x     12  c{' ' * 29}  d"]

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hlorank.evaluation.summary import main, summary_table
from hlorank.files import DataError

LAYOUT = {
    "graphs": 4,
    "skipped": 1,
    "withheld": 0,
    "kendall_tau": 0.51234,
    "repeat_ceiling": 0.93,
    "noise_ceiling": None,
    "opa": 0.75,
    "slowdown_1": 0.1234,
    "slowdown_10": 0.02,
    "slowdown_100": 0.0,
    "kaggle": 0.51234,
}
UNRANKED = {**dict.fromkeys(LAYOUT), "graphs": 0, "skipped": 0, "withheld": 3}
TILE = {
    **{key: value for key, value in LAYOUT.items() if key != "slowdown_100"},
    "noise_ceiling": 0.87,
    "slowdown_5": 0.045,
    "kaggle": 0.955,
}


def write(folder: Path, place: str, metrics: object) -> None:
    path = folder / place / "metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(metrics))


def test_layout_and_tile_rows(tmp_path: Path) -> None:
    write(tmp_path, "tile/xla/full", {"valid": TILE})
    write(
        tmp_path, "layout/xla/random/gst", {"test": UNRANKED, "valid": {**LAYOUT, "indexed": {**LAYOUT, "graphs": 3}}}
    )
    table = summary_table(tmp_path)
    header = "collection,method,split,graphs,left out,Kendall tau,repeat ceiling,noise ceiling,OPA"
    names = [str(column.header).replace("\n", " ") for column in table.columns]
    assert names == [*header.split(","), "slowdown @1", "@5", "@10", "@100", "Kaggle"]
    tau = ["1 skipped", "0.512", "0.930", "unknown", "0.750", "12.34%", "", "2.00%", "0.00%", "0.512"]
    tile = ["1 skipped", "0.512", "0.930", "0.870", "0.750", "12.34%", "4.50%", "2.00%", "", "0.955"]
    assert [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)] == [
        ["layout:xla:random", "gst", "valid", "4", *tau],
        ["layout:xla:random", "gst", "valid, indexed", "3", *tau],
        ["layout:xla:random", "gst", "test", "0", "3 withheld", *[""] * 9],
        ["tile:xla", "full", "valid", "4", *tile],
    ]


def test_the_table_is_printed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write(tmp_path, "layout/xla/random/gst_one", {"valid": LAYOUT})
    main([str(tmp_path)])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "layout:xla:random" in line]
    cells = "layout:xla:random gst_one valid 4 1 skipped 0.512 0.930 unknown 0.750 12.34% 2.00% 0.00% 0.512"
    assert row.split() == cells.split()


def test_other_files_are_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "layout/xla/random/gst", {"valid": LAYOUT})
    write(tmp_path, "segments", {"sizes": 3})
    (tmp_path / "metrics.json").write_text("{}")
    assert summary_table(tmp_path).row_count == 1
    notices = sorted(record.getMessage().partition(": ")[0] for record in caplog.records)
    assert notices == [str(tmp_path / "metrics.json"), str(tmp_path / "segments" / "metrics.json")]


def test_a_folder_without_reports_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "reports")])
    assert caught.value.code == 1
    assert "reports: no metrics.json of a report" in capsys.readouterr().err


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tile" / "xla" / "full" / "metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(DataError, match=r"full/metrics\.json: file: expected valid JSON"):
        summary_table(tmp_path)

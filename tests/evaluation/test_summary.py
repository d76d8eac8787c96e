from __future__ import annotations

import json
from pathlib import Path

import pytest

from hlorank.evaluation.summary import main, summary
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


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines that the command prints, without alignment."""
    main([*arguments])
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]


def test_rows_by_collection_split_and_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "tile/xla/full", {"valid": TILE})
    write(
        tmp_path, "layout/xla/random/gst", {"test": UNRANKED, "valid": {**LAYOUT, "indexed": {**LAYOUT, "graphs": 3}}}
    )
    write(tmp_path, "layout/xla/random/full", {"valid": LAYOUT})
    first, head, _, *rows = printed(capsys, str(tmp_path), "--wide")
    assert first == "Kendall noise slowdown repeat"
    assert head == "method split graphs tau ceiling @1 @5 @10 @100 ceiling OPA Kaggle left out"
    layout = "0.512 unknown 12.34% 2.00% 0.00% 0.930 0.750 0.512 1 skipped"
    assert rows == [
        "layout:xla:random",
        f"full valid 4 {layout}",
        f"gst valid 4 {layout}",
        f"gst valid, indexed 3 {layout}",
        "gst test 0 3 withheld",
        "tile:xla",
        "full valid 4 0.512 0.870 12.34% 4.50% 2.00% 0.930 0.750 0.955 1 skipped",
    ]


def test_experiment_and_single_segments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "layout/xla/random/gst", {"experiment": "kaggle_6", "one_segment": True, "valid": LAYOUT})
    write(tmp_path, "layout/xla/random/full", {"valid": LAYOUT})
    *_, collection, full, gst, _, _ = printed(capsys, str(tmp_path))
    assert collection.startswith("layout:xla:random (gst: ")
    assert full.endswith("1 skipped")
    assert gst.endswith("1 skipped kaggle_6")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "tile/xla/full", {"valid": TILE})
    main([str(tmp_path), "--json"])
    about = {"collection": "tile:xla", "method": "full", "split": "valid", "experiment": None, "one_segment": False}
    assert json.loads(capsys.readouterr().out) == [about | TILE]


def test_other_files_are_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "layout/xla/random/gst", {"valid": LAYOUT})
    write(tmp_path, "segments", {"sizes": 3})
    (tmp_path / "metrics.json").write_text("{}")
    assert len(summary(tmp_path)) == 1
    notices = sorted(record.getMessage().partition(": ")[0] for record in caplog.records)
    assert notices == [str(tmp_path / "metrics.json"), str(tmp_path / "segments" / "metrics.json")]


def test_a_folder_without_reports_and_a_broken_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "reports")])
    assert caught.value.code == 1
    assert "reports: no metrics.json of a report" in capsys.readouterr().err
    write(tmp_path, "tile/xla/full", [])
    with pytest.raises(DataError, match="full/metrics"):
        summary(tmp_path)

import json
from pathlib import Path

import pytest

from hlorank.evaluation.graph_report import metric_names
from hlorank.evaluation.summary import METRIC_COLUMNS, main, summary
from hlorank.files import DataError, write_json

COUNTS = {"graphs": 4, "skipped": 1, "withheld": 0}
LAYOUT = {**COUNTS, "kendall_tau": 0.51234, "repeat_ceiling": 0.93, "noise_ceiling": None, "opa": 0.75}
LAYOUT |= {"slowdown_1": 0.1234, "slowdown_10": 0.02, "slowdown_100": 0.0, "kaggle": 0.51234}
UNRANKED = {**dict.fromkeys(LAYOUT), "graphs": 0, "skipped": 0, "withheld": 3}
TILE = {key: value for key, value in LAYOUT.items() if key != "slowdown_100"}
TILE |= {"noise_ceiling": 0.87, "slowdown_5": 0.045, "kaggle": 0.955}
TILE_ROW = {"collection": "tile:xla", "method": "full", "split": "valid", "experiment": None, "one_segment": False}
TILE_ROW |= {"steps": None, "stale": False}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines that the command prints, without alignment."""
    main([*arguments])
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]


def test_rows_of_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    reports, model = tmp_path / "reports", tmp_path / "models/layout/xla/random/full/spec.json"
    indexed = {"test": UNRANKED, "valid": {**LAYOUT, "indexed": {**LAYOUT, "graphs": 3}}}
    for place, metrics in {
        "tile/xla/full": {"valid": TILE},
        "layout/xla/random/gst": {**indexed, "experiment": "kaggle_6", "one_segment": True},
        "layout/xla/random/full": {"valid": LAYOUT, "model": "a" * 64, "steps": 5},
        "segments": {"sizes": 3},
        ".": {},
    }.items():
        write_json(reports / place / "metrics.json", metrics)
    write_json(model, {"spec_sha256": "a" * 64})
    first, head, _, collection, *rows = printed(capsys, str(reports), "--wide")
    notices = sorted(record.getMessage().partition(": ")[0] for record in caplog.records)
    assert notices == [str(reports / "metrics.json"), str(reports / "segments" / "metrics.json")]
    assert first == "Kendall noise slowdown repeat"
    assert head == "method split graphs tau ceiling @1 @5 @10 @100 ceiling OPA Kaggle steps left out experiment"
    layout = "0.512 unknown 12.34% 2.00% 0.00% 0.930 0.750 0.512"
    assert collection.startswith("layout:xla:random (gst: ")
    assert rows == [
        f"full valid 4 {layout} 5 1 skipped",
        f"gst valid 4 {layout} 1 skipped kaggle_6",
        f"gst valid, indexed 3 {layout} 1 skipped kaggle_6",
        "gst test 0 3 withheld kaggle_6",
        "tile:xla",
        "full valid 4 0.512 0.870 12.34% 4.50% 2.00% 0.930 0.750 0.955 1 skipped",
    ]
    main([str(reports), "--json"])
    assert json.loads(capsys.readouterr().out)[-1] == TILE_ROW | TILE
    write_json(model, {"spec_sha256": "b" * 64})  # such as after `dvc checkout`
    assert [row["stale"] for row in summary(reports)] == [True, *[False] * 4]
    assert printed(capsys, str(reports))[4].startswith("full, ")
    assert printed(capsys, str(reports), "--chart", str(tmp_path / "scores.csv")) == []
    assert (tmp_path / "scores.csv").read_text() == "training,kendall_tau\nxla:random gst,0.512\ntile:xla full,0.512\n"
    assert {*metric_names("layout"), *metric_names("tile")} <= METRIC_COLUMNS.keys(), "all are shown"


def test_no_reports_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "reports")])
    assert caught.value.code == 1
    assert "reports: no metrics.json of a report" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", [[], {"valid": 3}, {"valid": {"graphs": 4}}])
def test_a_damaged_report_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: object
) -> None:
    file = tmp_path / "tile/xla/full/metrics.json"
    write_json(file, damaged)
    with pytest.raises(DataError, match=r"metrics\.json"):
        summary(tmp_path)
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert str(file) in capsys.readouterr().err

"""`hlorank inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hlorank.cli.main import main

Capture = pytest.CaptureFixture[str]


def inspected(path: Path, capsys: Capture) -> list[dict[str, Any]]:
    assert main(["inspect", str(path), "--json"]) == 0
    summaries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return summaries


def test_a_record_and_its_npz_file_have_equal_summaries(record: Path, tmp_path: Path, capsys: Capture) -> None:
    expected = {
        "graph": "record",
        "kind": "layout",
        "nodes": 2,
        "edges": 1,
        "opcodes": 2,
        "configurable_nodes": 1,
        "configurations": 3,
        "distinct": 2,
        "min_runtime_ns": 2_000,
        "max_runtime_ns": 3_000,
    }
    assert inspected(record, capsys) == [expected | {"file": str(record)}]
    main(["convert", str(record), str(tmp_path)])
    capsys.readouterr()
    assert inspected(tmp_path / "record.npz", capsys) == [expected | {"file": str(tmp_path / "record.npz")}]


def test_dumps_have_no_runtimes_and_are_kernels_without_configurable_nodes(
    dump: Path, nothing: Path, capsys: Capture
) -> None:
    (summary,) = inspected(dump, capsys)
    assert (summary["configurable_nodes"], summary["min_runtime_ns"], summary["max_runtime_ns"]) == (1, None, None)
    (summary,) = inspected(nothing, capsys)
    assert (summary["kind"], summary["configurable_nodes"]) == ("tile", 0)


def test_several_files_are_a_table(record: Path, dump: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["inspect", str(record), "none.npz", str(dump)]) == 2
    shown = capsys.readouterr()
    assert "2,000 .. 3,000" in shown.out
    assert "withheld" in shown.out
    assert shown.err.startswith("error: none.npz: ")
    long = record.rename(record.with_name(f"{'n' * 60}.pb"))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(long), str(dump)]) == 0
    head, _, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["graph", "nodes", "configs"]
    assert row.split() == ["n" * 60, "2", "3"]


def test_official_files(shared_data: Path, capsys: Capture) -> None:
    (layout,) = inspected(shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz", capsys)
    counts = ("nodes", "edges", "configurable_nodes", "configurations", "distinct")
    assert [layout[key] for key in counts] == [3_163, 5_112, 62, 1_965, 1_469]
    kernels = inspected(shared_data / "official" / "op_tuning_data.pb", capsys)
    assert len(kernels) == 15
    assert sum(kernel["configurations"] for kernel in kernels) == 752
    assert sum(kernel["distinct"] == 1 for kernel in kernels) == 3
    (tile,) = inspected(shared_data / "tpugraphs/npz/tile/xla/train/retinanet.2x2.fp32_-342c949e14733d96.npz", capsys)
    assert (tile["kind"], tile["configurations"], tile["distinct"]) == ("tile", 2, 1)

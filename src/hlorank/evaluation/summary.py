"""Table of all reports: `python -m hlorank.evaluation.summary [reports folder]`."""

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hlorank.config.root import ADDRESS
from hlorank.data.collection import SPLITS, Collection
from hlorank.files import METRICS, SPEC, DataError, is_of_model, one_line, read_json, write_text
from hlorank.terminal import Column, add_table_options, print_table, quiet_pipe

_log = logging.getLogger(__name__)

_COMMAND = "python -m hlorank.evaluation.summary"
_COUNTS = {"graphs", "skipped", "withheld"}
METRIC_COLUMNS: Mapping[str, Column] = {
    "kendall_tau": Column("Kendall\ntau", number=True),
    "noise_ceiling": Column("noise\nceiling", 2, number=True),
    "slowdown_1": Column("slowdown\n@1", 1, number=True),
    "slowdown_5": Column("\n@5", number=True, detail=True),
    "slowdown_10": Column("\n@10", 3, number=True),
    "slowdown_100": Column("\n@100", number=True, detail=True),
    "repeat_ceiling": Column("repeat\nceiling", number=True, detail=True),
    "opa": Column("OPA", number=True, detail=True),
    "kaggle": Column("Kaggle", number=True, detail=True),
}
_COLUMNS = (
    Column("method"),
    Column("split"),
    Column("graphs", 4, number=True),
    *METRIC_COLUMNS.values(),
    Column("steps", 5, number=True),
    Column("left out", 5),
    Column("experiment", 6),
)


def summary(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of all reports, with a row for each split and protocol, which says if the report is stale."""
    rows = []
    for file in sorted(folder.rglob(METRICS)):
        *address, method = file.relative_to(folder).parent.parts or ("",)
        if ADDRESS.fullmatch("/".join(address)) is None:
            _log.warning("%s: left out, as its folder is not <collection>/<method>", file)
            continue
        report = read_json(file)
        about = {"collection": str(Collection.parse("/".join(address))), "method": method}
        facts = {"experiment": report.get("experiment"), "one_segment": bool(report.get("one_segment"))}
        model = folder.absolute().with_name("models") / file.relative_to(folder).parent
        facts |= {"steps": report.get("steps"), "stale": (model / SPEC).is_file() and not is_of_model(report, model)}
        for split in report.keys() & SPLITS:
            metrics = report[split]
            if not isinstance(metrics, dict) or not metrics.keys() >= _COUNTS:
                expected = f"an object with {', '.join(sorted(_COUNTS))}; run the stage evaluate again"
                raise DataError(split, expected, metrics, file=file)
            parts = ((split, metrics), (f"{split}, indexed", metrics.pop("indexed", None)))
            rows += [{**about, "split": name, **facts, **of} for name, of in parts if of is not None]
    if not rows:
        raise FileNotFoundError(f"{folder}: no metrics.json of a report; the stage evaluate writes them (make repro)")
    order = [name for split in SPLITS for name in (split, f"{split}, indexed")]
    return sorted(rows, key=lambda row: (row["collection"], order.index(row["split"]), row["method"]))


def metric_text(value: float | None, name: str) -> str:
    """Return a metric as tables show it, slowdowns in percent; empty for None."""
    if value is None:
        return ""
    return f"{value:.2%}" if name.startswith("slowdown") else f"{value:.3f}"


def metric_cells(row: Mapping[str, Any], ranked: bool) -> Iterator[str]:
    """Return a cell for each of `METRIC_COLUMNS`; a missing noise ceiling is unknown if anything was ranked."""
    for name in METRIC_COLUMNS:
        yield metric_text(row.get(name), name) or ("unknown" if name == "noise_ceiling" and ranked else "")


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str] | str]:
    """Return the lines of the table; the heading of a collection names the methods that had nothing to sample."""
    for collection, group in groupby(rows, lambda row: str(row["collection"])):
        part = [*group]
        uncut = ", ".join(dict.fromkeys(row["method"] for row in part if row["one_segment"]))
        yield from ("", f"{collection}   ({uncut}: one segment per graph, as in full)" if uncut else collection)
        for row in part:
            metrics = metric_cells(row, row["graphs"] > 0)
            left_out = ", ".join(f"{row[key]} {key}" for key in ("skipped", "withheld") if row[key])
            name, steps = f"  {row['method']}{', of another model' * row['stale']}", f"{row['steps'] or ''}"
            yield (name, row["split"], str(row["graphs"]), *metrics, steps, left_out, row["experiment"] or "")


@quiet_pipe()
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a folder, `reports` by default, or write the data of the chart."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description="Print the metrics of all reports as one table.")
    parser.add_argument("reports", type=Path, nargs="?", default=Path("reports"), help="folder (default: reports)")
    meaning = "write Kendall tau on valid as CSV for dvc.yaml instead"
    parser.add_argument("--chart", type=Path, metavar="FILE", help=meaning)
    add_table_options(parser, "row")
    parsed = parser.parse_args(arguments)
    try:
        rows = summary(parsed.reports)
    except (FileNotFoundError, DataError) as error:
        parser.exit(1, f"error: {one_line(error)}\n")
    if parsed.chart:
        found = [row for row in rows if row["split"] == "valid" and row["kendall_tau"] is not None and not row["stale"]]
        text = "{collection} {method},{kendall_tau:.3f}\n"
        lines = (text.format(**row).removeprefix("layout:") for row in found)
        write_text(parsed.chart, "training,kendall_tau\n" + "".join(lines))
    elif parsed.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        print_table(_COLUMNS, [*_lines(rows)][1:], parsed.wide, f"{_COMMAND} --wide")


if __name__ == "__main__":
    main()

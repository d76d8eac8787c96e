"""Files of measured graphs, with what could not be measured, and their tables for a data card.

`python -m hlorank_collect.record FOLDER` prints the tables of the folder of `hlorank collect` in Markdown.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection, graph_files, sidecar_path, write_graph
from hlorank.data.configurations import MeasuredGraph, Measurements
from hlorank.data.manifest import manifest_of
from hlorank.files import DataError, one_line, read_json, write_json
from hlorank.metrics import noise_ceiling
from hlorank.terminal import quiet_pipe
from hlorank_collect import machine, xla
from hlorank_collect.timing import Float64, runtimes, split_half_tau

LEFT_OUT = "left_out.json"
_TITLES = ("graph", "family", "nodes", "configurable", "configurations", "rounds")
_KEYS = {"graph": "name", "configurable": "configurable_nodes", "configurations": "measured"}


def is_complete(npz: Path, fingerprint: str) -> bool:
    """Return True if npz and JSON file exist and were measured with the settings of this fingerprint."""
    if not npz.exists():
        return False
    try:
        return bool(read_json(sidecar_path(npz)).get("fingerprint") == fingerprint)
    except DataError:
        return False


def write(npz: Path, measured: MeasuredGraph, about: Mapping[str, Any]) -> None:
    """Write npz and JSON file, each atomically, the npz last: where it exists, the graph is complete.

    `is_complete` compares the `fingerprint` of the settings in the JSON file.
    """
    npz.unlink(missing_ok=True)  # an older one would count as complete next to the new JSON file
    write_json(sidecar_path(npz), dict(about))
    write_graph(npz, measured)


def measurements(times: Float64) -> Measurements:
    """Return the runtimes to store, from times (rounds, configurations) in nanoseconds."""
    return Measurements(np.maximum(np.rint(runtimes(times)), 1).astype(np.int64))


def quality(times: Float64) -> dict[str, Any]:
    """Return what the JSON file says about runtimes and noise, from times (rounds, configurations), the default first.

    `split_half_tau` and `noise_ceiling` are None where all runtimes are equal.
    """
    tau = round(split_half_tau(times), 12)
    known = not math.isnan(tau)
    runtime = measurements(times).runtime
    return {
        "rounds": len(times),
        "split_half_tau": tau if known else None,
        "noise_ceiling": noise_ceiling(tau) if known else None,
        "measured": len(runtime),
        "default": 0,
        "runtime_ns": {"default": int(runtime[0]), "best": int(runtime.min()), "worst": int(runtime.max())},
    }


def conditions(platform: xla.Platform, load: float | None = None) -> dict[str, Any]:
    """Return what the JSON file says about runtimes: whether they are measured or estimated, and where.

    `load` is the load average before a measurement; with it, that of now is recorded, too.
    """
    device = xla.device_name(platform)
    if platform in xla.TPUS:
        return {"runtimes": "estimated", "rounds": 1, "device": device, "versions": machine.versions("libtpu")}
    loads = {} if load is None else {"load": {"before": load, "after": os.getloadavg()[0]}}
    known = machine.description() | ({"versions": machine.versions("libtpu")} if platform == "tpu" else {})
    return {"runtimes": "measured", "device": device, **known, **loads}


def read_left_out(root: Path) -> dict[str, dict[str, str]]:
    """Return why programs in the folder of `hlorank collect` were left out, by collection and program."""
    path = root / LEFT_OUT
    if not path.is_file():
        return {}
    collections = read_json(path)
    for collection, reasons in collections.items():
        if not (isinstance(reasons, dict) and all(isinstance(why, str) for why in reasons.values())):
            raise DataError(collection, "reasons by program", reasons, file=path)
    return collections


def record_left_out(root: Path, collection: Collection, program: str, reason: str | None) -> None:
    """Record in one line why a program could not be measured; None removes the reason of a measured program."""
    before = read_left_out(root)
    reasons = {name: why for name, why in before.get(str(collection), {}).items() if name != program}
    if reason is not None:
        reasons[program] = one_line(reason)
    after = {name: others for name, others in {**before, str(collection): reasons}.items() if others}
    if after != before:
        write_json(root / LEFT_OUT, after)


def _collected(root: Path) -> Iterator[tuple[Collection, list[Mapping[str, Any]]]]:
    """Yield the collections in the folder of `hlorank collect`, sorted, with the JSON of each graph."""
    patterns = ("layout/*/*/*.npz", "tile/*/*.npz")  # ** would not follow links to folders
    for folder in sorted({path.parent for pattern in patterns for path in root.glob(pattern)}):
        collection = Collection.parse("/".join(folder.relative_to(root).parts))
        yield collection, [read_json(sidecar_path(path)) for path in graph_files(root, collection, None)]


def _figures(about: Mapping[str, Any]) -> dict[str, float | None]:
    runtime = about["runtime_ns"]
    found = {"max / min": runtime["worst"] / runtime["best"], "default / best": runtime["default"] / runtime["best"]}
    if about.get("runtimes") == "estimated":  # without noise
        return found
    return found | {"split-half tau": about["split_half_tau"], "noise ceiling": about["noise_ceiling"]}


def _row(cells: Iterable[object]) -> str:
    shown = (cell if isinstance(cell, str | int) else f"{cell:.2f}".replace("nan", "unknown") for cell in cells)
    return f"| {' | '.join(map(str, shown))} |\n"


def _table(graphs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one row per graph, at least one, of estimates per family, and a last row of medians."""
    import pandas as pd

    titles, figures = {title: _KEYS.get(title, title) for title in _TITLES}, [*_figures(graphs[0])]
    facts = ({title: about[key] for title, key in titles.items() if key in graphs[0]} for about in graphs)
    rows = pd.DataFrame([{**fact, **_figures(about)} for fact, about in zip(facts, graphs, strict=True)])
    rows[figures] = rows[figures].astype(float)
    last = [f"median of {len(graphs)}", *rows[figures].median()]
    if len(figures) == 2:
        rows = rows.groupby("family").agg({"graph": "count", **dict.fromkeys(figures, "median")}).reset_index()
        rows = rows.rename(columns={"graph": "graphs"})
    last[1:1] = [""] * (len(rows.columns) - len(last))
    return "".join(map(_row, [[*rows.columns], ["---"] * len(rows.columns), *rows.itertuples(index=False), last]))


def card(root: Path) -> str:
    """Return Markdown with a table for each collection of a folder, and below it what was left out and why."""
    tables = {}
    for collection, graphs in _collected(root):
        manifest = manifest_of(collection, graph_files(root, collection, None))
        tables[str(collection)] = (f"Runtimes {manifest}.\n\n" if manifest else "") + _table(graphs)
    reasons = read_left_out(root)
    parts = []
    for name in sorted(tables.keys() | reasons.keys()):
        lines = "".join(f"- {program}: {reason}\n" for program, reason in sorted(reasons.get(name, {}).items()))
        texts = [tables.get(name, ""), f"Left out:\n\n{lines}" if lines else ""]
        parts.append(f"### {name}\n\n" + "\n".join(filter(None, texts)))
    return "\n".join(parts)


@quiet_pipe()
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the card of each collection; the only argument is the folder of `hlorank collect`."""
    parser = argparse.ArgumentParser(description="Print the measured graphs as Markdown tables, and what was left out.")
    parser.add_argument("folder", type=Path, help="the --out of hlorank collect")
    folder = parser.parse_args(arguments).folder
    try:
        found = card(folder)
    except DataError as error:
        parser.exit(1, f"error: {error}\n")
    if not found:
        parser.exit(1, f"error: {folder}: no npz files of a collection, and no {LEFT_OUT}\n")
    sys.stdout.write(found)


if __name__ == "__main__":
    main()

"""Train and judge hlorank and the official baseline on all of TpuGraphs, next to published results (`make tpugraphs`).

Stages of hlorank run in the current folder, one collection after the other: fetch; then, for each system, featurize,
partition where it trains on segments, train and evaluate on valid and test. Finished stages are listed in
tpugraphs/done and not repeated; downloads and trainings that were interrupted continue. Expected hours and disk space
are printed first, and at the end a table of Kendall tau of each graph of valid, with the results of others. Results of
hlorank are written to tpugraphs/results.csv, in the form of benchmarks/results/tpugraphs_published.csv.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hlorank.files import read_json
from hlorank.terminal import min_int

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED, FULL_SIZE = (ROOT / "benchmarks/results" / name for name in ("tpugraphs_published.csv", "full_size.json"))
PLACE = Path("tpugraphs")
LAYOUTS = tuple(f"layout/{source}/{search}" for source in ("xla", "nlp") for search in ("default", "random"))
COLLECTIONS = (*LAYOUTS, "tile/xla")
SYSTEMS = {"best": "best_{}", "pretrained": "best_{}", "official": "official_{}"}
"""Systems, and the names of their experiments for `layout` and `tile`."""
EPOCHS = 50

# Expected times, in CPU seconds of the machine of docs/explanation/speed.md. `FULL_SIZE` has the stages on generated
# collections of the full size, of which a training of the official baselines differs: seconds of a step, measured in
# 20 steps on a tenth of these graphs.
OFFICIAL_STEP = {"layout": 0.13, "tile": 0.05}
GPU_GAIN = 1.8  # of a step of gst on an H200 over one core: benchmarks/results/step_time.json and step_time_cuda.json
RAW_GB, ARCHIVE_GB = 6.0, 4.0  # all files; the largest archive, until it is unpacked


class Cost(NamedTuple):
    """Expected CPU seconds of trainings and of all else, and bytes of features and segments."""

    training: float
    rest: float
    bytes: float


def cost(collection: str, system: str, steps: int) -> Cost:
    """Return the expected cost of a system on a collection, from the stages that were measured."""
    kind, address = collection.partition("/")[0], collection.replace("/", ":")
    name = "best_tile" if kind == "tile" else "gst" if system == "official" else "best_layout"
    rows = [row for row in read_json(FULL_SIZE)["stages"] if (row["collection"], row["training"]) == (address, name)]
    rows = [row for row in rows if row["configurations"] == row["nodes"] == row["graphs"] == 1]
    last = {row["stage"]: row for row in sorted(rows, key=lambda row: -row["steps"])}  # the shortest were the last
    seconds = {row["steps"]: row["cpu_seconds"] for row in rows if row["stage"] == "train"}
    longest, shortest = max(seconds), min(seconds) if len(seconds) > 1 else 0
    step = (seconds[longest] - seconds.get(shortest, 0.0)) / (longest - shortest)
    training = seconds.get(shortest, 0.0) + step * (steps - shortest)
    if system == "official":
        training = OFFICIAL_STEP[kind] * steps
    prepared = [last[stage] for stage in ("featurize", "partition")]
    rest = last["evaluate"]["cpu_seconds"] + sum(row["cpu_seconds"] for row in prepared)
    return Cost(max(training, 0.0), rest, sum(row["bytes"] for row in prepared))


def print_costs(systems: list[str], collections: list[str], steps: int) -> None:
    """Print expected hours on two cores and on a GPU, and disk space."""
    print(f"Expected for {steps:,} steps, computed from measured stages (docs/how-to/reproduce-a-published-system.md):")
    total = Cost(0, 0, 0)
    for system in systems:
        costs = [cost(collection, system, steps) for collection in collections if is_trained(collection, system)]
        summed = Cost(*(sum(values) for values in zip(*costs, strict=True))) if costs else Cost(0, 0, 0)
        total = Cost(*(a + b for a, b in zip(total, summed, strict=True)))
        print(f"  {system:<12} {hours(summed)}, {summed.bytes / 1e9:.1f} GB")
    disk = RAW_GB + ARCHIVE_GB + total.bytes / 1e9
    print(f"  in all       {hours(total)}, and the download; {disk:.0f} GB of disk with {RAW_GB:.0f} GB of raw files")


def hours(expected: Cost) -> str:
    """Return expected hours on two cores with two jobs, and with a GPU for trainings and two cores for all else."""
    two_cores = (expected.training + expected.rest) / 2 / 3600
    gpu = (expected.training / GPU_GAIN + expected.rest / 2) / 3600
    return f"{two_cores:.1f} h on 2 cores with at least 2 jobs, {gpu:.1f} h on 1 GPU"


def is_trained(collection: str, system: str) -> bool:
    """Return whether a system is trained on a collection: weights of layouts are of no use for tiles."""
    return system != "pretrained" or collection in LAYOUTS


def stages(collection: str, system: str, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the arguments of the stages after fetch."""
    kind = collection.partition("/")[0]
    common = [f"collection={collection}", f"experiment={SYSTEMS[system].format(kind)}"]
    common += [f"paths.{name}={PLACE / name / system}" for name in ("features", "segments", "models", "reports")]
    if system == "pretrained":
        common.append(f"paths.pretrained={options.pretrained}")
    length = [f"trainer.max_epochs={min(EPOCHS, options.steps)}", f"trainer.patience={EPOCHS}"]
    length.append(f"trainer.steps_per_epoch={max(1, options.steps // EPOCHS)}")
    yield ["featurize", *common]
    if (system, kind) == ("official", "layout"):
        yield ["partition", *common]
    yield ["train", *common, *length, *options.set]
    indices = Path(options.indices or "", f"{'_'.join(collection.split('/')[1:])}.json")
    listed = [f"evaluate.index_file={indices}"] if options.indices and kind == "layout" else []
    yield ["evaluate", *common, *listed]


class Runner:
    """Stages as processes; finished ones are listed in a file, and not run again."""

    def __init__(self) -> None:
        self._file = PLACE / "done"
        PLACE.mkdir(exist_ok=True)
        paths = [str(ROOT / "src"), str(ROOT / "examples/reproductions"), os.environ.get("PYTHONPATH")]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(self, name: str, commands: Iterator[list[str]]) -> bool:
        """Run the stages of a chain, with their output in a log, until one fails; return whether none did."""
        for stage, *arguments in commands:
            line, log, start = " ".join([stage, *arguments]), PLACE / "logs" / f"{name}.log", time.monotonic()
            if self._file.exists() and line in self._file.read_text().splitlines():
                continue
            log.parent.mkdir(exist_ok=True)
            with log.open("a") as output:
                command = [sys.executable, "-P", "-m", f"hlorank.stages.{stage}", *arguments]
                status = subprocess.call(command, env=self._environment, stdout=output, stderr=output)
            failure = f"; failed: {log} says why, and the same command continues" if status else ""
            print(f"{name}: {stage}, {time.monotonic() - start:.0f} s{failure}", flush=True)
            if status:
                return False
            with self._file.open("a") as done:
                done.write(f"{line}\n")
        return True


def results(systems: list[str]) -> pd.DataFrame:
    """Return the metrics of each graph of valid by collection and system, of all and of the listed configurations."""
    parts = []
    for system in systems:
        for file in sorted((PLACE / "reports" / system).rglob("per_graph.csv")):
            table = pd.read_csv(file).query("split == 'valid'")
            table["collection"] = ":".join(file.relative_to(PLACE / "reports" / system).parts[:-2])
            table["system"] = system + table["protocol"].map({"all": "", "indexed": ", listed"})
            parts.append(table)
    columns = ["collection", "graph", "system", "kendall_tau", "slowdown_1", "slowdown_5", "slowdown_10"]
    return pd.concat(parts)[columns].assign(source="here") if parts else pd.DataFrame(columns=[*columns, "source"])


def print_table(ours: pd.DataFrame) -> None:
    """Print Kendall tau by graph, the means, and slowdowns of tiles, next to the published results."""
    published = pd.read_csv(PUBLISHED)
    for collection in (address.replace("/", ":") for address in COLLECTIONS):
        metric = "slowdown_5" if collection.startswith("tile") else "kendall_tau"
        both = pd.concat([ours, published]).query("collection == @collection")
        graphs = both[both["graph"].notna()].pivot_table(index="graph", columns="system", values=metric, sort=False)
        means = pd.concat([graphs.mean(), both[both["graph"].isna()].set_index("system")[metric]])
        print(f"\n{collection}: {metric} on valid")
        if collection.startswith("layout"):
            print(graphs.to_string(float_format="{:.3f}".format, na_rep=""))
        print("mean: " + ", ".join(f"{system} {value:.3f}" for system, value in means.items()))
    for row in published.query("collection == 'layout'").itertuples():
        print(f"\nMean of the layout collections: {row.system} {row.kendall_tau} ({row.source})")
    print(f"\nSources of published results: {PUBLISHED}; results here: {PLACE / 'results.csv'}")


def main() -> int:
    """Run what is missing, and print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", metavar="ADDRESS", help="data.tpugraphs.base_url: a mirror, or a folder")
    parser.add_argument("--indices", metavar="DIR", help="folder of the paper's lists, xla_default.json and others")
    parser.add_argument(
        "--pretrained", metavar="DIR", help="model of best_layout whose weights are trained further, too"
    )
    parser.add_argument("--steps", type=min_int(1), default=10_000, metavar="N", help="of each network (%(default)s)")
    parser.add_argument("--jobs", type=min_int(1), default=1, metavar="N", help="systems at a time (%(default)s)")
    parser.add_argument("--collections", nargs="+", choices=COLLECTIONS, default=COLLECTIONS, metavar="COLLECTION")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of the trainings")
    parser.add_argument("--show", action="store_true", help="only print what is expected, and the table so far")
    options = parser.parse_args()
    systems, collections = [name for name in SYSTEMS if name != "pretrained" or options.pretrained], options.collections
    print_costs(systems, collections, options.steps)
    failed = 0
    if not options.show:
        runner, source = Runner(), [f"data.tpugraphs.base_url={options.archives}"] if options.archives else []
        fetch = {each: ["fetch", f"collection={each}", "data=tpugraphs", *source] for each in collections}
        fetched = [each for each, command in fetch.items() if runner.run(each.replace("/", "_"), iter([command]))]
        chains = [(system, each) for each in fetched for system in systems if is_trained(each, system)]
        with ThreadPoolExecutor(options.jobs) as pool:
            names = [f"{each.replace('/', '_')}_{system}" for system, each in chains]
            done = pool.map(runner.run, names, [stages(each, system, options) for system, each in chains])
            failed = len(collections) - len(fetched) + [*done].count(False)
    ours = results(systems)
    if len(ours):
        ours.to_csv(PLACE / "results.csv", index=False)
    print_table(ours)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

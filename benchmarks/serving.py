"""Throughput of ranking, in process and over HTTP, for batches of 1 to 1,000 configurations.

A batch is one call of `Ranker.rank` with that many different configurations of one graph, and one request with them as
an npz file. The graph is unet_3d.4x4.bf16 (3,163 nodes) where there is shared data, else the program of the bundled
sample with the most configurations. The model is the default of conf/ after one step of training, as weights do not
change the cost. The server is `hlorank serve`; client and server share the machine, with one thread each.

The calls alternate; a figure is the median of their times, without the first call of each batch size.

The run takes about three minutes, the quick form a minute.

    python benchmarks/serving.py --json benchmarks/results/serving.json
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import experiments  # type: ignore[import-not-found] # same folder
import numpy as np
from command_line import Parser, run  # type: ignore[import-not-found] # same folder

from hlorank.data.collection import Collection, graph_files, read_graph, write_graph
from hlorank.data.graph import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.files import shared_dir, write_json
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import make_request

UNET = Path("data/tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")
COLLECTION = "layout/cpu/random"
SIZES = (1, 3, 10, 30, 100, 300, 1000)
SECONDS = 10.0
STARTING_SECONDS = 120
HEADER = """\
| configurations | `rank`: seconds | configurations a second | server: seconds | configurations a second |
|---|---|---|---|---|"""
ROW = (
    "| {configurations:,} | {rank_seconds:.3f} | {rank_configurations_per_second:,.0f} "
    "| {server_seconds:.3f} | {server_configurations_per_second:,.0f} |"
)


def some_model(work: Path) -> Path:
    """Train a model for one step on the bundled sample and return its folder."""
    short = ("trainer.max_epochs=1", "trainer.steps_per_epoch=1", "trainer.validation_configs=2")
    config = experiments.composed(COLLECTION, short, 0, work)
    experiments.fetch(config)
    experiments.featurize(config)
    experiments.train_model(config, work / "model")
    return work / "model"


def some_graph(work: Path, quick: bool) -> MeasuredGraph:
    """Return a graph with layouts to rank."""
    path = shared_dir() / UNET
    if path.is_file() and not quick:
        return read_graph(path, "layout")
    graphs = (read_graph(path, "layout") for path in graph_files(work / "raw", Collection.parse(COLLECTION), "valid"))
    return max(graphs, key=lambda measured: len(batch(measured, SIZES[-1]).configurations))


def batch(measured: MeasuredGraph, size: int) -> MeasuredGraph:
    """Return the graph with `size` different configurations, or with all if there are fewer."""
    configurations = measured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    _, first = np.unique(configurations.codes, axis=0, return_index=True)
    rows = np.sort(first)[:size]
    taken = LayoutConfigurations(configurations.node_ids, configurations.codebook, configurations.codes[rows])
    return replace(measured, configurations=taken, measurements=Measurements(measured.measurements.runtime[rows]))


@contextmanager
def server(model: Path) -> Iterator[HTTPConnection]:
    """Run a server of a model, and return a connection to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("hlorank")), "serve", "--model", str(model), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with closing(HTTPConnection("127.0.0.1", port)) as connection:
                start = time.monotonic()
                while True:
                    try:
                        connection.request("GET", "/ping")
                        connection.getresponse().read()
                        break
                    except OSError:
                        if process.poll() is not None or time.monotonic() - start > STARTING_SECONDS:
                            raise
                        connection.close()
                        time.sleep(0.5)
                yield connection
        finally:
            process.terminate()


def timed(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median time of each call; the calls alternate, at least three times, for so many seconds."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start = time.perf_counter()
    while len(next(iter(taken.values()))) < 3 or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - before)
    return {name: median(times) for name, times in taken.items()}


def measure(
    ranker: Ranker, connection: HTTPConnection, measured: MeasuredGraph, work: Path, seconds: float
) -> dict[str, Any]:
    """Return the figures of one batch, after a check that both rankings are equal."""
    path = work / f"{measured.name}.npz"
    write_graph(path, measured)
    body = json.dumps(make_request([path], top=len(measured.configurations)))

    def in_process() -> list[int]:
        order: list[int] = ranker.rank(measured.graph, measured.configurations).tolist()
        return order

    def by_server() -> list[int]:
        connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        value = json.load(response)
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {value['message']}")
        return [entry["configuration"] for entry in value["predictions"][0]["top"]]

    assert in_process() == by_server()
    taken = timed({"rank": in_process, "server": by_server}, seconds)
    count = len(measured.configurations)
    return {
        "configurations": count,
        "request_bytes": len(body),
        **{f"{name}_seconds": value for name, value in taken.items()},
        **{f"{name}_configurations_per_second": count / value for name, value in taken.items()},
    }


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a program of the bundled sample, fewer sizes, less time")
    parser.add_json()
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="hlorank-serving-"))
    try:
        folder = some_model(work)
        measured = some_graph(work, arguments.quick)
        print(f"{measured.name}: {measured.graph.nodes:,} nodes\n\n{HEADER}", flush=True)
        results: dict[str, Any] = {"graph": measured.name, "nodes": measured.graph.nodes, "batches": []}
        with server(folder) as connection:
            for size in SIZES[::2] if arguments.quick else SIZES:
                some = batch(measured, size)
                if len(some.configurations) < size:
                    break
                row = measure(Ranker(folder), connection, some, work, 0.5 if arguments.quick else SECONDS)
                results["batches"].append(row)
                print(ROW.format(**row), flush=True)
        if arguments.json:
            write_json(arguments.json, results)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    run(main)

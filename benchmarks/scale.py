"""One graph of NLP size through the pipeline: time, peak resident memory, and bytes a configuration.

Generates a synthetic graph of 20,000 nodes with 800 configurable nodes and 50,000 configurations (2.9 GB as float32),
featurizes it, cuts it, trains on it for 50 steps with gst and scores 2,000 of its configurations. Every step is a
process of its own, so that its peak is its own.

The run takes about 10 minutes, the quick form 30 seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command_line import Parser  # type: ignore[import-not-found] # same folder
from command_line import run as run_command

from hlorank.data.graph import LAYOUT_VALUES
from hlorank.files import write_json

COLLECTION = "layout/synthetic/random"
SCORE = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
from hlorank.models.scoring import score_configurations
from hlorank.models.serialization import load_model
from hlorank.models.graph_loader import GraphLoader

root, collection, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
(model,), _ = load_model(root / "models" / collection / "gst")
graphs = GraphLoader(root / "features" / collection, root / "segments" / collection)
graph = graphs.open("train", graphs.store.graphs("train")[0])
start = time.perf_counter()
scores = score_configurations(model, graph, np.arange(count), 2**28)
assert len(np.unique(scores)) > count // 2
print(json.dumps({"seconds": time.perf_counter() - start, "segments": len(graph.segments)}))
"""


def run(name: str, command: list[str]) -> tuple[dict[str, float], str]:
    """Run one step; returns its seconds and peak resident bytes, and what it printed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{name} failed with exit status {process.returncode}")
    measured = {"seconds": time.perf_counter() - start, "peak_bytes": usage.ru_maxrss * 1024}
    print(f"{name:10} {measured['seconds']:8.1f} s {measured['peak_bytes'] / 2**30:8.2f} GiB peak", flush=True)
    return measured, output


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the nodes, a twenty-fifth of the configurations"
    )
    parser.add_json()
    options = parser.parse_args()
    nodes, configurable, configurations, scored = (2000, 80, 2000, 200) if options.quick else (20000, 800, 50000, 2000)
    figures: dict[str, object] = {"nodes": nodes, "configurable": configurable, "configurations": configurations}

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shared = {
            "collection": COLLECTION,
            "experiment": "synthetic",
            "hydra.run.dir": root / "hydra",
            **{f"paths.{name}": root / name for name in ("raw", "features", "segments", "models", "state")},
        }
        settings = {
            "data.synthetic.train": 1,
            "data.synthetic.valid": 0,
            "data.synthetic.test": 0,
            "data.synthetic.min_nodes": nodes,
            "data.synthetic.max_nodes": nodes,
            "data.synthetic.configurable_nodes": configurable,
            "data.synthetic.configurations": configurations,
            "partition.max_nodes": 1000,
            "trainer.max_epochs": 1,
            "trainer.steps_per_epoch": 50,
            "method": "gst",
            "tracking.uri": f"sqlite:///{root}/mlflow.db",
            "tracking.artifacts": root / "artifacts",
        }
        read = {
            "fetch": ("data.",),
            "featurize": ("featurize.",),
            "partition": ("partition.",),
            "train": ("trainer.", "tracking.", "method"),
        }
        for stage, sections in read.items():
            own = {key: value for key, value in settings.items() if key.startswith(sections)}
            overrides = [f"{key}={value}" for key, value in {**shared, **own}.items()]
            figures[stage], _ = run(stage, [sys.executable, "-m", f"hlorank.stages.{stage}", *overrides])
        figures["score"], printed = run("score", [sys.executable, "-c", SCORE, str(root), COLLECTION, str(scored)])
        entry = json.loads((root / "features" / COLLECTION / "graphs.json").read_text())["splits"]["train"]
        disk = sum(graph["configuration_bytes"] for graph in entry.values()) / configurations

    scoring = json.loads(printed)
    figures |= {
        "disk_bytes_per_configuration": disk,
        "float32_bytes_per_configuration": configurable * LAYOUT_VALUES * 4,
        "segments": scoring["segments"],
        "seconds_per_1000_configurations": scoring["seconds"] / scored * 1000,
    }
    ratio = configurable * LAYOUT_VALUES * 4 / disk
    print(f"{disk:.0f} bytes a configuration on disk, {ratio:.0f} times less than as float32")
    print(
        f"{figures['seconds_per_1000_configurations']:.1f} s to score 1,000 configurations"
        f" of {scoring['segments']} segments"
    )
    if options.json:
        write_json(options.json, figures)


if __name__ == "__main__":
    run_command(main)

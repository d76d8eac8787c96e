"""Training at the largest sizes of TpuGraphs: a graph of 50,000 nodes, 3,000 of them configurable, at width 256.

The stages run as users run them, on a generated graph, each training in a process of its own: bytes and seconds of a
step as MLflow has them, the peak resident memory of the process, or why it is refused. Attention over configurations
needs all configurations of a step at once; without it a step may be computed in parts.

The run takes about three minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
from command_line import Parser, run  # type: ignore[import-not-found] # same folder

from hlorank.files import read_json, write_json


class Case(NamedTuple):
    """A training: its method, the bound of a step's memory in bytes, and whether it has attention."""

    method: str
    memory_bytes: int
    attention: bool = False


CASES = (
    *(Case(method, 10**9) for method in ("gst_e", "gst", "full")),
    *(Case(method, 10**9, attention=True) for method in ("gst", "full")),
    *(Case(method, 2 * 10**8) for method in ("gst_e", "full")),
)
ATTENTION = "model.block=[layer_norm,sage,configuration_attention,gelu,residual]"


def measured(root: Path, stage: str, options: list[str]) -> dict[str, Any]:
    """Run a stage; return its seconds of CPU time and peak resident bytes, or its last line where it fails."""
    command = [sys.executable, "-m", f"hlorank.stages.{stage}", "experiment=synthetic", f"hydra.run.dir={root}/hydra"]
    command += ["collection=layout/synthetic/random", *options]
    command += [f"paths.{name}={root / name}" for name in ("raw", "features", "segments", "models", "state")]
    with (root / "output").open("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = output.read().strip().splitlines()
    if process.returncode:
        return {"refused": lines[-1]}
    return {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_resident_bytes": usage.ru_maxrss * 1024}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the graph, of the width and of the bounds")
    parser.add_json()
    arguments = parser.parse_args()
    part = 10 if arguments.quick else 1
    nodes, configurable, width, steps = 50_000 // part, 3000 // part, 256 // part, 2 if arguments.quick else 3
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        one = {"train": 1, "valid": 0, "test": 0, "min_nodes": nodes, "max_nodes": nodes}
        data = one | {"configurable_nodes": configurable, "configurations": 64}
        for stage, options in (
            ("fetch", [f"data.synthetic.{key}={value}" for key, value in data.items()]),
            ("featurize", ["featurize.prune_hops=null", "compute=serial"]),
            ("partition", [f"partition.max_nodes={1000 // part}", "compute=serial"]),
        ):
            if "refused" in (done := measured(root, stage, options)):
                sys.exit(f"{stage}: {done['refused']}")
        tracking = f"sqlite:///{root}/mlflow.db"
        mlflow.set_tracking_uri(tracking)
        for number, case in enumerate(CASES):
            memory_bytes, output = case.memory_bytes // part**2, root / str(number)
            options = [f"method={case.method}", f"trainer.memory_bytes={memory_bytes}", f"model.width={width}"]
            options += ["model.layout_sizes=false", "model.layout_moves=false"]
            options += ["trainer.configs_per_step=16", "trainer.graphs_per_step=1"]
            options += ["trainer.max_epochs=1", f"trainer.steps_per_epoch={steps}", "trainer.accelerator=cpu"]
            options += [f"tracking.uri={tracking}", f"tracking.artifacts={root}/artifacts", f"output={output}"]
            figures = measured(root, "train", [*options, *[ATTENTION] * case.attention])
            if "refused" not in figures:
                metrics = mlflow.get_run(read_json(output / "run.json")["run_id"]).data.metrics
                figures |= {key: metrics[f"train/{key}"] for key in ("step_memory_bytes", "step_seconds")}
            rows.append({**case._asdict(), "memory_bytes": memory_bytes, **figures})
            print(rows[-1], flush=True)
    if arguments.json:
        write_json(arguments.json, {"nodes": nodes, "configurable": configurable, "width": width, "trainings": rows})


if __name__ == "__main__":
    run(main)

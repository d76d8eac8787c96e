"""CPU time of a training step by groups of operations in torch.profiler.

A step of gst_e with 32 configurations, one segment with gradient and the table warm, on the two graphs of
throughput.py. The shares are of the self time in the profiler; the CPU time of a step is measured without it.

The run takes about a minute, the quick form 20 seconds.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler writes two lines a call to stderr otherwise

import torch
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from step_time import Training, Workload, interleaved, spread, synthetic  # type: ignore[import-not-found] # same folder
from throughput import UNET  # type: ignore[import-not-found] # same folder
from torch.profiler import ProfilerActivity, profile, record_function

from hlorank.data.collection import read_graph
from hlorank.files import shared_dir, write_json

PLAN, RUN = "make the plan", "run the step"
# Parts of the names of operations; the first group with a part that an operation's name has counts it.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "plan": (PLAN,),
        "Python": (RUN,),
        "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
        "sums over neighbours": ("embedding_bag", "Propagate", "_Max"),
        "gelu": ("gelu",),
        "layer normalization": ("layer_norm",),
        "gathers and their gradients": ("index", "embedding", "gather", "scatter"),
        "copies and fills": ("copy", "clone", "aten::cat", "fill", "pad", "contiguous", "zero"),
        "elementwise and reductions": (
            "aten::add", "aten::mul", "aten::sub", "aten::rsub", "aten::div", "aten::sum", "max", "aten::eq", "clamp",
        ),
        "autograd and small operations": ("",),
    }
)  # fmt: skip


def group_of(operation: str) -> str:
    """The group that counts an operation."""
    return next(group for group, parts in GROUPS.items() if any(part in operation for part in parts))


def profiled(name: str, workload: Workload, configurations: int, repeats: int) -> dict[str, Any]:
    """Print and return the CPU time of a step, and the share of each group of operations in it."""
    training = Training(workload, "gst_e", configurations)
    segments = spread(len(workload.graph.segments), 4)
    seconds = interleaved({RUN: training}, segments, repeats)[RUN]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for segment in segments * repeats:
            with record_function(PLAN):
                step = training.plan(segment)
            with record_function(RUN):
                training.run(step)
    times: defaultdict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        times[group_of(event.key)] += event.self_cpu_time_total
    total = sum(times.values())
    shares = {group: times[group] / total for group in sorted(times, key=times.__getitem__, reverse=True)}
    print(f"{name}: {seconds * 1e3:.1f} ms of CPU time a step; the largest costs: {', '.join(list(shares)[:3])}")
    for group, share in shares.items():
        print(f"  {share:6.1%}  {share * seconds * 1e3:6.2f} ms  {group}", flush=True)
    return {"cpu_seconds": seconds, "shares": shares}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="narrow models, a small graph")
    parser.add_json()
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    unet_width, width, nodes, configurations, repeats = (
        (32, 16, 4_000, 8, 3) if arguments.quick else (256, 64, 20_000, 32, 9)
    )
    results: dict[str, Any] = {"configurations": configurations, "repeats": repeats}
    if (path := shared_dir() / UNET).is_file():
        name = f"unet_3d, width {unet_width}"
        results["unet_3d"] = profiled(
            name, Workload.of(read_graph(path, "layout"), unet_width), configurations, repeats
        )
    else:
        print(f"skipped unet_3d: there is no {path}")
    name = f"synthetic, {nodes:,} nodes, width {width}"
    results["synthetic"] = profiled(name, Workload.of(synthetic(nodes, configurations), width), configurations, repeats)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    run(main)

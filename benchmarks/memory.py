"""Memory of one training step against the size of the graph, for each method.

Peak bytes that torch allocates above the resting state (the graph, the model, the table) during forward and backward:
on the CPU the running sum of the allocator's events in torch.profiler, on CUDA its own counter. The step is measured
with the gradient of each segment in turn; the largest peak counts, as it decides what fits.
gst_ef and gst_efd take the steps of gst_e and gst_ed.

The run takes about 15 minutes, the quick form 45 seconds.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler writes two lines a call to stderr otherwise

import torch
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from step_time import Training, Workload, synthetic  # type: ignore[import-not-found] # same folder
from torch.profiler import ProfilerActivity, profile

from hlorank.files import write_json

METHODS = ("gst_one", "gst", "gst_e", "gst_ed", "full")
CONFIGURATIONS, REPEATS, QUICK_SEGMENTS = 8, 3, 5
FORMS = {"dense form": (False, None), "compressed": (True, None), "compressed, at most 4 MiB": (True, 2**22)}
"""Whether equal states are computed once, and `trainer.memory_bytes`."""


def peak_bytes(function: Callable[[], object], device: str) -> int:
    """Return the bytes that a call allocates at its peak, above those allocated before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = sorted((e for e in trace if e["name"] == "[memory]"), key=lambda event: event["ts"])
    return int(max(accumulate(event["args"]["Bytes"] for event in events)))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a narrow model, a few segments, full on small graphs")
    parser.add_json()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    width, full_nodes = (16, 5_000) if arguments.quick else (64, 50_000)
    peaks: dict[str, dict[str, dict[int, list[int]]]] = {form: {name: {} for name in METHODS} for form in FORMS}
    for nodes in (1_000, 5_000, 20_000, 50_000):
        workload = Workload.of(synthetic(nodes, CONFIGURATIONS), width, arguments.device)
        for form, (fast, memory_bytes) in FORMS.items():
            workload.choose_form(fast)
            for method in METHODS:
                if method == "full" and nodes > full_nodes:
                    continue
                training = Training(workload, method, CONFIGURATIONS, memory_bytes)
                segments = len(training.graph.segments)
                count = max(REPEATS, min(segments, QUICK_SEGMENTS) if arguments.quick else segments)
                measured = [i * segments // count for i in range(count)]
                for segment in set(measured):  # what is made once and kept, as a segment's hops, is resting state
                    training(segment)
                found = peaks[form][method][nodes] = []
                for segment in measured:
                    workload.model.zero_grad()  # what is freed during the call would not count
                    found.append(peak_bytes(partial(training, segment), arguments.device))
                print(
                    f"{nodes:6,} nodes, {form}, {method}: {max(found) / 2**20:.1f} MiB at most,"
                    f" {median(found) / 2**20:.1f} in the median",
                    flush=True,
                )
    ratios: dict[str, dict[str, Any]] = {form: {} for form in FORMS}
    for form, methods in peaks.items():
        for method, found_at in methods.items():
            if 50_000 in found_at:
                ratios[form][method] = max(found_at[50_000]) / max(found_at[5_000])
                print(f"{form}, {method}: 50,000 nodes take {ratios[form][method]:.2f} times what 5,000 take")
    if arguments.json:
        figures = {"width": width, "configurations": CONFIGURATIONS, "peak_bytes": peaks, "ratio_50k_5k": ratios}
        write_json(arguments.json, figures)


if __name__ == "__main__":
    run(main)

"""Training steps of best_layout, kaggle_1 and gst_e on a GPU, next to the public form on the same GPU: two minutes.

Of unet3d and a generated graph of 50,000 nodes: configurations a second here, with plans that workers make ahead as in
a training, and in the public form of throughput.py, whose batches are made before; the aim is 5 times as many. `busy`
is the share of the time in which kernels run, `waiting` that in which steps wait for plans. `--device cpu` only checks
the script, with narrow models and 4,000 nodes: no kernels, no peaks of memory, and rates of CPU time, but not waits.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice

import torch
from harness import Parser, run
from step_time import CONFIG, Training, Workload, interleaved, spread, synthetic
from throughput import TRAINED_UNET, PublicForm, against_source
from torch.profiler import ProfilerActivity, profile

from hlorank.compute import find_device
from hlorank.data.collection import read_graph
from hlorank.files import shared_dir
from hlorank.training.step_data import ordered

STEPS, REPEATS = 24, 3


def cases(device: str) -> Iterator[tuple[str, Training, Callable[[int], object]]]:
    """Yield the name of each case, its training steps, and the step of the public form with gradient of a segment."""
    quick = device == "cpu"
    graphs = {"generated": synthetic(4_000 if quick else 50_000, 64)}
    if (path := shared_dir() / TRAINED_UNET).is_file():
        graphs["unet3d"] = read_graph(path, "layout")
    for name, graph in graphs.items():
        for experiment in ("best_layout", "kaggle_1"):
            training, source = against_source(experiment, graph, quick, device)
            yield f"{experiment}, {name}", training, source.step
        workload = Workload.of(graph, 32 if quick else 256, device)
        training, public, inputs = Training(workload, "gst_e", 32), PublicForm(workload.model), workload.graph
        made = {i: public.batch(inputs, inputs.segments[i], training.rows) for i in spread(len(inputs.segments), STEPS)}
        yield f"gst_e, {name}", training, partial(public.step, training, fresh=False, made=made)


def figures(training: Training, public: Callable[[int], object], device: str) -> dict[str, float]:
    """Return the figures of a case."""
    calls, cuda, waits = [*islice(cycle(spread(len(training.graph.segments), STEPS)), STEPS)], device == "cuda", []
    steps = ordered(training.planned, calls * (REPEATS + 3), CONFIG.trainer.worker_count, pin_memory=cuda)
    planned, found = iter(steps), dict[str, float]()

    def step(_: int) -> None:
        start = time.perf_counter()
        plan = next(planned)
        waits.append(time.perf_counter() - start)
        training.run(plan.to(training.model.device))

    for name, function in {"here": step, "public": public}.items():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds = interleaved({name: function}, calls, REPEATS, device)[name]
        found |= {name: len(training.rows) / seconds, f"{name}_bytes": torch.cuda.max_memory_allocated() if cuda else 0}
        found.setdefault("waiting", sum(waits[STEPS:]) / REPEATS / STEPS / seconds)
    if cuda:
        with profile(activities=[ProfilerActivity.CUDA]) as kernels:
            seconds = interleaved({"": step}, calls, 1, device)[""]  # two rounds, of which the second is timed
        events = (event for event in kernels.key_averages() if event.device_type.name == "CUDA")
        found["busy"] = sum(event.self_device_time_total for event in events) / 1e6 / (2 * STEPS * seconds)
    return found | {"ratio": found["here"] / found["public"]}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="(default: cuda)")
    options = parser.parse_args()
    find_device(options.device)  # a ConfigError where there is none
    for name, training, public in cases(options.device):
        shown = (f"{key} {value:,.3g}" for key, value in figures(training, public, options.device).items())
        print(f"{name}: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    run(main)

"""Growth of each stage: CPU time and memory against the nodes of a graph, and against its configurations.

A generated graph is featurized, and partitioned into segments of at most 500 nodes; four steps of `method=gst` are
planned and run, each for a sixteenth of its configurations; all of them are scored, as in evaluate; and its file is
ranked, as by `hlorank rank`. Two cores are two threads of PyTorch; featurize and partition use one core for a graph.

A point has a process of its own, in which a tiny graph comes first: memory is the peak above what is resident then.
Time is the median of three repetitions. Points of the same code are kept; of those that `--again` repeats, as another
process made them slow, the least figures count. Exponents are of least squares, on logarithms, over the upper half of
the sizes. The quick form takes two and a half minutes of CPU time.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from harness import RESULTS, ROOT, Parser, composed, in_processes, prepare_data, run
from matplotlib.figure import Figure
from step_time import Training, Workload, interleaved, spread

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import code_digest, read_json, write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.scoring import load_trained, release_memory
from hlorank.models.serialization import input_sizes, load_model
from hlorank.partition.segment_store import partition_collection
from hlorank.ranking.ranker import Ranker
from hlorank.training.setup import Trained, open_setup

COLLECTION, COLUMNS = Collection.parse("layout/synthetic/random"), ("stage", "nodes", "configurations", "cores")
STAGES = {"featurize": (1,), "partition": (1,), "training": (1, 2), "scoring": (1, 2), "ranking": (1, 2)}
FIGURES, NODES, CONFIGURATIONS, TINY = ("cpu_seconds", "bytes"), 5_000, 200, (300, 32)
SIZES = [(2_500 * 2**i, CONFIGURATIONS) for i in range(6)] + [(NODES, 250 * 2**i) for i in range(8)]


def config_of(work: str, nodes: int, configurations: int) -> Config:
    """Return the configuration of the collection of one graph of a size."""
    size = {"min_nodes": nodes, "max_nodes": nodes, "configurations": configurations, "repeated": 0}
    data = (f"data.synthetic.{key}={value}" for key, value in {**size, "train": 1, "valid": 0, "test": 0}.items())
    settings = (*data, "featurize.prune_hops=null", "partition.max_nodes=500", "method=gst")
    return composed(str(COLLECTION.path), settings, 0, Path(work, f"{nodes}-{configurations}"))


def work_of(stage: str, config: Config) -> Callable[[int], object]:
    """Return a function of what a stage does with a collection; its argument has no meaning."""
    raw, features, models = (Path(folder) for folder in (config.paths.raw, config.paths.features, config.paths.models))
    if stage == "featurize":
        return lambda _: featurize_collection(raw, COLLECTION, config.featurize, Path(mkdtemp(dir=raw)))
    if stage == "partition":
        return lambda _: partition_collection(features / COLLECTION.path, config.partition, Path(mkdtemp(dir=raw)))
    if stage == "ranking":
        (file,), ranker = raw.rglob("*.npz"), Ranker(models, accelerator="cpu")
        return lambda _: ranker.rank_program(file)
    setup = open_setup(config)
    graph = setup.graphs.open("train", setup.train[0])
    if stage == "scoring":
        trained = load_trained(models, config.evaluate.memory_bytes, "cpu")
        return lambda _: trained.score(graph.features, graph.partition)
    ((model,), _), count = load_model(models, torch.device("cpu")), graph.features.distinct // 16
    training = Training(Workload(graph, graph, model), config.method, count, config.trainer.memory_bytes)
    return lambda _: [*map(training, spread(len(graph.segments), 4))]


def measure(point: tuple[str, int, int, int], work: str) -> dict[str, float]:
    """Return the figures of a point, in a process of its own."""
    logging.disable(logging.WARNING)
    (stage, *size, cores), status = point, Path("/proc/self/status")
    torch.set_num_threads(cores)
    config = config_of(work, *size)
    work_of(stage, config_of(work, *TINY))(0)
    release_memory()
    status.with_name("clear_refs").write_text("5")  # the peak becomes what is resident now
    before, function = status.read_text(), work_of(stage, config)
    function(0)
    start, peak = (int(text.split("VmHWM:")[1].split()[0]) * 1024 for text in (before, status.read_text()))
    return {"cpu_seconds": interleaved({"": function}, [0], 3)[""], "bytes": peak - start}


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Write an SVG with a column for each stage, and a row for each axis and figure; print the exponents."""
    kinds, figure = [*product(("nodes", "configurations"), FIGURES)], Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(len(kinds), len(STAGES), sharex="row", sharey="row").ravel()
    for panel, ((axis, name), stage) in zip(panels, product(kinds, STAGES), strict=True):
        of_stage = rows[(rows["stage"] == stage) & ((rows["configurations"] == CONFIGURATIONS) == (axis == "nodes"))]
        for cores, part in of_stage.sort_values(axis).groupby("cores"):
            upper = np.log(part[[axis, name]].tail(max(2, len(part) // 2)))
            exponent = np.polyfit(upper[axis], upper[name], 1)[0]
            panel.loglog(part[axis], part[name], ".-", linewidth=0.8, label=f"{cores}: exponent {exponent:.2f}")
            print(f"{stage}, {cores} cores, {name} against {axis}: exponent {exponent:.2f}")
        panel.set(title=stage, xlabel=axis, ylabel=name if stage == "featurize" else "")
        panel.legend(title="cores", frameon=False)
    with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="only small sizes, and nothing is kept")
    parser.add_argument("--again", type=int, default=2**63, metavar="N", help="repeat points of at least N nodes")
    quick, again = vars(parser.parse_args()).values()
    with TemporaryDirectory() as work:
        results = (Path(work) if quick else RESULTS) / "growth.json"
        figure = (Path(work) if quick else ROOT / "docs/explanation/figures") / "growth.svg"
        code, sizes = code_digest("hlorank")[:16], SIZES[:2] + SIZES[6:8] if quick else SIZES
        points = {(stage, *size, cores) for stage, numbers in STAGES.items() for size in sizes for cores in numbers}
        rows = [row for row in read_json(results)["points"] if row["code"] == code] if results.exists() else []
        known = {tuple(row[name] for name in COLUMNS) for row in rows}
        missing = sorted(point for point in points if point not in known or point[1] >= again)
        for size in [TINY, *sizes] if missing else []:
            prepare_data(config := config_of(work, *size))
            setup = open_setup(config)
            model = CostModel(config.model, input_sizes(setup.graphs.store.spec), config.segments.aggregation)
            Trained([model]).save(Path(config.paths.models), setup.spec)
        for point, figures in in_processes(partial(measure, work=work), missing, 1, str):
            rows.append({**dict(zip(COLUMNS, point, strict=True)), **figures, "code": code})
            write_json(results, {"points": rows})
        draw(pd.DataFrame(rows).groupby([*COLUMNS], as_index=False)[[*FIGURES]].min(), figure)


if __name__ == "__main__":
    run(main)

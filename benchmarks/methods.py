"""The seven training methods: Kendall tau after the same CPU seconds of training, over seeds.

Workloads: generated collections of 12 + 12 + 12 graphs of 2,000 to 20,000 nodes, by either search, in segments of 1,000
nodes (11 a graph, 2 with gradient) and of 220 (about 50, 10 with gradient); the measured collection of models, graphs
of 500 to 5,500 nodes in segments of at most 200; and the real pair, trained on unet3d and ranked on unet_3d.

A step of one method takes up to twenty times as long as that of another. So the seconds of a step are measured first,
and each method takes as many steps as fit into the seconds of the workload: a budget of steps, so that a busy machine
changes no result once it is measured. Every method has the learning rate, of three, with which it validates best after
a quarter of the steps, for a seed of its own. The weights of the best validation are tested, once. "half sampled" has
half as many segments with gradient, "reweight" weighs missing entries.

A finished training is a row of the results and is not repeated, so that a killed run continues. All of it takes about
nine hours of CPU time, the quick form minutes. The committed results, benchmarks/results/methods, and their figures are
of the form of this benchmark at commit 42ca19e, which bounded CPU seconds.

    python benchmarks/methods.py --workload models
    python benchmarks/methods.py --show
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import harness  # type: ignore[import-not-found] # same folder
import pandas as pd
from scipy.stats import t

from hlorank.files import fingerprint
from hlorank.training.methods import METHODS

RATES = (1e-3, 3e-4, 3e-3)
TUNING_SEED, SEEDS, EPOCHS = 100, 5, 10
TIMED = (20, 120)
"""Steps of the two trainings whose difference is the time of a step."""
SHARED = (
    *("featurize.prune_hops=null", "model.layout_sizes=false", "model.layout_costs=false", "loss=hinge"),
    *("trainer.graphs_per_step=1", "trainer.configs_per_step=16", "trainer.weight_decay=1e-4"),
    *("segments.configs_per_graph=64", "trainer.validation_configs=64", "segments.redraw_epochs=1000000"),
    *("segments.finetune_epochs=4", "evaluate.splits=[train,valid,test]"),
)
QUICK = ("model.width=16", "data.synthetic.max_nodes=2500", "partition.max_nodes=100", "segments.sampled=2")
COLUMNS = ["workload", "method", "variant", "seed", "learning_rate", "key", "steps", "cpu_seconds", "valid_tau"]
TAUS = ["train_tau", "test_tau"]


class Workload(NamedTuple):
    """A collection, and how it is cut and trained: the segments with gradient and the CPU seconds of a training."""

    collection: str
    overrides: tuple[str, ...]
    sampled: int
    seconds: float


def _generated(search: str, max_nodes: int, sampled: int, seconds: float) -> Workload:
    size = {"train": 12, "valid": 12, "test": 12}
    overrides: tuple[str, ...] = ("experiment=synthetic", f"partition.max_nodes={max_nodes}")
    overrides += tuple(f"data.synthetic.{split}={count}" for split, count in size.items())
    return Workload(f"layout/synthetic/{search}", overrides, sampled, seconds)


WORKLOADS = {
    "synthetic-default-11": _generated("default", 1000, 2, 100),
    "synthetic-default-50": _generated("default", 220, 10, 200),
    "synthetic-random-11": _generated("random", 1000, 2, 60),
    "synthetic-random-50": _generated("random", 220, 10, 60),
    "models": Workload("layout/cpu/models", ("experiment=models", "partition.max_nodes=200"), 2, 100),
    "unet3d-to-unet_3d": Workload("layout/xla/default", ("partition.max_nodes=1000",), 1, 60),
}
DATA = {"models": ("data=local", "data.local.root=data/models", "data.local.split_file=data/models/split.json")}
ROWS = [(name, "") for name in METHODS] + [("gst_e", "half sampled"), ("gst_e", "reweight"), ("gst_ed", "reweight")]


class Trainings:
    """The trainings of a workload, kept in a CSV file.

    Args:
        name: the workload.
        arguments: results, work, quick.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.workload, self._arguments = name, WORKLOADS[name], arguments
        self._place: Path = arguments.work.resolve() / name
        self._place.mkdir(parents=True, exist_ok=True)
        self._data = harness.prepare_data(self._config("full", "", 0, RATES[0], 1))
        self._seconds: dict[tuple[str, str], float] = {}

    def _config(self, method: str, variant: str, seed: int, rate: float, steps: int, epochs: int = 1) -> Any:
        sampled = self.workload.sampled // 2 if variant == "half sampled" else self.workload.sampled
        own = (f"method={method}", f"trainer.learning_rate={rate}", f"segments.sampled={max(1, sampled)}")
        length = (f"trainer.max_epochs={epochs}", f"trainer.steps_per_epoch={max(1, steps // epochs)}")
        overrides = (*self.workload.overrides, *SHARED, *own, *length, "trainer.patience=1000")
        overrides += (("segments.missing=reweight",) if variant == "reweight" else ()) + (
            QUICK if self._arguments.quick else ()
        )
        data = DATA.get(self.name)
        return harness.composed(self.workload.collection, overrides, seed, self._place, data)

    def steps(self, method: str, variant: str) -> int:
        """Return the steps that a method takes in the seconds of the workload."""
        from hlorank.stages.train import train

        if self._arguments.quick:
            return 2 * EPOCHS
        if (method, variant) not in self._seconds:
            taken = []
            for count in TIMED:
                start = time.process_time()
                train(self._config(method, variant, TUNING_SEED, RATES[0], count), self._place / "timed")
                taken.append(time.process_time() - start)
            self._seconds[method, variant] = (taken[1] - taken[0]) / (TIMED[1] - TIMED[0])
        return max(EPOCHS, round(self.workload.seconds / self._seconds[method, variant]))

    def row(self, method: str, variant: str, seed: int, rate: float, share: float = 1.0) -> dict[str, Any]:
        """Return the row of a training, which is computed unless it is there; `share` of the steps."""
        rows = harness.read_rows(self._arguments.results, COLUMNS + TAUS)
        own = {"workload": self.name, "method": method, "variant": variant, "seed": seed, "learning_rate": rate}
        settings = self._config(method, variant, seed, rate, 1).model_dump(mode="json")
        parts = ("partition", "model", "segments", "loss")
        own["key"] = fingerprint([self._data, share, *(settings[part] for part in parts), self._arguments.quick])
        known = rows[(rows[list(own)].fillna("") == pd.Series(own)).all(axis=1)]
        if not known.empty:
            return dict(known.iloc[-1])
        steps = round(share * self.steps(method, variant))
        config = self._config(method, variant, seed, rate, steps, EPOCHS)
        figures, graphs = harness.train_and_evaluate(config, *(self._place / part for part in ("model", "report")))
        taus = graphs.groupby("split")["kendall_tau"].mean()
        row: dict[str, Any] = own | figures | {f"{split}_tau": taus.get(split) for split in ("train", "test")}
        harness.append_rows(self._arguments.results, [row], COLUMNS + TAUS)
        print(f"{self.name}, {method} {variant}, seed {seed}, rate {rate}: valid {row['valid_tau']}", flush=True)
        return row

    def measure(self, seeds: int) -> None:
        """Choose learning rates, then train seed after seed."""
        rates = dict.fromkeys(ROWS, RATES[0])
        for method, variant in () if self._arguments.quick else ROWS:
            tried = [self.row(method, variant, TUNING_SEED, rate, 0.25) for rate in RATES]
            rates[method, variant] = max(tried, key=lambda row: float(row["valid_tau"] or -1))["learning_rate"]
        for seed in range(seeds):
            for (method, variant), rate in rates.items():
                self.row(method, variant, seed, rate)


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table: means over seeds and half the width of their 95 % interval, by Student's t."""
    lines = ["| workload | method | seeds | rate | valid | test | train tau | steps | CPU s |", "|---" * 9 + "|"]
    for names, part in rows.groupby(["workload", "method", "variant"], sort=False):
        workload, *method = [str(name) for name in names] if isinstance(names, tuple) else [str(names)]
        count = len(part)
        half = t.ppf(0.975, count - 1) * part[["valid_tau", *TAUS]].std() / count**0.5 if count > 1 else None
        cells = [
            "" if pd.isna(value) else f"{value:.3f}" + ("" if half is None else f" ± {half[name]:.3f}")
            for name, value in part[["valid_tau", "test_tau", "train_tau"]].mean().items()
        ]
        rate, steps, seconds = (part[name].mean() for name in ("learning_rate", "steps", "cpu_seconds"))
        shown = [workload, ", ".join(filter(None, method)), str(count), f"{rate:g}", *cells]
        lines.append(f"| {' | '.join([*shown, f'{steps:.0f}', f'{seconds:.0f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = harness.Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, small graphs, a narrow model, 20 steps")
    parser.add_argument(
        "--workload", choices=WORKLOADS, nargs="+", default=[*WORKLOADS], metavar="NAME",
        help=f"some of {', '.join(WORKLOADS)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, default=harness.ROOT / ".hlorank/methods", metavar="FOLDER",
                        help="data and models (default: .hlorank/methods)")  # fmt: skip
    parser.add_argument("--results", type=harness.output_file, default=harness.RESULTS / "methods.csv", metavar="CSV",
                        help="rows (default: benchmarks/results/methods.csv)")  # fmt: skip
    parser.add_argument("--show", action="store_true", help="only show the results")
    arguments = parser.parse_args()
    if not arguments.show:
        for name in arguments.workload:
            Trainings(name, arguments).measure(1 if arguments.quick else SEEDS)
    rows = harness.read_rows(arguments.results, COLUMNS + TAUS).fillna({"variant": ""})
    rows = rows[rows["workload"].isin(arguments.workload) & (rows["seed"] != TUNING_SEED)]
    print(table(rows))


if __name__ == "__main__":
    harness.run(main)

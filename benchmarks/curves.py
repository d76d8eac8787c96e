"""Results of methods.py: kept in a file for each workload, summarized over seeds, and drawn."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import t

from hlorank.files import atomic_path, read_json, write_json
from hlorank.training.methods import METHODS

Run = dict[str, Any]
LABELS = (
    "mean over seeds and half the width of its 95 % interval; *after N* is the best validation tau within the steps "
    "that full takes in all, *long* 10,000 steps"
)
# Line and marker distinguish methods where colours (Okabe and Ito's, for all kinds of vision) do not.
STYLES = {
    "full": ("black", "-", "s"),
    "gst_one": ("#E69F00", ":", "v"),
    "gst": ("#0072B2", "-", "o"),
    "gst_e": ("#D55E00", "-", "^"),
    "gst_ef": ("#D55E00", "-", "P"),
    "gst_ed": ("#009E73", "-.", "D"),
    "gst_efd": ("#009E73", "-", "*"),
    "gst_e, half sampled": ("#CC79A7", "-", "<"),
    "gst_e, reweight": ("#CC79A7", "--", "^"),
    "gst_ed, reweight": ("#56B4E9", "--", "D"),
    "gst_e, long": ("#D55E00", ":", "^"),
    "full, long": ("black", ":", "s"),
    "gst, long": ("#0072B2", ":", "o"),
}
AXES = ("training steps", "CPU seconds of training")
MARKERS = 5  # on a line


class Record:
    """Finished trainings of one workload.

    Args:
        file: JSON file.
        tuning_seed: seed of the trainings that choose learning rates.

    Attributes:
        runs: the key and the figures of each.
    """

    def __init__(self, file: Path, tuning_seed: int) -> None:
        self._file, self._tuning_seed = file, tuning_seed
        self.runs: list[Run] = read_json(file)["runs"] if file.exists() else []

    def holds(self, key: Run) -> bool:
        """Return whether a training is finished."""
        return any(key.items() <= one.items() for one in self.runs)

    def add(self, key: Run, figures: Run) -> None:
        """Add a training in the place of one with other settings; the file is complete at any time."""
        place = {name: value for name, value in key.items() if name != "settings"}
        self.runs = [one for one in self.runs if not place.items() <= one.items()] + [key | figures]
        write_json(self._file, {"runs": self.runs})

    def best_rate(self, method: str, default: float) -> float:
        """Return the learning rate with which a method validates best; the default if none was tried."""
        tried = [one for one in self.runs if one["seed"] == self._tuning_seed and one["method"] == method]
        return max(tried, key=lambda one: one["valid_tau"], default={"learning_rate": default})["learning_rate"]

    def rows(self) -> dict[str, list[Run]]:
        """Return the tested trainings by method and variant, unchanged methods first."""
        rows: dict[str, list[Run]] = {}
        tested = [one for one in self.runs if one["seed"] != self._tuning_seed]
        for variant, method in product(sorted({one["variant"] for one in tested}), METHODS):
            if some := [one for one in tested if (one["variant"], one["method"]) == (variant, method)]:
                rows[", ".join(filter(None, (method, variant)))] = some
        return rows


def interval(values: list[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    return float(t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def table(record: Record) -> str:
    """Return a Markdown table: a row for each method."""
    rows = record.rows()
    reference = [one["steps"] for one in rows.get("full", [])]
    limit = mean(reference) if reference else 0.0

    def cell(values: list[float | None], form: str) -> str:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return ""
        half = interval(known)
        return f"{mean(known):{form}}" + ("" if half is None else f" ± {half:{form}}")

    titles = ["method", "seeds", "learning rate", "valid tau", "test tau", "train tau"]
    titles += [f"after {limit:.0f}", "steps", "CPU s", "ms a step", "MiB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, some in rows.items():
        cells = [cell([one.get(key) for one in some], ".3f") for key in ("valid_tau", "test_tau", "train_tau")]
        within = ((tau for step, _, tau, _ in one["curve"] if step <= limit) for one in some)
        cells.append(cell([max(taus, default=None) for taus in within], ".3f"))
        cells += [f"{mean(one[key] for one in some):.0f}" for key in ("steps", "cpu_seconds")]
        cells.append(f"{mean(1000 * one['cpu_seconds'] / one['steps'] for one in some):.1f}")
        cells.append(f"{mean(one['step_memory_bytes'] for one in some) / 2**20:.1f}")
        rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(one["learning_rate"] for one in some))
        lines.append(f"| `{name}` | {len(some)} | {rates} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _draw_method(axes: Axes, runs: list[Run], name: str, column: int) -> None:
    """Draw the mean over seeds of the validations that all have, in a band from the lowest to the highest."""
    count = min(len(one["curve"]) for one in runs)
    points: NDArray[np.float64] = np.array([one["curve"][:count] for one in runs])
    x, taus = points[:, :, column].mean(axis=0), points[:, :, 2]
    colour, line, marker = STYLES[name]
    axes.fill_between(x, taus.min(axis=0), taus.max(axis=0), color=colour, alpha=0.12, linewidth=0)
    axes.plot(
        x, taus.mean(axis=0), color=colour, linestyle=line, marker=marker, markevery=max(1, count // MARKERS),
        label=f"{name} ({len(runs)})", linewidth=1.5, markersize=6,
    )  # fmt: skip


def draw(record: Record, workload: str, folder: Path) -> None:
    """Write <folder>/methods-<workload>.svg; the same figures give the same bytes."""
    with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for column, (axes, label) in enumerate(zip(panels, AXES, strict=True)):
            for name, runs in record.rows().items():
                if name in STYLES and not name.startswith(("gst_ef", "gst_efd")):
                    _draw_method(axes, runs, name, column)
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("validation Kendall tau")
        panels[1].set_xscale("log")
        panels[1].legend(fontsize=8)
        figure.suptitle(f"{workload}: mean over seeds (their number in parentheses), band from lowest to highest")
        with atomic_path(folder / f"methods-{workload}.svg") as file:
            figure.savefig(file, format="svg", metadata={"Date": None})

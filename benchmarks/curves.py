"""Results of methods.py: kept in two files, summarized over seeds, and drawn."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hlorank.files import atomic_path, read_json, write_json, write_text
from hlorank.training.gst.methods import METHODS

Point = dict[str, float]

# Line and marker distinguish methods where colours (Okabe and Ito's, for all kinds of vision) do not.
STYLES = {
    "full": ("black", "-", "s"),
    "gst_one": ("#E69F00", ":", "v"),
    "gst": ("#0072B2", "-", "o"),
    "gst_e": ("#D55E00", "--", "^"),
    "gst_ef": ("#D55E00", "-", "P"),
    "gst_ed": ("#009E73", "-.", "D"),
    "gst_efd": ("#009E73", "-", "*"),
}
AXES = {"step": "training steps", "cpu_seconds": "CPU seconds of training"}
MARKERS = 5  # on a line


class Record:
    """Finished measurements: figures in a JSON file, and the curves in the CSV file next to it.

    Args:
        file: the JSON file.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.curves_file = file, file.with_suffix(".csv")
        complete = file.exists() and self.curves_file.exists()
        self.runs: list[dict[str, Any]] = read_json(file)["runs"] if complete else []
        self.curves = pd.read_csv(self.curves_file) if complete else pd.DataFrame()

    def holds(self, key: dict[str, Any]) -> bool:
        """Return whether a run is finished."""
        return any(key.items() <= run.items() for run in self.runs)

    def add(self, key: dict[str, Any], figures: dict[str, Any], curve: list[Point]) -> None:
        """Add a run in the place of one with other settings; both files are complete at any time."""
        place = {name: key[name] for name in ("workload", "method", "seed")}
        added = pd.DataFrame([place | point for point in curve])
        if len(self.curves):
            same = (self.curves[list(place)] == list(place.values())).all(axis=1)
            added = pd.concat([self.curves[~same], added])
        self.curves = added
        self.runs = [run for run in self.runs if not place.items() <= run.items()] + [key | figures]
        write_text(self.curves_file, self.curves.round(5).to_csv(index=False))
        write_json(self.file, {"runs": self.runs, "summary": self.summary()})

    def summary(self) -> dict[str, dict[str, Any]]:
        """By workload and method, means and standard deviations over seeds, and CPU seconds against full.

        The ratio is the mean over seeds that both methods have.
        """
        found: dict[str, dict[str, Any]] = {}
        for workload in dict.fromkeys(run["workload"] for run in self.runs):
            here = [run for run in self.runs if run["workload"] == workload]
            full = {run["seed"]: run["cpu_seconds"] for run in here if run["method"] == "full"}
            found[workload] = {}
            for method in METHODS:
                if not (runs := [run for run in here if run["method"] == method]):
                    continue
                figures: dict[str, Any] = {"seeds": sorted(run["seed"] for run in runs)}
                for name in ("valid_tau", "test_tau", "train_tau", "cpu_seconds", "hit_rate", "staleness_steps"):
                    values = [run[name] for run in runs if run[name] is not None]
                    figures[name] = mean(values) if values else None
                    figures[f"{name}_spread"] = stdev(values) if len(values) > 1 else None
                ratios = [full[run["seed"]] / run["cpu_seconds"] for run in runs if run["seed"] in full]
                figures["full_over_cpu_seconds"] = mean(ratios) if ratios else None
                found[workload][method] = figures
        return found


def show(summary: dict[str, dict[str, Any]]) -> None:
    """Print the summary: mean and standard deviation over seeds."""

    def cell(figures: dict[str, Any], name: str, form: str) -> str:
        if figures[name] is None:
            return "-"
        spread = figures.get(f"{name}_spread")
        return format(figures[name], form) + ("" if spread is None else f" ± {spread:{form}}")

    columns = {
        "valid_tau": (".3f", "valid tau"), "test_tau": (".3f", "test tau"), "train_tau": (".3f", "train tau"),
        "cpu_seconds": (".0f", "CPU s"), "full_over_cpu_seconds": (".2f", "full / CPU s"),
        "hit_rate": (".2f", "hit rate"), "staleness_steps": (".0f", "staleness"),
    }  # fmt: skip
    for workload, methods in summary.items():
        print(f"\n{workload}\n{'method':8} seeds" + "".join(f"{title:>17}" for _, title in columns.values()))
        for method, figures in methods.items():
            cells = "".join(f"{cell(figures, name, form):>17}" for name, (form, _) in columns.items())
            print(f"{method:8} {len(figures['seeds']):5}{cells}")


def _draw_method(axes: Axes, curves: pd.DataFrame, method: str, x: str) -> None:
    """The mean over seeds, in a band from the lowest to the highest; of finetuning only where it leads."""
    points = curves.groupby("step").agg(
        x=(x, "mean"), mean=("valid_tau", "mean"), low=("valid_tau", "min"), high=("valid_tau", "max")
    )
    points["x"] = points.index if x == "step" else points["x"]
    colour, line, marker = STYLES[method]
    if METHODS[method].finetune_head:
        points = points.iloc[-2:]
        end = points.iloc[-1]
        axes.vlines(end["x"], end["low"], end["high"], color=colour, linewidth=1)
        markevery = slice(1, None)
    else:
        axes.fill_between(points["x"], points["low"], points["high"], color=colour, alpha=0.12, linewidth=0)
        markevery = slice(None, None, max(1, len(points) // MARKERS))
    axes.plot(
        points["x"], points["mean"], color=colour, linestyle=line, marker=marker, markevery=markevery, label=method,
        linewidth=1.5, markersize=6,
    )  # fmt: skip


def draw(curves_file: Path, folder: Path) -> None:
    """Write <folder>/methods-<workload>.svg; the same figures give the same bytes.

    Args:
        curves_file: CSV with workload, method, seed, step, cpu_seconds and valid_tau.
        folder: where the plots go.
    """
    everything = pd.read_csv(curves_file)
    for workload, curves in everything.groupby("workload", sort=False):
        with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none", "font.size": 9}):
            figure = Figure(figsize=(10, 4.2), layout="constrained")
            panels = figure.subplots(1, 2, sharey=True)
            for axes, (x, label) in zip(panels, AXES.items(), strict=True):
                for method in METHODS:
                    if len(found := curves[curves["method"] == method]):
                        _draw_method(axes, found, method, x)
                axes.set_xlabel(label)
                axes.grid(alpha=0.3)
            panels[0].set_ylabel("validation Kendall tau")
            panels[1].set_xscale("log")
            panels[1].legend(fontsize=8)
            seeds = curves["seed"].nunique()
            figure.suptitle(f"{workload}: mean over {seeds} seeds, band from lowest to highest")
            with atomic_path(folder / f"methods-{workload}.svg") as file:
                figure.savefig(file, format="svg", metadata={"Date": None})

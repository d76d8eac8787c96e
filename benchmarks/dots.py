"""Plot of the results of quality.py: a panel per collection, a row per experiment, a dot per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from hlorank.files import atomic_path

# Splits also differ in shape and fill, for readers who cannot distinguish the colours (of Okabe and Ito).
_SPLITS = {"valid": ("#0072B2", "o", "none"), "test": ("#D55E00", "D", "#D55E00")}
_COLUMNS = 2  # panels per line


def draw(rows: Sequence[dict[str, Any]], splits: Sequence[str], path: Path) -> None:
    """Write an SVG of Kendall tau; equal rows give equal bytes.

    Args:
        rows: with collection, experiment, and <split>/kendall_tau and <split>/noise_ceiling, empty where unknown.
        splits: the drawn splits.
        path: of the SVG.
    """
    collections = list(dict.fromkeys(row["collection"] for row in rows))
    names = {
        place: dict.fromkeys(row["experiment"] for row in rows if row["collection"] == place) for place in collections
    }
    with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none", "font.size": 9}):
        height = 1.0 + 0.24 * max(map(len, names.values()))
        columns = min(len(collections), _COLUMNS)
        lines = math.ceil(len(collections) / columns)
        figure = Figure(figsize=(4.6 * columns, height * lines), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes in panels[len(collections) :]:
            axes.remove()
        for axes, collection in zip(panels, collections, strict=False):
            for split in splits:
                colour, marker, fill = _SPLITS[split]
                for y, name in enumerate(names[collection]):
                    here = [row for row in rows if (row["collection"], row["experiment"]) == (collection, name)]
                    taus = [float(row[f"{split}/kendall_tau"]) for row in here if row[f"{split}/kendall_tau"]]
                    if not taus:
                        continue
                    axes.plot(
                        taus, [y] * len(taus), linestyle="none", marker=marker, color=colour, markerfacecolor=fill,
                        markersize=4, label=split if y == 0 else None,
                    )  # fmt: skip
                    axes.plot([mean(taus)], [y], linestyle="none", marker="|", color=colour, markersize=13)
                    ceilings = [float(row[ceiling]) for row in here if row.get(ceiling := f"{split}/noise_ceiling")]
                    if ceilings and y == 0:
                        axes.axvline(ceilings[0], color=colour, linestyle=":", linewidth=1)
            axes.set_yticks(range(len(names[collection])), names[collection])
            axes.invert_yaxis()
            axes.set_title(collection, fontsize=9)
            axes.set_xlabel("Kendall tau; dotted: noise ceiling")
            axes.grid(axis="x", alpha=0.3)
        panels[0].legend(fontsize=8)
        with atomic_path(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})

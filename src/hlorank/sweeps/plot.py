"""A sweep as parallel coordinates: an axis for each varied key, a line for each training."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from hlorank.sweeps.table import TAU

_LOG_RATIO = 50.0  # numbers that span more than this are drawn on a logarithmic axis
_TICK_DISTANCE = 0.05  # of an axis, between labels that can be read
_LONGEST = 24  # characters of a category


class Axis(NamedTuple):
    """One vertical axis.

    Attributes:
        name: the key.
        places: of each training, 0 (bottom) to 1.
        ticks: place and label.
    """

    name: str
    places: list[float]
    ticks: list[tuple[float, str]]


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if all(map(math.isfinite, found)) else None


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def make_axis(name: str, values: Sequence[str]) -> Axis:
    """Places values on an axis: numbers by size, logarithmic where they span much; others at equal distances."""
    labels = sorted(set(values))
    numbers = _numbers(values)
    if numbers is None:
        step = 1 / max(len(labels) - 1, 1)
        place = {label: 0.5 if len(labels) == 1 else number * step for number, label in enumerate(labels)}
        return Axis(name, [place[value] for value in values], [(place[label], _short(label)) for label in labels])
    low, high = min(numbers), max(numbers)
    logarithmic = low > 0 and high / low > _LOG_RATIO
    scaled = [math.log(number) for number in numbers] if logarithmic else numbers
    bottom, top = min(scaled), max(scaled)
    places = [(value - bottom) / (top - bottom) if top > bottom else 0.5 for value in scaled]
    distinct = sorted(set(zip(places, numbers, strict=True)))
    if all(upper[0] - lower[0] >= _TICK_DISTANCE for lower, upper in pairwise(distinct)):
        ticks = [(place, f"{number:.3g}") for place, number in distinct]
    else:
        marks = [(share, bottom + share * (top - bottom)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        ticks = [(share, f"{math.exp(mark) if logarithmic else mark:.3g}") for share, mark in marks]
    return Axis(name + (" (log)" if logarithmic else ""), places, ticks)


def parallel_coordinates(table: pd.DataFrame) -> str:
    """The finished trainings of a sweep as SVG text; lines are darker, and drawn above others, with a larger tau.

    Args:
        table: of the jobs, as `job_table` makes it, at least one of them with a result.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    finished = table[table[TAU].notna()].sort_values(TAU)
    inputs = [key for key in table.columns[: list(table.columns).index(TAU)] if finished[key].nunique() > 1]
    axes = [make_axis(key, [str(value) for value in finished[key]]) for key in inputs]
    axes.append(make_axis("validation Kendall tau", [f"{value:.4f}" for value in finished[TAU]]))
    figure = Figure(figsize=(2.0 + 1.9 * len(axes), 4.8), layout="constrained")
    plot = figure.add_subplot()
    colors = mpl.colormaps["viridis_r"]
    for row in range(len(finished)):
        share = 0.15 + 0.85 * axes[-1].places[row]  # the palest of the colors can't be seen on white
        plot.plot([axis.places[row] for axis in axes], color=colors(share), linewidth=1 + share, alpha=0.8)
    for number, axis in enumerate(axes):
        plot.axvline(number, color="0.4", linewidth=0.8)
        for place, label in axis.ticks:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
            plot.annotate(label, (number, place), (4, 0), textcoords="offset points", va="center", size=9, bbox=box)
    plot.set_xticks(range(len(axes)), [axis.name for axis in axes], size=10)
    plot.set_yticks([])
    plot.set_xlim(-0.1, len(axes) - 0.4)
    plot.spines[:].set_visible(False)
    svg = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "hlorank", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()

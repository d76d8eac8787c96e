"""The charts of a report: Vega-Lite specifications with their data inside, drawn as static SVG.

Colours are the variables --c0 to --c6 of the page's style sheet, Okabe and Ito's palette for readers without colour
vision, with one shade for light and one for dark pages; each colour comes with a shape or a dash of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hlorank import files
from hlorank.evaluation.report.groups import Cost, Group, Score

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

COLOURS = 7
# The symbols s0 to s5 of the page. With 7 colours and 6 shapes, consecutive numbers differ in both, and no two of 42
# agree in both.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4])
MEBIBYTE = 2**20

_WIDTH, _HEIGHT = 360, 220
_TAU = "Kendall tau"
_INK = "currentColor"  # the text colour of the page, light or dark
_FONT = "system-ui, sans-serif"
_TEXT = {"labelColor": _INK, "titleColor": _INK, "labelFont": _FONT, "titleFont": _FONT, "labelFontSize": 12}
_CONFIG = {
    "background": "transparent",
    "padding": 10,  # room for fonts wider than the one with which the size of a chart is computed
    "axis": {
        **_TEXT,
        "titleFontSize": 12,
        "titleFontWeight": 600,
        "domainColor": _INK,
        "tickColor": _INK,
        "gridColor": _INK,
        "gridOpacity": 0.15,
    },
    "legend": {**_TEXT, "symbolSize": 90},
    "view": {"stroke": None},
}
_MARK = re.compile(r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*)/>')
_GEOMETRY = re.compile(r' (?:d|transform)="[^"]*"')
_UNUSUAL = re.compile(r"[^\t\n -~]+")  # any but the printable characters of ASCII
_DECIMALS = re.compile(r"(?<=\.\d)\d+")


def escape(text: str) -> str:
    """Replace unprintable characters of a text, except tabs and newlines, by their codes."""
    return _UNUSUAL.sub(lambda found: files.escape(found[0]), text)


def _escaped(value: Any) -> Any:
    """Return a specification with `escape` applied to its texts."""
    match value:
        case str():
            return escape(value)
        case Mapping():
            return {key: _escaped(one) for key, one in value.items()}
        case list() | tuple():
            return [_escaped(one) for one in value]
    return value


def draw_chart(spec: Spec) -> Markup:
    """Return a chart as SVG text, which needs neither scripts nor a network.

    Labels of points become titles, which browsers show as tooltips, and coordinates are rounded to a tenth of a pixel:
    both make charts of many points smaller.
    """
    import vl_convert

    svg = vl_convert.vegalite_to_svg(_escaped(spec), config=_CONFIG)  # which aborts the process at a NUL
    svg = _MARK.sub(r"<path\2><title>\1</title></path>", svg)
    return Markup(_GEOMETRY.sub(lambda geometry: _DECIMALS.sub("", geometry[0]), svg))  # noqa: S704 - Vega escapes text


def _spec(description: str, values: Rows, height: int = _HEIGHT, **rest: Any) -> Spec:
    """Return a specification with its data."""
    return {"description": description, "data": {"values": values}, "width": _WIDTH, "height": height, **rest}


def _number(field: str, title: str, values: Sequence[float], wide: bool = False, **axis: Any) -> Spec:
    """Return the encoding of a number, on a scale of these values, with 0 only if it is one of them.

    Args:
        field: field of the data.
        title: title of the axis.
        values: values that the scale must contain.
        wide: use a logarithmic scale if the values differ by more than ten times.
        axis: further properties of the axis.
    """
    low, high = min(values), max(values)
    log = wide and 0 < 10 * low < high
    edge = (high - low) * 0.06 or abs(high) * 0.1 or 1
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": [low / 1.3, high * 1.3], "nice": False}
        if log
        else {"domain": [low - edge, high + edge], "nice": False},
        "axis": {"tickCount": 5, "labelOverlap": True, **({"format": "~s"} if high >= 1e4 else {}), **axis},
    }


def _style(groups: Sequence[Group], channels: Mapping[str, Sequence[Any]]) -> Spec:
    """Return encodings that distinguish groups, with one legend for all channels."""
    styles = {group.label: group.style for group in groups}
    return {
        channel: {
            "field": "group",
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(styles), "range": [marks[style % len(marks)] for style in styles.values()]},
            "legend": {"orient": "bottom", "columns": 2, "labelLimit": 320},
        }
        for channel, marks in channels.items()
    }


def colour(style: int) -> str:
    """Return the CSS colour of a group or a segment."""
    return f"var(--c{style % COLOURS})"


_PALETTE = [colour(style) for style in range(COLOURS)]
_POINTS: Mapping[str, Sequence[Any]] = {"color": _PALETTE, "shape": SHAPES}
_LINES: Mapping[str, Sequence[Any]] = {"color": _PALETTE, "strokeDash": DASHES}


def intervals(split: str, pairs: Sequence[tuple[Group, Score]]) -> Spec:
    """Return Kendall tau of each group: the mean, its interval over graphs, the runs, and the noise ceiling."""
    values: Rows = [
        {
            "group": group.label,
            "tau": tau.mean,
            "low": tau.low,
            "high": tau.high,
            "ceiling": score.noise_ceiling,
            "runs": tau.runs if len(tau.runs) > 1 else [],
        }
        for group, score in pairs
        if (tau := score.estimates.get("kendall_tau")) is not None
    ]
    row = {"field": "group", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 160}}
    ends = ("tau", "low", "high", "ceiling")
    across = _number(
        "tau", f"{_TAU}, {split}", [value[end] for value in values for end in ends if value[end] is not None]
    )
    styles = _style([group for group, _ in pairs], _POINTS)
    styles = {channel: {**style, "legend": None} for channel, style in styles.items()}
    return _spec(
        f"{_TAU} of each method on {split}, with intervals over graphs",
        values,
        height=44 * len(values),
        encoding={"y": row},
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 3},
                "encoding": {"x": {**across, "field": "low"}, "x2": {"field": "high"}, "color": styles["color"]},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {"x": across, **styles},
            },
            {
                "transform": [{"flatten": ["runs"], "as": ["run"]}],
                "mark": {"type": "tick", "thickness": 1.5, "size": 12, "yOffset": 12},
                "encoding": {"x": {**across, "field": "run"}, "color": styles["color"]},
            },
            {
                "mark": {"type": "tick", "thickness": 2, "size": 30, "strokeDash": [3, 2], "color": _INK},
                "encoding": {"x": {**across, "field": "ceiling"}},
            },
        ],
    )


def predicted(group: Group, values: Rows) -> Spec:
    """Return predicted against measured rank, each point labelled with its graph (in a line of its own)."""
    diagonal = [{"measured": 0, "predicted": 0}, {"measured": 1, "predicted": 1}]
    x, y = (_number(rank, f"{rank} rank", [0, 1]) for rank in ("measured", "predicted"))
    return _spec(
        f"Predicted against measured rank of {group.label}: 0 is the fastest configuration of a graph, 1 the slowest",
        values,
        layer=[
            {
                "data": {"values": diagonal},
                "mark": {"type": "line", "aria": False, "strokeDash": [4, 3], "color": _INK, "opacity": 0.6},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {
                    "type": "point",
                    "filled": True,
                    "shape": SHAPES[group.style % len(SHAPES)],
                    "color": colour(group.style),
                    "size": 22,
                    "opacity": 0.55,
                },
                "encoding": {"x": x, "y": y, "description": {"field": "label"}},
            },
        ],
    )


def curves(groups: Sequence[Group], column: str, title: str, epoch: str) -> Spec:
    """Return a column of the histories over epochs, a line for each run and member."""
    values: Rows = [
        {
            "group": group.label,
            "run": f"{run.place} {row['member']:.0f}",
            "epoch": row["epoch"],
            "value": row[column],
        }
        for group in groups
        for run in group.runs
        for row in run.history
        if row[column] is not None
    ]
    styles = _style(groups, {**_LINES, "shape": SHAPES})
    return _spec(
        f"{title} by {epoch}",
        values,
        mark={"type": "line", "point": {"size": 45, "filled": True}},
        encoding={
            "x": _number("epoch", epoch, [value["epoch"] for value in values], tickMinStep=1),
            "y": _number("value", title, [value["value"] for value in values]),
            "detail": {"field": "run"},
            **styles,
        },
    )


def against_cost(pairs: Sequence[tuple[Group, float, float]], cost: str, split: str) -> Spec:
    """Return Kendall tau of each group against a cost; `pairs` contains cost and tau."""
    values: Rows = [{"group": group.label, "cost": spent, "tau": tau} for group, spent, tau in pairs]
    return _spec(
        f"{_TAU} on {split} of each method against {cost}",
        values,
        mark={"type": "point", "filled": True, "size": 130, "opacity": 1},
        encoding={
            "x": _number("cost", cost, [value["cost"] for value in values], wide=True),
            "y": _number("tau", f"{_TAU}, {split}", [value["tau"] for value in values]),
            **_style([group for group, _, _ in pairs], _POINTS),
        },
    )


def memory(rows: Sequence[tuple[Group, Cost, int]]) -> Spec:
    """Return the memory of a training step against the nodes of the largest graph of train."""
    values: Rows = [
        {
            "group": group.label,
            "collection": str(group.collection),
            "nodes": nodes,
            "mebibytes": cost.step_memory_bytes / MEBIBYTE,
        }
        for group, cost, nodes in rows
        if cost.step_memory_bytes is not None
    ]
    return _spec(
        "Memory of a training step against the nodes of the largest graph",
        values,
        mark={"type": "point", "filled": True, "size": 130, "opacity": 0.9},
        encoding={
            "x": _number(
                "nodes", "nodes of the largest graph of train", [value["nodes"] for value in values], wide=True
            ),
            "y": _number("mebibytes", "memory of a step (MiB)", [0, *(value["mebibytes"] for value in values)]),
            **_style([group for group, _, _ in rows], _POINTS),
        },
    )

"""The charts of a report: Altair's specifications with their data inside, drawn as static SVG.

Colours are the variables --c0 to --c6 of the page's style sheet, Okabe and Ito's palette for readers without colour
vision, with one shade for light and one for dark pages; each colour comes with a shape or a dash of its own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from hlorank import files
from hlorank.evaluation.graph_report import Row
from hlorank.evaluation.report.tables import Group, SplitScores

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
Values = list[Row]

COLOURS = 7
# The symbols s0 to s5 of the page. With 7 colours and 6 shapes, consecutive numbers differ in both, and no two of 42
# agree in both.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4])

_TAU = "Kendall tau"
_INK = "currentColor"  # the text colour of the page, light or dark
_FONT = "system-ui, sans-serif"
_TEXT = {"labelColor": _INK, "titleColor": _INK, "labelFont": _FONT, "titleFont": _FONT, "labelFontSize": 12}
_LINES = {"domainColor": _INK, "tickColor": _INK, "gridColor": _INK, "gridOpacity": 0.15}
_CONFIG = {
    "background": "transparent",
    "padding": 10,  # room for fonts wider than the one with which the size of a chart is computed
    "axis": {**_TEXT, **_LINES, "titleFontSize": 12, "titleFontWeight": 600},
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
    if isinstance(value, Mapping):
        return {key: _escaped(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(part) for part in value]
    return escape(value) if isinstance(value, str) else value


def draw_chart(chart: Chart) -> str:
    """Return a chart as SVG text; titles for labels and rounded coordinates make charts of many points smaller."""
    import vl_convert

    spec = _escaped({**chart.to_dict(), "config": _CONFIG})  # a NUL would abort the process
    svg = _MARK.sub(r"<path\2><title>\1</title></path>", vl_convert.vegalite_to_svg(spec))
    return _GEOMETRY.sub(lambda geometry: _DECIMALS.sub("", geometry[0]), svg)


def _chart(values: Values, description: str, height: int = 220) -> alt.Chart:
    return alt.Chart(alt.InlineData(values), description=description, width=360, height=height)


def _scale(values: Sequence[float], wide: bool = False) -> dict[str, Any]:
    """Return scale and axis of numbers, with 0 only if it is one of them; logarithmic if wide and over ten times."""
    low, high = min(values), max(values)
    edge = (high - low) * 0.06 or abs(high) * 0.1 or 1
    if wide and 0 < 10 * low < high:
        scale = alt.Scale(type="log", domain=[low / 1.3, high * 1.3], nice=False)
    else:
        scale = alt.Scale(domain=[low - edge, high + edge], nice=False)
    shown = "~s" if high >= 1e4 else alt.Undefined
    return {"scale": scale, "axis": alt.Axis(tickCount=5, labelOverlap=True, format=shown)}


def _style(groups: Sequence[Group], **channels: Sequence[Any]) -> dict[str, Any]:
    """Return encodings that distinguish groups, with one legend for all channels."""
    styles = {group.label: group.style for group in groups}
    kinds = {"color": alt.Color, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    return {
        channel: kinds[channel](
            "group:N",
            title=None,
            scale=alt.Scale(domain=[*styles], range=[marks[style % len(marks)] for style in styles.values()]),
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=320),
        )
        for channel, marks in channels.items()
    }


def colour(style: int) -> str:
    """Return the CSS colour of a group."""
    return f"var(--c{style % COLOURS})"


_PALETTE = [colour(style) for style in range(COLOURS)]


def intervals(split: str, pairs: Sequence[tuple[Group, SplitScores]]) -> Chart:
    """Return Kendall tau of each group: the mean, its interval over graphs, the runs, and the noise ceiling."""
    values: Values = [
        {"group": group.label, "tau": tau.mean, "low": tau.low, "high": tau.high, "ceiling": score.noise_ceiling}
        | {"runs": [*tau.runs] if len(tau.runs) > 1 else []}
        for group, score in pairs
        if (tau := score.tau) is not None
    ]
    ends = [value[end] for value in values for end in ("tau", "low", "high", "ceiling") if value[end] is not None]
    across, title = _scale(ends), f"{_TAU}, {split}"
    styles = _style([group for group, _ in pairs], color=_PALETTE, shape=SHAPES)
    styles = {channel: style.legend(None) for channel, style in styles.items()}
    description = f"{_TAU} of each method on {split}, with intervals over graphs"
    base = _chart(values, description, 44 * len(values)).encode(
        y=alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=160))
    )
    places = {name: alt.X(f"{name}:Q", title=title, **across) for name in ("low", "tau", "run", "ceiling")}
    return alt.layer(
        base.mark_rule(strokeWidth=3).encode(x=places["low"], x2="high", color=styles["color"]),
        base.mark_point(filled=True, size=110, opacity=1).encode(x=places["tau"], **styles),
        base.transform_flatten(["runs"], as_=["run"])
        .mark_tick(thickness=1.5, size=12, yOffset=12)
        .encode(x=places["run"], color=styles["color"]),
        base.mark_tick(thickness=2, size=30, color=_INK).encode(x=places["ceiling"]),
        description=description,
    )


def _plane(values: Values, about: str, x: str, y: str, wide: bool = False) -> alt.Chart:
    """Return a chart of the values `x` and `y`, with the titles of their axes."""
    scales = _scale([value["x"] for value in values], wide), _scale([value["y"] for value in values])
    encoded: alt.Chart = _chart(values, about).encode(
        x=alt.X("x:Q", title=x, **scales[0]), y=alt.Y("y:Q", title=y, **scales[1])
    )
    return encoded


def predicted(group: Group, points: Sequence[Row]) -> Chart:
    """Return predicted against measured rank of rows of predictions.csv, labelled with graph and configuration."""
    about = f"Predicted against measured rank of {group.label}: 0 is a graph's fastest configuration, 1 the slowest"
    values: Values = [
        {
            "label": f"{point['graph']}\n{point['split']}, configuration {point['configuration']:.0f}",
            "x": point["measured_rank"],
            "y": point["predicted_rank"],
        }
        for point in points
    ]
    diagonal = _plane([{"x": end, "y": end} for end in (0, 1)], about, "measured rank", "predicted rank")
    shape, fill = SHAPES[group.style % len(SHAPES)], colour(group.style)
    return alt.layer(
        diagonal.mark_line(aria=False, strokeDash=[4, 3], color=_INK, opacity=0.6),
        diagonal.properties(data=alt.InlineData(values))
        .mark_point(filled=True, shape=shape, color=fill, size=22, opacity=0.55)
        .encode(description="label:N"),
        description=about,
    )


def curves(groups: Sequence[Group], column: str, title: str, epoch: str) -> Chart:
    """Return a column of the histories over epochs, a line for each run and member."""
    values: Values = [
        {"group": group.label, "run": f"{run.place} {member:.0f}", "x": number, "y": value}
        for group in groups
        for run in group.runs
        if len(run.history)
        for member, number, value in run.history[["member", "epoch", column]].dropna().itertuples(index=False)
    ]
    plane = _plane(values, f"{title} by {epoch}", epoch, title)
    plane.encoding.x.axis.tickMinStep = 1
    chart: alt.Chart = plane.mark_line(point=alt.OverlayMarkDef(size=45, filled=True)).encode(
        detail="run:N", **_style(groups, color=_PALETTE, strokeDash=DASHES, shape=SHAPES)
    )
    return chart


def against_cost(points: Sequence[tuple[Group, float, float]], cost: str, result: str, about: str) -> Chart:
    """Return a result of each group against a cost; `points` contains cost and result."""
    values: Values = [{"group": group.label, "x": spent, "y": found} for group, spent, found in points]
    chart: alt.Chart = (
        _plane(values, about, cost, result, wide=True)
        .mark_point(filled=True, size=130, opacity=0.9)
        .encode(**_style([group for group, _, _ in points], color=_PALETTE, shape=SHAPES))
    )
    return chart

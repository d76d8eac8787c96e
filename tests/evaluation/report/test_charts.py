from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from hlorank.evaluation.report import charts
from hlorank.evaluation.report.tables import Group, group_runs, scores
from hlorank.evaluation.report.trainings import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def groups(make_run: MakeRun) -> list[Group]:
    runs = [make_run("gst", 0), make_run("gst", 1, {"a": 0.6, "b": 0.8}), make_run("full", 0), make_run("random", None)]
    (found,) = group_runs(runs).values()
    return found


def spec_of(chart: charts.Chart) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return spec


def test_colour_comes_with_a_shape_or_a_dash(groups: list[Group]) -> None:
    points = [(group, 10.0 + group.style, 0.5) for group in groups]
    curves = charts.curves(groups, "train_loss", "loss", "epoch")
    for chart in (curves, charts.against_cost(points, "seconds", "Kendall tau", "costs")):
        encoding = spec_of(chart)["encoding"]
        assert encoding["color"]["scale"]["domain"] == ["gst", "full", "random"]
        assert encoding["color"]["scale"]["range"] == ["var(--c0)", "var(--c1)", "var(--c2)"]
        for other in encoding.keys() & {"shape", "strokeDash"}:
            marks = encoding[other]["scale"]["range"]
            assert all(marks[i] != marks[j] for i in range(3) for j in range(i))


def test_intervals_hold_means_runs_and_ceilings(groups: list[Group]) -> None:
    spec = spec_of(charts.intervals("valid", [(group, score) for group in groups for score in scores(group)]))
    (values,) = spec["datasets"].values()
    first, second, _ = values
    assert (first["tau"], first["runs"], first["ceiling"]) == (pytest.approx(0.65), [0.6, pytest.approx(0.7)], 0.9)
    assert second["runs"] == [], "a single run has no spread"
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.5
    assert high > 0.9


@pytest.mark.parametrize(("spent", "log"), [((1.0, 100.0), True), ((10.0, 20.0), False), ((0.0, 100.0), False)])
def test_costs_that_differ_widely_get_a_logarithmic_axis(
    groups: list[Group], spent: tuple[float, float], log: bool
) -> None:
    points = [(group, value, 0.5) for group, value in zip(groups, spent, strict=False)]
    encoding = spec_of(charts.against_cost(points, "x", "y", "about"))["encoding"]
    scale = encoding["x"]["scale"]
    assert (scale.get("type") == "log") == log
    assert scale["domain"][0] < min(spent)
    assert max(spent) < scale["domain"][1]
    assert encoding["y"]["scale"]["domain"] == pytest.approx([0.45, 0.55]), "around a single value"


def test_a_drawn_chart_is_one_svg_with_titles_that_stay_text(groups: list[Group]) -> None:
    label = "</svg><script>alert(1)</script>\"'&\nvalid, configuration 3"
    spec = charts.predicted(groups[0], [{"label": label, "measured": 0.125, "predicted": 0.25}])
    svg = ElementTree.fromstring(charts.draw_chart(spec))
    assert [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")] == [label]
    assert not [tag for tag in svg.iter() if tag.tag.endswith(("script", "image", "a", "style"))]
    assert not [tag for tag in svg.iter() if "id" in tag.attrib], "ids of several charts would collide"
    assert "var(--c0)" in {tag.get("fill") for tag in svg.iter()}, "the colours of the page"

"""Text, charts and safety of a report."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hlorank.config import ConfigError
from hlorank.evaluation.graph_report import Row
from hlorank.evaluation.report import charts
from hlorank.evaluation.report.tables import Group, group_runs, scores
from hlorank.evaluation.report.trainings import Run, records
from hlorank.evaluation.report.write_report import MAX_BYTES, write_report
from tests.evaluation.conftest import graph_row, training

EVIL = "</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """Text, scripts and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.scripts, self.texts = html, list[str](), list[str]()
        self.attributes: list[tuple[str, str, str]] = []
        self._inside = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def charts(self) -> int:
        return self.html.count('<div class="chart"')


def written(runs: Sequence[Run], folder: Path) -> Page:
    write_report(runs, folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def seeds(method: str, *taus: float) -> list[Run]:
    return [training(method, seed, {"a": tau}) for seed, tau in enumerate(taus)]


def on_two_splits(method: str, valid: float, test: float) -> Run:
    return training(method, per_graph=[graph_row("b", test, "test"), graph_row("a", valid)])


def effect(name: str, value: float, split: str = "valid", agreeing: float = 4.0, graphs: float = 9.0) -> Row:
    counts = {"families": 4.0, "agreeing": agreeing, "graphs": graphs}
    return {"split": split, "property": name, "effect": value, **counts}


COMPARED = [training("gst", 0), training("gst", 1, {"a": 0.6, "b": 0.8}), training("full", 0)]
EMPTY = training(seed=None, per_graph=[], predictions=[], history=[])
SHORT = training(seed=0, spec={"steps": 1_600})
SHORT = replace(SHORT, history=SHORT.history[:1], tracked=replace(SHORT.tracked, metrics={"train/step_seconds": 0.03}))  # type: ignore[type-var] # it is tracked
PARTLY = training("gst", 1, {"a": 0.5})
PARTLY = replace(PARTLY, per_graph=PARTLY.per_graph.assign(slowdown_10=float("nan")))
UNMEASURED = training(per_graph=[graph_row("a", 0.5, ceiling=None)])
FAMILIES = [
    graph_row("a", 0.8, family="bert"),
    graph_row("b", 0.2, family="unet"),
    graph_row("c", 0.6, family="unet", ceiling=None),
    graph_row("d", None, family="unet"),
    graph_row("e", 0.5, "test", family="vit"),
    graph_row("b", 0.1, family="unet", protocol="indexed"),
]
OLD_ROW = {key: value for key, value in FAMILIES[0].items() if not key.startswith(("wrong", "family", "noise_w"))}
EFFECTS = [
    *(effect("small", 0.05), effect("slower", 0.3), effect("faster", -0.4), effect("of two graphs", 0.9, graphs=2)),
    *(effect("disputed", 0.8, agreeing=3), effect("of test", 0.9, "test")),
    *(effect(f"weak {number}", 0.11) for number in range(9)),
]
FACTS: dict[str, tuple[list[Run], list[str]]] = {
    "scores and provenance": (
        COMPARED,
        [
            *("Report of 3 runs", "layout:cpu:random", "0.650 0.550 to 0.750 ± 0.071 over seeds 0.900", "d" * 16),
            *("c0ffee", "model.width", "not different length", "not one segment"),
        ],
    ),
    "costs, and lengths as ranges": (
        [
            *(SHORT, training(seed=1, spec={"steps": 3_200}), training("full", None, history=[])),
            training("trees", spec={"settings": {"iterations": 300}, "steps": 19}),
        ],
        ["gst 1 to 2 epochs, 1,600 to 3,200 steps 54.2 0.02 62,685 700 full", f"full{4 * ' unknown'} trees 54.2"],
    ),
    "families, the worst first": (
        [training(per_graph=FAMILIES)],
        [
            f"all families gst valid 3 0.533 unknown 23.3%{5 * ' unknown'} 4.00% 2.00%"
            f" unet gst valid 2 0.400 unknown 30.0%{5 * ' unknown'} 4.00% 2.00%"
            f" bert gst valid 1 0.800 0.900 10.0%{4 * ' 2.5%'} 1.0% 4.00% 2.00%"
            f" all families gst test 1 0.500 0.900 25.0%{4 * ' 6.2%'} 1.0% 4.00% 2.00% vit gst test 1"
        ],
    ),
    "the largest effects on which families agree": (
        [training(seed=seed, properties=EFFECTS) for seed in (0, 1)],
        [
            "faster faster than ranked gst valid -0.40 explains 16 % 4 9 slower slower than ranked gst valid +0.30",
            *("weak 5", "not weak 6", "not small", "not disputed", "not of two graphs", "not of test"),
        ],
    ),
    "a report of an earlier version": ([training(per_graph=[OLD_ROW], properties=[])], ["0.800", "No errors"]),
    "no properties": ([training(properties=[])], ["No property of configurations tells more than the scores"]),
    "runs with different evaluations": (
        [training("gst", 0), PARTLY, training("gst", 2, per_graph=[])],
        [
            *("1 graph, 1 left out, 3 seeds, 2 of 3 runs evaluated", "1.00% 1 of 2 runs", "1 of 3 runs"),
            "gst, seed 2, models/gst/2: Kendall tau 0.625",  # as its training measured it
        ],
    ),
    "a run that cannot be scored": (
        [training(), training("full", per_graph=[], unscored="weights.safetensors: none")],
        ["full, seed 0, models/full/0: Kendall tau 0.625", "weights.safetensors: none"],
    ),
    "lengths and single segments": (
        [training("full"), training("gst_one", spec={"steps": 50}, one_segment=True)],
        ["different length", "2 epochs, 50 steps", "one segment: equals full"],
    ),
    "missing parts": (
        [EMPTY],
        [
            *("No run was evaluated", "No predictions", "No graph was evaluated", "No history of more than one epoch"),
            "The memory of a step is not recorded for these runs",
            "Without the MLflow run of the training",
        ],
    ),
    "the best on valid": (
        [on_two_splits("full", 0.5, 0.9), on_two_splits("gst", 0.75, 0.25)],
        [
            "Best: gst, Kendall tau 0.750 on valid Noise ceiling 0.900. 0.250 above full (0.500); with one run each",
            "On test: 0.250, noise ceiling 0.900.",
        ],
    ),
    "noise": (
        [*seeds("gst", 0.5, 0.7), *seeds("full", 0.4, 0.4)],
        ["0.200 above full (0.400), 1.4 times the standard deviation over seeds (0.141): within noise."],
    ),
    "no noise": (
        [*seeds("gst", 0.59, 0.61), *seeds("full", 0.4, 0.4)],
        ["0.200 above full (0.400), 14.1 times the standard deviation over seeds (0.014)."],
    ),
    "seeds that agree": ([*seeds("gst", 0.5, 0.5), *seeds("full", 0.4, 0.4)], ["; equal for all seeds."]),
    "equal methods": (seeds("full", 0.5) + seeds("gst", 0.5), ["random full and gst, Kendall tau 0.500", "not Best:"]),
    "equal methods above another": (
        [*seeds("full", 0.5), *seeds("gst", 0.5), *seeds("random", 0.0)],
        ["Best: full and gst, Kendall tau 0.500 on valid", "0.500 above random"],
    ),
    "unknown ceiling": ([UNMEASURED], ["gst, Kendall tau 0.500 on valid Noise ceiling unknown.", "not Best"]),
    "other graphs": (
        [UNMEASURED, training(seed=1, per_graph=[]), training("full", taus={"a": 0.1, "b": 0.2})],
        ["Best of the evaluated runs: gst", "0.350 above full (0.150), which ranked other graphs."],
    ),
}


@pytest.mark.parametrize(("runs", "facts"), FACTS.values(), ids=FACTS)
def test_facts_are_shown(tmp_path: Path, runs: list[Run], facts: list[str]) -> None:
    page = written(runs, tmp_path)
    assert [fact for fact in facts if (fact.removeprefix("not ") in page.text) == fact.startswith("not ")] == []


def test_charts_show_what_is_known(tmp_path: Path) -> None:
    parts = "intervals, predictions of two methods, two curves, three costs, memory"
    assert written(COMPARED, tmp_path).charts == 1 + 2 + 2 + 3 + 1, parts
    assert written([EMPTY], tmp_path).charts == 0
    unknown = training(seed=None, per_graph=[graph_row("a", 0.5, ceiling=None)])
    assert written([unknown], tmp_path).text.count("unknown") >= 6, "seeds, ceilings and costs"


def test_names_are_always_text(tmp_path: Path) -> None:
    run = training(EVIL, place=EVIL, taus={EVIL: 0.5, "b": 0.4}, settings={EVIL: EVIL})
    page = written([run, training(EVIL, 1, settings={EVIL: "other"})], tmp_path)
    assert EVIL not in page.html
    assert len(page.scripts) == 1
    assert ("img", "src", "x") not in page.attributes
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert EVIL in page.text, "as the label of a chart"
    evil = "a\x00b\x1b[31m\x9b\u202etxt\ud800"
    page = written([training(evil, place=evil, taus={evil[:-1]: 0.5, "b": 0.4}, settings={evil: evil})], tmp_path)
    assert not {"\x00", "\x1b", "\x9b", "\u202e", "\ud800"} & set(page.html)
    assert r"a\x00b\x1b[31m\x9b\u202etxt\ud800" in page.text


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = written([training()], tmp_path)
    (policy,) = [value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value]
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    for tag, name, value in page.attributes:
        if name in ("src", "href", "data", "action", "srcset"):
            assert value.startswith("#"), (tag, name, value)


def test_it_stays_small_and_counts_the_rows_that_it_omits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = training(taus={f"some.graph.with.a.long.name.{number:05d}": 0.5 for number in range(1_000)})
    runs = [replace(first, method=f"method_{number}") for number in range(4)]
    runs = [replace(run, tracked=replace(run.tracked, run_id=run.method)) for run in runs if run.tracked]
    page = written(runs, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < MAX_BYTES == 5_000_000
    assert "2000 of 4000 rows; per_graph.csv of each report has all." in page.text
    monkeypatch.setattr("hlorank.evaluation.report.write_report._MAX_ROWS", 20)
    many = training(per_graph=[graph_row(f"graph_{number}", 0.5) | {"family": f"f{number}"} for number in range(30)])
    assert "20 of 31 rows. Means over graphs." in written([many], tmp_path).text
    monkeypatch.setattr("hlorank.evaluation.report.write_report.MAX_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"1 run: .* MB"):
        write_report([training()], tmp_path / "large.html")
    assert not (tmp_path / "large.html").exists()


@pytest.fixture
def groups() -> list[Group]:
    runs = [training("gst", 0), training("gst", 1, {"a": 0.6, "b": 0.8}), training("full", 0), training("random", None)]
    (found,) = group_runs(runs).values()
    return found


def spec_of(chart: charts.Chart) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return spec


def test_colour_comes_with_a_shape_or_a_dash_and_intervals_have_runs_and_ceilings(groups: list[Group]) -> None:
    points = [(group, 10.0 + group.style, 0.5) for group in groups]
    curves = charts.curves(groups, "train_loss", "loss", "epoch")
    for chart in (curves, charts.against_cost(points, "seconds", "Kendall tau", "costs")):
        encoding = spec_of(chart)["encoding"]
        assert encoding["color"]["scale"]["domain"] == ["gst", "full", "random"]
        assert encoding["color"]["scale"]["range"] == ["var(--c0)", "var(--c1)", "var(--c2)"]
        for other in encoding.keys() & {"shape", "strokeDash"}:
            marks = encoding[other]["scale"]["range"]
            assert all(marks[i] != marks[j] for i in range(3) for j in range(i))
    spec = spec_of(charts.intervals("valid", scores(groups)["valid", "all"]))
    ((first, second, _),) = spec["datasets"].values()
    assert (first["tau"], first["runs"], first["ceiling"]) == (pytest.approx(0.65), [0.6, pytest.approx(0.7)], 0.9)
    assert second["runs"] == [], "a single run has no spread"
    *_, run, ceiling = (layer["mark"] for layer in spec["layer"])
    assert run["size"] < ceiling["size"], "as the page says"
    assert "strokeDash" not in ceiling, "ticks are filled, and have no stroke"
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.5 < 0.9 < high


@pytest.mark.parametrize(("spent", "log"), [((1.0, 100.0), True), ((10.0, 20.0), False), ((0.0, 100.0), False)])
def test_widely_differing_costs_get_a_log_axis(groups: list[Group], spent: tuple[float, float], log: bool) -> None:
    points = [(group, value, 0.5) for group, value in zip(groups, spent, strict=False)]
    encoding = spec_of(charts.against_cost(points, "x", "y", "about"))["encoding"]
    scale = encoding["x"]["scale"]
    assert (scale.get("type") == "log") == log
    assert scale["domain"][0] < min(spent) < max(spent) < scale["domain"][1]
    assert encoding["y"]["scale"]["domain"] == pytest.approx([0.45, 0.55]), "around a single value"


def test_a_drawn_chart_is_one_svg_with_titles_that_stay_text(groups: list[Group]) -> None:
    (point,) = records(groups[0].runs[0].predictions[:1])
    spec = charts.predicted(groups[0], [{**point, "graph": "</svg><script>alert(1)</script>\"'&"}])
    svg = ElementTree.fromstring(charts.draw_chart(spec))
    assert [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")] == [
        "</svg><script>alert(1)</script>\"'&\nvalid, configuration 0"
    ]
    assert not [tag for tag in svg.iter() if tag.tag.endswith(("script", "image", "a", "style"))]
    assert not [tag for tag in svg.iter() if "id" in tag.attrib], "ids of several charts would collide"
    assert "var(--c0)" in {tag.get("fill") for tag in svg.iter()}, "the colours of the page"

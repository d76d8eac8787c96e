from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank.evaluation.report.tables import group_runs
from hlorank.evaluation.report.trainings import Run, records
from hlorank.evaluation.report.write_report import MAX_BYTES, Headline, by_split, headline, write_report
from tests.evaluation.report.conftest import graph_row

MakeRun = Callable[..., Run]
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


def written(runs: list[Run], folder: Path) -> Page:
    write_report(runs, folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_runs_with_different_evaluations_are_counted(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("gst", 0), make_run("gst", 1, {"a": 0.5}), make_run("gst", 2, per_graph=[])]
    runs[1] = replace(runs[1], per_graph=runs[1].per_graph.assign(slowdown_10=float("nan")))
    page = written(runs, tmp_path)
    for fact in ("1 graph, 1 left out, 3 seeds, 2 of 3 runs evaluated", "1.00% 1 of 2 runs"):
        assert fact in page.text
    assert "1 of 3 runs" in page.text
    assert "gst, seed 2, models/gst/2: Kendall tau 0.625" in page.text, "as its training measured it"


def test_a_run_that_cannot_be_scored_is_named_with_the_reason(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run(), make_run("full", per_graph=[], unscored="weights.safetensors: none")], tmp_path)
    assert "full, seed 0, models/full/0: Kendall tau 0.625" in page.text
    assert "weights.safetensors: none" in page.text


def test_lengths_that_differ_and_single_segments_are_marked(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run("full"), make_run("gst_one", spec={"steps": 50}, one_segment=True)], tmp_path)
    for text in ("different length", "2 epochs, 50 steps", "one segment: equals full"):
        assert text in page.text
    page = written([make_run("full"), make_run("gst")], tmp_path)
    assert "different length" not in page.text
    assert "one segment" not in page.text


def test_scores_costs_and_provenance_are_shown(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run("gst", 0), make_run("gst", 1, {"a": 0.6, "b": 0.8}), make_run("full", 0)], tmp_path)
    assert "Report of 3 runs" in page.text
    for fact in (
        "layout:cpu:random",
        "0.650",
        "0.550 to 0.750 ± 0.071 over seeds",
        "0.900",
        "54.2",
        "62,685",
        "d" * 16,
        "c0ffee",
    ):
        assert fact in page.text, fact
    assert "model.width" in page.text
    assert page.charts == 1 + 2 + 2 + 3 + 1, "intervals, predictions of two methods, two curves, three costs, memory"


def test_what_is_ranked_wrongly_is_shown(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run()], tmp_path)
    for fact in (
        "all families gst valid 2 0.600 0.900 20.0% 5.0% 5.0% 5.0% 5.0% 1.0% 4.00% 2.00%",
        "tile[0] faster than ranked gst valid -0.25 explains 6 % 3 9",
        "starts slower than ranked gst valid +0.12 explains 2 % 3 9",
    ):
        assert fact in page.text, fact
    assert "No property" in written([make_run(properties=[])], tmp_path).text


def test_missing_parts_are_one_line_each(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(seed=None, per_graph=[], predictions=[], history=[])
    page = written([run], tmp_path)
    for line in (
        "No run was evaluated",
        "No predictions",
        "No graph was evaluated",
        "No history of more than one epoch",
        "The memory of a step is not recorded for these runs",
        "The MLflow run of the training is unreachable",
    ):
        assert line in page.text
    assert page.charts == 0
    (row,) = records(make_run(taus={"a": 0.5}).per_graph)
    unknown = written([make_run(seed=None, per_graph=[{**row, "noise_ceiling": None}])], tmp_path)
    assert unknown.text.count("unknown") >= 6, "seeds, ceilings and costs"


def test_names_are_always_text(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(EVIL, place=EVIL, taus={EVIL: 0.5, "b": 0.4}, settings={EVIL: EVIL})
    page = written([run, make_run(EVIL, 1, settings={EVIL: "other"})], tmp_path)
    assert EVIL not in page.html
    assert len(page.scripts) == 1
    assert ("img", "src", "x") not in page.attributes
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert EVIL in page.text, "as the label of a chart"


def test_control_characters_of_names_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "a\x00b\x1b[31m\x9b\u202etxt\ud800"
    page = written([make_run(evil, place=evil, taus={evil[:-1]: 0.5, "b": 0.4}, settings={evil: evil})], tmp_path)
    assert not {"\x00", "\x1b", "\x9b", "\u202e", "\ud800"} & set(page.html)
    assert r"a\x00b\x1b[31m\x9b\u202etxt\ud800" in page.text


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run()], tmp_path)
    (policy,) = [value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value]
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    for tag, name, value in page.attributes:
        if name in ("src", "href", "data", "action", "srcset"):
            assert value.startswith("#"), (tag, name, value)


def test_it_stays_small_and_counts_the_rows_that_it_omits(make_run: MakeRun, tmp_path: Path) -> None:
    taus: dict[str, float | None] = {f"some.graph.with.a.long.name.{number:05d}": 0.5 for number in range(1_000)}
    first = make_run(taus=taus)
    runs = [replace(first, method=f"method_{number}") for number in range(12)]
    runs = [replace(run, tracked=replace(run.tracked, run_id=run.method)) for run in runs if run.tracked]
    page = written(runs, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < MAX_BYTES == 5_000_000
    assert "1992 of 12000 rows; per_graph.csv of each report has all." in page.text


def test_a_report_that_would_be_too_large_is_refused(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.evaluation.report.write_report.MAX_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"1 run: .* MB"):
        write_report([make_run()], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def headline_of(*runs: Run) -> Headline:
    (groups,) = group_runs(runs).values()
    found = headline(by_split(groups))
    assert found is not None
    return found


def seeds(make_run: MakeRun, method: str, *taus: float) -> list[Run]:
    return [make_run(method, seed, {"a": tau}) for seed, tau in enumerate(taus)]


def test_the_best_method_is_chosen_on_valid(make_run: MakeRun) -> None:
    def run(method: str, valid: float, test: float) -> Run:
        return make_run(method, per_graph=[graph_row("b", test, "test"), graph_row("a", valid)])

    found = headline_of(run("full", 0.5, 0.9), run("gst", 0.75, 0.25))
    assert found.title == "Best: gst, Kendall tau 0.750 on valid"
    for fact in ("ceiling 0.900", "0.250 above full (0.500)", "one run each", "On test: 0.250"):
        assert fact in found.sentences, fact


@pytest.mark.parametrize(("taus", "times", "noise"), [((0.5, 0.7), "1.4", True), ((0.59, 0.61), "14.1", False)])
def test_the_difference_is_in_spreads_over_seeds(
    make_run: MakeRun, taus: tuple[float, float], times: str, noise: bool
) -> None:
    found = headline_of(*seeds(make_run, "gst", *taus), *seeds(make_run, "full", 0.4, 0.4))
    assert f"0.200 above full (0.400), {times} times the standard deviation" in found.sentences
    assert ("within noise" in found.sentences) == noise


def test_equal_methods_are_both_the_best(make_run: MakeRun) -> None:
    runs = [*seeds(make_run, "full", 0.5), *seeds(make_run, "gst", 0.5)]
    assert headline_of(*runs).title == "full and gst, Kendall tau 0.500 on valid"
    found = headline_of(*runs, *seeds(make_run, "random", 0.0))
    assert found.title.startswith("Best: full and gst,")
    assert "0.500 above random" in found.sentences


def test_what_is_unknown_is_stated(make_run: MakeRun) -> None:
    unmeasured = make_run(per_graph=[graph_row("a", 0.5, ceiling=None)])
    assert headline_of(unmeasured) == ("gst, Kendall tau 0.500 on valid", "Noise ceiling unknown.")
    other = make_run("full", taus={"a": 0.1, "b": 0.2})
    assert "other graphs" in headline_of(unmeasured, other).sentences
    partly = headline_of(unmeasured, make_run(seed=1, per_graph=[]), other)
    assert partly.title.startswith("Best of the evaluated runs: gst")
    (groups,) = group_runs([make_run(per_graph=[])]).values()
    assert headline(by_split(groups)) is None

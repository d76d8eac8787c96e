from __future__ import annotations

from collections.abc import Callable

import pytest

from hlorank.evaluation.report.groups import group_runs, scores
from hlorank.evaluation.report.headline import Headline, headline
from hlorank.evaluation.report.runs import Run
from tests.evaluation.report.conftest import graph_row

MakeRun = Callable[..., Run]


def headline_of(*runs: Run) -> Headline:
    (groups,) = group_runs(runs).values()
    found = headline([(group, score) for group in groups for score in scores(group)])
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
    assert f"0.200 above full (0.400), {times} times the spread" in found.sentences
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
    assert headline([(group, score) for group in groups for score in scores(group)]) is None

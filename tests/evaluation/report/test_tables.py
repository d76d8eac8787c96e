"""Groups of runs, their scores, costs and errors."""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.report.tables import (
    ALL,
    Group,
    SplitScores,
    family_errors,
    group_runs,
    interval,
    misjudged,
    scores,
)
from hlorank.evaluation.report.trainings import Row, Run, records
from tests.evaluation.conftest import graph_row, training

RANDOM, DEFAULT = Collection.parse("layout:cpu:random"), Collection.parse("layout:cpu:default")


def group_of(*runs: Run) -> Group:
    ((group,),) = group_runs(runs).values()
    return group


def score_of(*runs: Run) -> SplitScores:
    (((_, score),),) = scores([group_of(*runs)]).values()
    return score


def test_runs_that_differ_in_their_seed_are_one_group_and_labels_name_other_settings() -> None:
    runs = [
        *(training(seed=seed) for seed in (0, 1)),
        training(settings={"model.width": "32", "paths.raw": "elsewhere", "tracking.uri": "other"}),
        training("full"),
        *(training("random", None, place=place) for place in ("here", "there")),
        training(collection=DEFAULT, spec={"data": "e" * 16}),
    ]
    groups = group_runs(runs)
    assert [(group.label, group.seeds, len(group.runs)) for group in (*groups[RANDOM], *groups[DEFAULT])] == [
        ("gst (model.width=64)", 2, 2),
        ("gst (model.width=32)", 1, 1),
        ("full", 1, 1),
        ("random (run=here)", None, 1),
        ("random (run=there)", None, 1),
        ("gst", 1, 1),
    ]
    assert len({group.style for found in groups.values() for group in found}) == 6


def test_an_interval_is_a_bootstrap_interval() -> None:
    values = np.array([0.1, 0.4, 0.5, 0.9])
    found = interval(values)
    assert found is not None
    means = values[np.random.default_rng(5).integers(0, 4, size=(20_000, 4))].mean(axis=1)
    np.testing.assert_allclose(found, np.quantile(means, [0.025, 0.975]), atol=0.02)
    assert found == interval(values), "the same resamples"
    assert interval(np.full(5, 0.25)) == (0.25, 0.25)
    assert interval(values[:1]) is None


def test_scores_are_means_over_seeds_and_then_over_graphs() -> None:
    taus = ({"a": 0.2, "b": 0.6, "c": None}, {"a": 0.4, "b": 0.8, "c": None})
    runs = [training(seed=seed, taus=own) for seed, own in enumerate(taus)]
    score = score_of(*runs)
    tau = score.estimates["kendall_tau"]
    assert (score.graphs, score.left_out) == (2, 1)
    assert (tau.mean, tau.low, tau.high, tau.deviation) == pytest.approx((0.5, 0.3, 0.7, stdev([0.4, 0.6])))
    assert tau.runs == pytest.approx((0.4, 0.6))
    assert score.noise_ceiling == pytest.approx(0.9)
    assert [row["kendall_tau"] for row in records(group_of(*runs).rows)] == [
        pytest.approx(0.3),
        pytest.approx(0.7),
        None,
    ]


def test_what_is_unknown_for_one_graph_is_unknown() -> None:
    score = score_of(training(per_graph=[graph_row("a", 0.5), graph_row("b", 0.7, ceiling=None)]))
    assert (score.noise_ceiling, score.estimates["kendall_tau"].deviation) == (None, None)
    score = score_of(training(taus={"a": None}))
    assert (score.graphs, score.left_out, dict(score.estimates), score.noise_ceiling) == (0, 1, {}, None)
    assert score_of(training(taus={"a": 0.5})).estimates["kendall_tau"].low is None


def test_scores_are_over_the_graphs_that_all_runs_share_and_the_runs_that_have_a_metric() -> None:
    taus = ({"a": 0.25, "b": 0.75, "c": -1.0}, {"b": 0.25, "a": 0.25, "d": 1.0})
    runs = [*(training(seed=seed, taus=own) for seed, own in enumerate(taus)), training(seed=2, per_graph=[])]
    score = score_of(*runs)
    assert (score.runs, score.graphs, score.left_out) == (2, 2, 2)
    assert (score.estimates["kendall_tau"].mean, score.estimates["kendall_tau"].runs) == (0.375, (0.5, 0.25))
    assert [row["kendall_tau"] for row in records(group_of(*runs).rows)] == [0.25, 0.5, -1.0, 1.0]
    # Reports of another version lack columns; the order of the runs does not matter.
    old, new = training(seed=0), training(seed=1)
    old = replace(old, per_graph=old.per_graph.drop(columns="opa"))
    empty = replace(training(seed=2), per_graph=old.per_graph.assign(opa=float("nan")))
    for ordered in ([old, new, empty], [new, empty, old]):
        estimates = score_of(*ordered).estimates
        assert (len(estimates["kendall_tau"].runs), estimates["opa"].runs) == (3, pytest.approx((0.8,)))
        assert [row["opa"] for row in records(group_of(*ordered).rows)] == pytest.approx([0.75, 0.85])
    assert "opa" not in score_of(old, empty).estimates


def test_splits_are_in_order_and_protocols_separate() -> None:
    rows = [graph_row("a", 0.5, "test"), graph_row("a", 0.5), graph_row("a", 0.1, protocol="indexed")]
    found = scores([group_of(training(per_graph=rows))])
    means = {place: score.estimates["kendall_tau"].mean for place, ((_, score),) in found.items()}
    assert [*means.items()] == [(("valid", "all"), 0.5), (("valid", "indexed"), 0.1), (("test", "all"), 0.5)]


def test_costs_are_means_over_recorded_ones_and_lengths_are_ranges() -> None:
    short = training(seed=0, spec={"steps": 1_600})
    assert short.tracked is not None
    tracked = replace(short.tracked, seconds=None, step_seconds=0.03)
    runs = [replace(short, history=short.history[:1], tracked=tracked), training(seed=1, spec={"steps": 3_200})]
    trees = training("gradient_boosting", spec={"settings": {"iterations": 300}, "steps": 19})
    ((group, baseline, unknown),) = group_runs([*runs, trees, training("full", None, history=[])]).values()
    costs = [group.mean_tracked(name) for name in ("seconds", "parameters", "step_seconds")]
    assert (costs, unknown.mean_tracked("seconds")) == (pytest.approx([54.25, 62_685.0, 0.02]), None)
    assert (group.length, baseline.length, unknown.length) == ("1 to 2 epochs, 1,600 to 3,200 steps", "", "")


def test_families_are_sorted_by_wrong_pairs_below_the_mean_of_all() -> None:
    rows = [
        graph_row("a", 0.8, family="bert"),
        graph_row("b", 0.2, family="unet"),
        graph_row("c", 0.6, family="unet", ceiling=None),
        graph_row("d", None, family="unet"),
        graph_row("e", 0.5, "test", family="vit"),
        graph_row("b", 0.1, family="unet", protocol="indexed"),
    ]
    found = family_errors([group_of(training(per_graph=rows))])
    assert [(row["split"], row["family"], row["graphs"]) for _, row in found] == [
        ("valid", ALL, 3),
        ("valid", "unet", 2),
        ("valid", "bert", 1),
        ("test", ALL, 1),
        ("test", "vit", 1),
    ]
    unet, bert = found[1][1], found[2][1]
    assert (unet["kendall_tau"], unet["wrong"], unet["slowdown_1"]) == pytest.approx((0.4, 0.3, 0.04))
    assert (unet["noise_width"], unet["wrong_above_4"]) == (None, None), "unknown for one of its graphs"
    assert bert["wrong_above_4"] == pytest.approx(0.025)
    old = {key: value for key, value in rows[0].items() if not key.startswith(("wrong", "family", "noise_w"))}
    group = group_of(training(per_graph=[old], properties=[]))
    assert (family_errors([group]), misjudged([group])) == ([], []), "a report of an earlier version"


def effect(name: str, value: float, split: str = "valid", agreeing: float = 4.0, graphs: float = 9.0) -> Row:
    counts = {"families": 4.0, "agreeing": agreeing, "graphs": graphs}
    return {"split": split, "property": name, "effect": value, **counts}


def test_the_largest_effects_on_which_families_agree_are_shown() -> None:
    rows = [
        effect("small", 0.05),
        effect("slower", 0.3),
        effect("faster", -0.4),
        effect("of two graphs", 0.9, graphs=2),
        effect("disputed", 0.8, agreeing=3),
        effect("of test", 0.9, "test"),
        *(effect(f"weak {number}", 0.11) for number in range(9)),
    ]
    found = misjudged([group_of(*(training(seed=seed, properties=rows) for seed in (0, 1)))])
    assert [row["property"] for _, row in found] == ["faster", "slower", *(f"weak {number}" for number in range(6))]

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest

from hlorank.data.collection import Collection
from hlorank.evaluation.report.tables import ALL, family_errors, group_runs, interval, misjudged, scores
from hlorank.evaluation.report.trainings import Row, Run, records
from tests.evaluation.report.conftest import graph_row, table

MakeRun = Callable[..., Run]
RANDOM = Collection.parse("layout:cpu:random")


def row(run: Run, graph: str, **changes: object) -> Row:
    return {**next(row for row in records(run.per_graph) if row["graph"] == graph), **changes}


def test_runs_that_differ_in_their_seed_are_one_group(make_run: MakeRun) -> None:
    runs = [make_run(seed=seed) for seed in (0, 1, 2)]
    ((collection, (group,)),) = group_runs([*runs]).items()
    assert collection == RANDOM
    assert (group.label, group.seeds, len(group.runs)) == ("gst", 3, 3)


def test_other_settings_make_another_group_and_its_label(make_run: MakeRun) -> None:
    runs = [
        make_run(),
        make_run(settings={"model.width": "32", "paths.raw": "elsewhere", "tracking.uri": "other"}),
        make_run("full"),
        make_run(collection=Collection.parse("layout:cpu:default"), spec={"data": "e" * 16}),
    ]
    groups = group_runs(runs)
    assert [group.label for group in groups[RANDOM]] == ["gst (model.width=64)", "gst (model.width=32)", "full"]
    (other,) = groups[Collection.parse("layout:cpu:default")]
    assert other.label == "gst"
    styles = [group.style for group in (*groups[RANDOM], other)]
    assert len(set(styles)) == 4


def test_runs_without_a_record_are_groups_of_their_own(make_run: MakeRun) -> None:
    runs = [make_run(seed=None, place=place) for place in ("here", "there")]
    (groups,) = group_runs(runs).values()
    assert [(group.label, group.seeds) for group in groups] == [("gst (run=here)", None), ("gst (run=there)", None)]


def test_an_interval_is_a_bootstrap_interval() -> None:
    values = np.array([0.1, 0.4, 0.5, 0.9])
    found = interval(values)
    assert found is not None
    means = values[np.random.default_rng(5).integers(0, 4, size=(200_000, 4))].mean(axis=1)
    np.testing.assert_allclose(found, np.quantile(means, [0.025, 0.975]), atol=0.02)
    assert found == interval(values), "the same resamples"
    assert interval(np.full(5, 0.25)) == (0.25, 0.25)
    assert interval(values[:1]) is None


def test_scores_are_means_over_seeds_and_then_over_graphs(make_run: MakeRun) -> None:
    runs = [
        make_run(seed=0, taus={"a": 0.2, "b": 0.6, "c": None}),
        make_run(seed=1, taus={"a": 0.4, "b": 0.8, "c": None}),
    ]
    ((group,),) = group_runs(runs).values()
    (score,) = scores(group)
    tau = score.estimates["kendall_tau"]
    assert (score.split, score.protocol, score.graphs, score.left_out) == ("valid", "all", 2, 1)
    assert tau.mean == pytest.approx(0.5)
    assert tau.runs == pytest.approx((0.4, 0.6))
    assert tau.deviation == pytest.approx(stdev([0.4, 0.6]))
    assert tau.low == pytest.approx(0.3)
    assert tau.high == pytest.approx(0.7)
    assert score.noise_ceiling == pytest.approx(0.9)
    assert [row["kendall_tau"] for row in records(group.rows)] == [pytest.approx(0.3), pytest.approx(0.7), None]


def test_a_ceiling_unknown_for_one_graph_is_unknown(make_run: MakeRun) -> None:
    run = make_run()
    run = replace(run, per_graph=table([row(run, "a"), row(run, "b", noise_ceiling=None)]))
    ((group,),) = group_runs([run]).values()
    (score,) = scores(group)
    assert score.noise_ceiling is None
    assert score.estimates["kendall_tau"].deviation is None
    ((unranked,),) = group_runs([make_run(taus={"a": None})]).values()
    (score,) = scores(unranked)
    assert (score.graphs, score.left_out, dict(score.estimates), score.noise_ceiling) == (0, 1, {}, None)
    ((single,),) = group_runs([make_run(taus={"a": 0.5})]).values()
    assert scores(single)[0].estimates["kendall_tau"].low is None


def test_scores_are_over_the_graphs_that_all_runs_share(make_run: MakeRun) -> None:
    runs = [
        make_run(seed=0, taus={"a": 0.25, "b": 0.75, "c": -1.0}),
        make_run(seed=1, taus={"b": 0.25, "a": 0.25, "d": 1.0}),
        make_run(seed=2, per_graph=[]),
    ]
    ((group,),) = group_runs(runs).values()
    (score,) = scores(group)
    tau = score.estimates["kendall_tau"]
    assert (score.runs, score.graphs, score.left_out) == (2, 2, 2)
    assert (tau.mean, tau.runs) == (0.375, (0.5, 0.25))
    assert [row["kendall_tau"] for row in records(group.rows)] == [0.25, 0.5, -1.0, 1.0]


def test_a_metric_is_averaged_over_the_runs_that_have_it(make_run: MakeRun) -> None:
    """Reports of another version lack columns; the order of the runs does not matter."""
    old, new = make_run(seed=0), make_run(seed=1)
    old = replace(old, per_graph=old.per_graph.drop(columns="opa"))
    empty = replace(make_run(seed=2), per_graph=old.per_graph.assign(opa=float("nan")))
    for runs in ([old, new, empty], [new, empty, old]):
        ((group,),) = group_runs(runs).values()
        (score,) = scores(group)
        assert score.runs == 3
        assert len(score.estimates["kendall_tau"].runs) == 3
        assert score.estimates["opa"].runs == pytest.approx((0.8,))
        assert score.estimates["opa"].mean == pytest.approx(0.8)
        assert [row["opa"] for row in records(group.rows)] == [pytest.approx(0.75), pytest.approx(0.85)]
    ((alone,),) = group_runs([old, empty]).values()
    assert "opa" not in scores(alone)[0].estimates


def test_splits_are_in_order_and_protocols_separate(make_run: MakeRun) -> None:
    run = make_run()
    rows = [row(run, "a", split="test"), row(run, "a"), row(run, "a", protocol="indexed", kendall_tau=0.1)]
    ((group,),) = group_runs([replace(run, per_graph=table(rows))]).values()
    found = [(score.split, score.protocol, score.estimates["kendall_tau"].mean) for score in scores(group)]
    assert found == [("valid", "all", 0.5), ("valid", "indexed", 0.1), ("test", "all", 0.5)]


def test_costs_are_means_over_recorded_ones(make_run: MakeRun) -> None:
    runs = [make_run(seed=0), make_run(seed=1)]
    assert runs[0].tracked is not None
    runs[0] = replace(runs[0], tracked=replace(runs[0].tracked, seconds=None, step_seconds=0.03))
    ((group,),) = group_runs(runs).values()
    assert (group.mean_tracked("seconds"), group.mean_tracked("parameters")) == (54.25, 62_685.0)
    assert group.mean_tracked("step_seconds") == pytest.approx(0.02)
    ((unknown,),) = group_runs([make_run(seed=None, history=[])]).values()
    assert unknown.mean_tracked("seconds") is None


def test_the_length_of_trainings_is_a_range_over_runs(make_run: MakeRun) -> None:
    short = make_run(seed=0, spec={"steps": 1_600})
    runs = [replace(short, history=short.history[:1]), make_run(seed=1, spec={"steps": 3_200})]
    trees = make_run("gradient_boosting", spec={"settings": {"iterations": 300}, "steps": 19})
    unknown = make_run("full", None, history=[])
    (groups,) = group_runs([*runs, trees, unknown]).values()
    assert [group.length for group in groups] == ["1 to 2 epochs, 1,600 to 3,200 steps", "", ""]


def of_family(family: str, row: Row) -> Row:
    return {**row, "family": family}


def test_families_are_sorted_by_wrong_pairs_below_the_mean_of_all(make_run: MakeRun) -> None:
    rows = [
        of_family("bert", graph_row("a", 0.8)),
        of_family("unet", graph_row("b", 0.2)),
        of_family("unet", graph_row("c", 0.6, ceiling=None)),
        of_family("unet", graph_row("d", None)),
        of_family("vit", graph_row("e", 0.5, split="test")),
        of_family("unet", graph_row("b", 0.1, protocol="indexed")),
    ]
    ((group,),) = group_runs([make_run(per_graph=rows)]).values()
    found = family_errors([group])
    assert [(one.split, one.family, one.graphs) for one in found] == [
        ("valid", ALL, 3),
        ("valid", "unet", 2),
        ("valid", "bert", 1),
        ("test", ALL, 1),
        ("test", "vit", 1),
    ]
    unet, bert = found[1].means, found[2].means
    assert (unet["kendall_tau"], unet["wrong"], unet["slowdown_1"]) == pytest.approx((0.4, 0.3, 0.04))
    assert (unet["noise_width"], unet["wrong_above_4"]) == (None, None), "unknown for one of its graphs"
    assert bert["wrong_above_4"] == pytest.approx(0.025)


def test_reports_of_earlier_versions_have_no_errors(make_run: MakeRun) -> None:
    row = {
        key: value for key, value in graph_row("a", 0.5).items() if not key.startswith(("wrong", "family", "noise_w"))
    }
    ((group,),) = group_runs([make_run(per_graph=[row], properties=[])]).values()
    assert family_errors([group]) == []
    assert misjudged([group]) == []


def effect(name: str, value: float, split: str = "valid", agreeing: float = 4.0, graphs: float = 9.0) -> Row:
    counts = {"families": 4.0, "agreeing": agreeing, "graphs": graphs}
    return {"split": split, "property": name, "effect": value, **counts}


def test_the_largest_effects_on_which_families_agree_are_shown(make_run: MakeRun) -> None:
    rows = [
        effect("small", 0.05),
        effect("slower", 0.3),
        effect("faster", -0.4),
        effect("of two graphs", 0.9, graphs=2),
        effect("disputed", 0.8, agreeing=3),
        effect("of test", 0.9, "test"),
        *(effect(f"weak {number}", 0.11) for number in range(9)),
    ]
    runs = [make_run(seed=seed, properties=rows) for seed in (0, 1)]
    ((group,),) = group_runs(runs).values()
    found = misjudged([group])
    assert [row["property"] for _, row in found[:3]] == ["faster", "slower", "weak 0"]
    assert len(found) == 8
    assert {row["split"] for _, row in found} == {"valid"}

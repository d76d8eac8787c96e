from __future__ import annotations

from collections.abc import Callable

import pytest

from hlorank.evaluation.report.error_tables import ALL, family_errors, misjudged
from hlorank.evaluation.report.groups import group_runs
from hlorank.evaluation.report.runs import Row, Run
from tests.evaluation.report.conftest import graph_row

MakeRun = Callable[..., Run]


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

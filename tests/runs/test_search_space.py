"""Hydra's sweep syntax as Optuna's distributions."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hlorank.config import ConfigError
from hlorank.runs.search import as_overrides, split


def parsed(*overrides: str) -> tuple[list[str], dict[str, object]]:
    fixed, space = split(OverridesParser.create().parse_overrides(list(overrides)))
    return fixed, dict(space)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("interval(0.1, 0.5)", FloatDistribution(0.1, 0.5)),
        ("interval(1, 8)", FloatDistribution(1, 8)),
        ("int(interval(1, 8))", IntDistribution(1, 8)),
        ("tag(log, interval(1e-4, 1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("tag(log, int(interval(1, 64)))", IntDistribution(1, 64, log=True)),
        ("range(1, 5)", IntDistribution(1, 4)),
        ("range(1, 6, 2)", IntDistribution(1, 5, step=2)),
        ("range(8, 0, -2)", IntDistribution(2, 8, step=2)),
        ("range(0.0, 1.0, 0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("choice(a, b)", CategoricalDistribution(["a", "b"])),
        ("a,b", CategoricalDistribution(["a", "b"])),
        ("choice([a, b], [c])", CategoricalDistribution(["[a,b]", "[c]"])),
        ("'x,y',z", CategoricalDistribution(["'x,y'", "z"])),
        ("null,1", CategoricalDistribution(["null", "1"])),
    ],
)
def test_each_form(written: str, expected: object) -> None:
    assert parsed(f"key={written}") == ([], {"key": expected})


def test_fixed_values_and_the_last_of_a_key() -> None:
    fixed, space = parsed("a=range(1,4)", "b=1,2", "b=7", "c=x", "c='p q'", "d=[1,2]", "+e=1")
    assert fixed == ["b=7", "c='p q'", "d=[1,2]", "+e=1"]
    assert list(space) == ["a"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("k=range(4, 1)", "k=range(4, 1): the range is empty"),
        ("k=tag(log, range(0.5, 2.0, 0.5))", "`step` is not supported when `log`"),
        ("k=tag(log, interval(0, 1))", "k=tag(log, interval(0, 1)): "),
        ("k=interval(2, 1)", "k=interval(2, 1): "),
        ("k=tag(lin, interval(0, 1))", "k: expected no tag but log, found lin"),
    ],
)
def test_wrong_spaces_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(override)
    assert message in str(caught.value)


def test_the_values_of_a_trial_are_overrides() -> None:
    parameters = {"a": 3, "b": 1.5e-07, "c": "[x,y]", "d": "'p q'"}
    assert as_overrides(parameters) == ["a=3", "b=1.5e-07", "c=[x,y]", "d='p q'"]
    overrides = OverridesParser.create().parse_overrides(as_overrides(parameters))
    assert [override.value() for override in overrides] == [3, 1.5e-07, ["x", "y"], "p q"]

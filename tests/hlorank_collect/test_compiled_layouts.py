"""Compiled configurations of a program, their timing in rounds, and comparison of their outputs."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, layout_space
from hlorank_collect import machine, xla
from hlorank_collect.compiled_layouts import Attempts, CompiledLayouts, compile_constrained
from hlorank_collect.program import SkippedError
from hlorank_collect.timing import Rounds, Timer, difference, has_nan, measure, runtimes, split_half_tau

Values = list[float]
Compile = Callable[[int], Values | Exception]


class FakeExecutable:
    def __init__(self, outputs: Values | Exception) -> None:
        self._outputs = outputs

    def run(self, inputs: list[Any]) -> list[Any]:
        if isinstance(self._outputs, Exception):
            raise self._outputs
        return [np.array(self._outputs, np.float32)]


@pytest.fixture
def make(dot_and_reshape: HloModuleProto, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompiledLayouts]:
    """Makes layouts whose outputs are a function of the number of constraints."""

    def compiled_layouts(outputs: Compile, **arguments: Any) -> CompiledLayouts:
        def compile_module(data: bytes, platform: str) -> FakeExecutable:
            assert platform == "cpu"
            found = HloModuleProto.FromString(data)
            calls = sum(one.opcode == "custom-call" for one in found.computations[0].instructions)
            return FakeExecutable(outputs(calls))

        monkeypatch.setattr(xla, "compile_module", compile_module)
        space = layout_space(dot_and_reshape)
        compile_one = partial(compile_constrained, dot_and_reshape, space, "cpu")
        return CompiledLayouts(compile_one, space, [], Attempts(**arguments))

    return compiled_layouts


@pytest.fixture
def space(dot_and_reshape: HloModuleProto) -> LayoutSpace:
    return layout_space(dot_and_reshape)


def constraining(space: LayoutSpace, count: int) -> Layouts:
    configuration = space.default
    for node, tensor, rank in [*space.slots()][:count]:
        configuration[node, tensor * 6 : tensor * 6 + rank] = np.arange(rank)
    return configuration


def test_each_configuration_is_compiled_once(make: Callable[..., CompiledLayouts], space: LayoutSpace) -> None:
    outputs, announced = Mock(return_value=[1.0]), list[str | None]()
    configurations = np.stack([constraining(space, count) for count in (0, 1, 2)])
    layouts = make(outputs, before=announced.append)
    first = [layouts.result(one) for one in configurations]
    assert [layouts.result(one) for one in configurations] == first
    assert None not in first
    assert [call.args for call in outputs.call_args_list] == [(0,), (1,), (2,)]
    assert announced == [None, *map(configuration_name, configurations[1:])]
    assert layouts.timer(configurations)(2) > 0


def test_what_fails_is_left_out_with_its_reason(make: Callable[..., CompiledLayouts], space: LayoutSpace) -> None:
    results: dict[int, Values | Exception] = {
        0: [1.0, 2.0],
        1: RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nat here"),
        2: [1.0, 2.5],
        3: [1.0, float("nan")],
        4: [1.0, 2.00001],
    }
    layouts = make(lambda calls: results[calls])
    found = [layouts.result(constraining(space, count)) is not None for count in range(5)]
    assert found == [True, False, False, False, True]
    assert list(layouts.left_out.values()) == [
        "RuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
        *2 * ["WrongOutputError: 1 of 2 values of output 0 differ from the default's"],
    ]
    with pytest.raises(SkippedError, match="OSError: no"):
        make(lambda _: OSError("no"))
    with pytest.raises(SkippedError, match="NaN"):
        make(lambda _: [1.0, float("nan")])


def test_quick_measurements_of_batches_compare(
    make: Callable[..., CompiledLayouts], space: LayoutSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = make(lambda calls: ValueError("refused") if calls == 3 else [1.0])
    slowdowns = iter([1.0, 50.0])

    def timer(timed: Layouts) -> Timer:
        slow = next(slowdowns)
        return lambda index: slow * (2.0 + float(np.count_nonzero(timed[index] != -1)))

    monkeypatch.setattr(layouts, "timer", timer)
    batch = np.stack([constraining(space, count) for count in (2, 3, 1)])
    for _ in range(2):
        np.testing.assert_allclose(layouts.quick(batch, np.random.default_rng(0)), [3.0, np.inf, 2.0])


def test_after_the_deadline_or_without_mappings_nothing_new_is_compiled(
    make: Callable[..., CompiledLayouts], space: LayoutSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, full = make(lambda _: [1.0], deadline=time.monotonic() - 1), make(lambda _: [1.0])
    monkeypatch.setattr(machine, "used_mappings", lambda: 0.99)
    for layouts, reason in ((late, "the time limit"), (full, "memory mappings")):
        assert layouts.result(space.default) is not None
        assert layouts.result(constraining(space, 1)) is None
        assert reason in "".join(layouts.left_out.values())


def test_split_half_tau_compares_every_other_round() -> None:
    up, down = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    assert split_half_tau(np.array([up, up, up, up])) == pytest.approx(1)
    assert split_half_tau(np.array([up, down, up, down])) == pytest.approx(-1)
    assert math.isnan(split_half_tau(np.array([up])))


def noisy(noise: float, log: list[int]) -> Timer:
    rng = np.random.default_rng(1)

    def timer(index: int) -> float:
        log.append(index)
        return 1000.0 * (1 + 0.1 * index) * math.exp(noise * rng.standard_normal())

    return timer


def test_each_round_measures_each_configuration_once_in_a_new_order() -> None:
    logs: list[list[int]] = [[], []]
    rounds = Rounds(min=2, max=3)
    times, again = (measure(noisy(3.0, log), 20, np.random.default_rng(0), rounds) for log in logs)
    assert times.shape == (3, 20)
    np.testing.assert_array_equal(again, times)
    assert logs[0] == logs[1]
    orders = [tuple(logs[0][start : start + 20]) for start in (0, 20, 40)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len(set(orders)) == 3


def test_measuring_ends_early_without_noise_and_after_the_deadline_with_certain_rounds() -> None:
    rounds = Rounds(min=4, max=12)
    counts = [
        len(measure(noisy(noise, []), configurations, np.random.default_rng(0), rounds))
        for noise, configurations in ((0.001, 10), (3.0, 10), (0.1, 1))
    ]
    assert counts == [4, 12, 4]

    def late(**limits: int) -> int:
        rounds = Rounds(min=8, max=8, **limits)
        return len(measure(lambda _: 1.0, 2, np.random.default_rng(0), rounds, deadline=0.0))

    assert (late(), late(certain=5), late(certain=20)) == (2, 5, 8)


def test_neither_the_level_of_a_round_nor_one_disturbed_measurement_has_an_effect() -> None:
    base = np.array([100.0, 200.0, 150.0])
    np.testing.assert_allclose(runtimes(np.array([1.0, 1.0, 7.0, 1.3, 1.0])[:, None] * base), base)
    times = np.tile(base, (5, 1))
    times[2, 0] = 900.0
    np.testing.assert_allclose(runtimes(times), base)


def test_other_orders_of_sums_are_equal_and_errors_are_not() -> None:
    terms = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    wrong = terms.sum(0)
    assert difference([wrong], [terms[::-1].sum(0)]) is None
    wrong[3] += 0.1
    assert difference([terms.sum(0)], [wrong]) == "1 of 64 values of output 0 differ from the default's"


@pytest.mark.parametrize("name", ["float16", "float32", "complex64", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_half_of_the_digits_of_floats_are_compared(name: str) -> None:
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes", reason="comes with jax (extra collect)"), name, name))
    one: NDArray[Any] = np.ones(4, dtype)
    digits = {"bfloat16": 2.0**-7, "float8_e5m2": 0.25, "float8_e4m3fn": 0.25}.get(name)
    half = (digits or float(np.finfo(dtype).eps)) ** 0.5
    assert difference([one], [(one * (1 + half)).astype(dtype)]) is None
    assert difference([one], [(one * (1 + 4 * half)).astype(dtype)]) is not None
    assert not has_nan(one)


@pytest.mark.parametrize(
    ("wanted", "other"),
    [
        (np.array([1, 2, 2**31 - 1], np.int32), [1, 3, 2**31 - 1]),
        (np.array([True, False, True]), [True, True, True]),
        (np.array([1.0, -np.inf, np.inf], np.float32), [1.0, np.inf, np.inf]),
        (np.array([1.0, -np.inf, np.inf], np.float32), [1.0, 2.0, np.inf]),
        (np.zeros(2, np.float16), [0, np.nan]),
    ],
)
def test_whole_numbers_and_infinities_must_be_equal_and_nan_never_is(wanted: NDArray[Any], other: list[float]) -> None:
    found = np.array(other, wanted.dtype)
    assert difference([wanted], [wanted.copy()]) is None
    assert difference([wanted], [found]) is not None
    assert (has_nan(wanted), has_nan(found)) == (False, np.nan in other)

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, layout_space
from hlorank_collect import machine, xla
from hlorank_collect.compiled_layouts import CompiledLayouts
from hlorank_collect.program import SkippedError
from hlorank_collect.timing import Timer

Values = list[float]


class FakeExecutable:
    def __init__(self, outputs: Values | Exception) -> None:
        self._outputs = outputs

    def run(self, inputs: list[Any]) -> list[Any]:
        if isinstance(self._outputs, Exception):
            raise self._outputs
        return [np.array(self._outputs, np.float32)]


Compile = Callable[[int, bool], Values | Exception]


@pytest.fixture
def make(dot_and_reshape: HloModuleProto, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompiledLayouts]:
    """Makes layouts whose outputs are a function of the number of constraints and of the fusion emitters."""

    def compiled_layouts(outputs: Compile, **arguments: Any) -> CompiledLayouts:
        def compile_module(data: bytes, platform: str, *, fusion_emitters: bool) -> FakeExecutable:
            assert platform == "cpu"
            found = HloModuleProto.FromString(data)
            calls = sum(one.opcode == "custom-call" for one in found.computations[0].instructions)
            return FakeExecutable(outputs(calls, fusion_emitters))

        monkeypatch.setattr(xla, "compile_module", compile_module)
        return CompiledLayouts(dot_and_reshape, layout_space(dot_and_reshape), [], "cpu", **arguments)

    return compiled_layouts


@pytest.fixture
def space(dot_and_reshape: HloModuleProto) -> LayoutSpace:
    return layout_space(dot_and_reshape)


def constraining(space: LayoutSpace, count: int) -> Layouts:
    configuration = space.default
    for node, tensor, rank in [*space.slots()][:count]:
        configuration[node, tensor * 6 : tensor * 6 + rank] = np.arange(rank)
    return configuration


def test_each_configuration_is_compiled_once_and_again_where_fast_compilation_computes_something_else(
    make: Callable[..., CompiledLayouts], space: LayoutSpace
) -> None:
    compiled, announced = list[tuple[int, bool]](), list[str | None]()

    def outputs(calls: int, emitters: bool) -> Values:
        compiled.append((calls, emitters))
        return [1.0] if emitters or calls != 2 else [7.0]

    configurations = np.stack([constraining(space, count) for count in (0, 1, 2)])
    for fast, expected in (
        (False, [(0, True), (1, True), (2, True)]),
        # All are compared with the default compiled with the emitters.
        (True, [(0, True), (0, False), (1, False), (2, False), (2, True)]),
    ):
        compiled.clear()
        announced.clear()
        layouts = make(outputs, before=announced.append, fast_compile=fast)
        first = [layouts.executable(one) for one in configurations]
        assert [layouts.executable(one) for one in configurations] == first
        assert None not in first
        assert compiled == expected
        assert announced == [None, *map(configuration_name, configurations[1:])]
        assert layouts.timer(configurations)(2) > 0
        assert layouts.recompiled == [configuration_name(configurations[2])] * fast


def test_what_fails_is_left_out_with_its_reason(make: Callable[..., CompiledLayouts], space: LayoutSpace) -> None:
    results: dict[int, Values | Exception] = {
        0: [1.0, 2.0],
        1: RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nat here"),
        2: [1.0, 2.5],
        3: [1.0, float("nan")],
        4: [1.0, 2.00001],
    }
    layouts = make(lambda calls, _: results[calls])
    found = [layouts.executable(constraining(space, count)) is not None for count in range(5)]
    assert found == [True, False, False, False, True]
    assert list(layouts.left_out.values()) == [
        "RuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
        *2 * ["WrongOutputError: 1 of 2 values of output 0 differ from the default's"],
    ]


def test_a_default_that_fails_or_gives_nan_skips_the_program(make: Callable[..., CompiledLayouts]) -> None:
    with pytest.raises(SkippedError, match="OSError: no"):
        make(lambda *_: OSError("no"))
    with pytest.raises(SkippedError, match="NaN"):
        make(lambda *_: [1.0, float("nan")])


def test_quick_measurements_of_batches_compare(
    make: Callable[..., CompiledLayouts], space: LayoutSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = make(lambda calls, emitters: ValueError("refused") if calls == 3 else [1.0])
    slowdowns = iter([1.0, 50.0])

    def timer(timed: Layouts) -> Timer:
        slow = next(slowdowns)
        return lambda index: slow * (2.0 + float(np.count_nonzero(timed[index] != -1)))

    monkeypatch.setattr(layouts, "timer", timer)
    batch = np.stack([constraining(space, count) for count in (2, 3, 1)])
    for _ in range(2):
        found = layouts.quick(batch, np.random.default_rng(0))
        np.testing.assert_allclose(found, [3.0, np.inf, 2.0])


def test_after_the_deadline_or_without_mappings_nothing_new_is_compiled(
    make: Callable[..., CompiledLayouts], space: LayoutSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, full = make(lambda *_: [1.0], deadline=time.monotonic() - 1), make(lambda *_: [1.0])
    monkeypatch.setattr(machine, "used_mappings", lambda: 0.99)
    for layouts, reason in ((late, "the time limit"), (full, "memory mappings")):
        assert layouts.executable(space.default) is not None
        assert layouts.executable(constraining(space, 1)) is None
        assert reason in "".join(layouts.left_out.values())

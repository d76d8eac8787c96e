from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import LayoutSpace, Rows, layout_space, name_of
from hlorank_collect import xla
from hlorank_collect.layouts.compiled_layouts import Candidates, SkippedError
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
def make(module: HloModuleProto, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Candidates]:
    """Candidates of which a function of the number of layouts asked for, and of the emitters, says the outputs."""

    def candidates(outputs: Compile, **arguments: Any) -> Candidates:
        def compiled(data: bytes, platform: str, *, fusion_emitters: bool) -> FakeExecutable:
            assert platform == "cpu"
            found = HloModuleProto.FromString(data)
            calls = sum(one.opcode == "custom-call" for one in found.computations[0].instructions)
            return FakeExecutable(outputs(calls, fusion_emitters))

        monkeypatch.setattr(xla, "compile_module", compiled)
        return Candidates(module, layout_space(module), [], "cpu", **arguments)

    return candidates


@pytest.fixture
def space(module: HloModuleProto) -> LayoutSpace:
    return layout_space(module)


def asking(space: LayoutSpace, layouts: int) -> Rows:
    configuration = space.default
    for row, tensor, rank in [*space.slots()][:layouts]:
        configuration[row, tensor * 6 : tensor * 6 + rank] = np.arange(rank)
    return configuration


def test_each_configuration_is_compiled_once(make: Callable[..., Candidates], space: LayoutSpace) -> None:
    compiled = []

    def outputs(calls: int, emitters: bool) -> Values:
        compiled.append((calls, emitters))
        return [1.0, 2.0]

    announced: list[str | None] = []
    candidates = make(outputs, before=announced.append)
    rows = np.stack([asking(space, layouts) for layouts in (0, 1, 2)])
    first = [candidates.executable(row) for row in rows]
    assert [candidates.executable(row) for row in rows] == first
    assert None not in first
    assert compiled == [(0, True), (1, True), (2, True)]
    assert announced == [None, name_of(rows[1]), name_of(rows[2])]
    assert candidates.timer(rows)(2) > 0
    assert candidates.left_out == {}


def test_what_fails_is_left_out_with_its_reason(make: Callable[..., Candidates], space: LayoutSpace) -> None:
    answers: dict[int, Values | Exception] = {
        0: [1.0, 2.0],
        1: RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nat here"),
        2: [1.0, 2.5],
        3: [1.0, float("nan")],
        4: [1.0, 2.00001],
    }
    candidates = make(lambda calls, _: answers[calls])
    found = [candidates.executable(asking(space, layouts)) is not None for layouts in range(5)]
    assert found == [True, False, False, False, True]
    assert list(candidates.left_out.values()) == [
        "RuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
        *2 * ["WrongOutputError: 1 of 2 values of output 0 differ from the default's"],
    ]


def test_a_configuration_that_killed_before_is_not_tried(make: Callable[..., Candidates], space: LayoutSpace) -> None:
    bad = asking(space, 1)
    compiled: list[int] = []

    def outputs(calls: int, emitters: bool) -> Values:
        compiled.append(calls)
        return [1.0]

    candidates = make(outputs, forbidden={name_of(bad): "no sign of life"})
    assert candidates.executable(bad) is None
    assert candidates.left_out == {name_of(bad): "no sign of life"}
    assert compiled == [0]


def test_after_the_deadline_nothing_new_is_compiled(make: Callable[..., Candidates], space: LayoutSpace) -> None:
    candidates = make(lambda *_: [1.0], deadline=time.monotonic() - 1)
    assert candidates.executable(space.default) is not None
    assert candidates.executable(asking(space, 1)) is None
    assert [*candidates.left_out.values()] == ["the time limit"]


def test_fast_compilation_falls_back_where_it_computes_something_else(
    make: Callable[..., Candidates], space: LayoutSpace
) -> None:
    compiled = []

    def outputs(calls: int, emitters: bool) -> Values:
        compiled.append((calls, emitters))
        return [1.0] if emitters or calls != 2 else [7.0]

    candidates = make(outputs, fast_compile=True)
    for layouts in (0, 1, 2):
        assert candidates.executable(asking(space, layouts)) is not None
    # The default with the emitters is what all are compared with.
    assert compiled == [(0, True), (0, False), (1, False), (2, False), (2, True)]
    assert candidates.recompiled == [name_of(asking(space, 2))]


def test_a_default_that_fails_or_gives_nan_skips_the_program(make: Callable[..., Candidates]) -> None:
    with pytest.raises(SkippedError, match="default configuration fails: OSError: no"):
        make(lambda *_: OSError("no"))
    with pytest.raises(SkippedError, match="holds NaN"):
        make(lambda *_: [1.0, float("nan")])


def test_a_parent_that_is_gone_ends_the_work(make: Callable[..., Candidates], space: LayoutSpace) -> None:
    def before(name: str | None) -> None:
        if name is not None:
            raise BrokenPipeError

    candidates = make(lambda *_: [1.0], before=before)
    with pytest.raises(BrokenPipeError):
        candidates.executable(asking(space, 1))


def test_quick_measurements_of_batches_compare(
    make: Callable[..., Candidates], space: LayoutSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = make(lambda calls, emitters: ValueError("refused") if calls == 3 else [1.0])
    level = iter([1.0, 50.0])

    def timer(rows: Rows) -> Timer:
        slow = next(level)
        return lambda index: slow * (2.0 + float(np.count_nonzero(rows[index] != -1)))

    monkeypatch.setattr(candidates, "timer", timer)
    batch = np.stack([asking(space, layouts) for layouts in (2, 3, 1)])
    for _ in range(2):
        found = candidates.quick(batch, np.random.default_rng(0))
        np.testing.assert_allclose(found, [3.0, np.inf, 2.0])

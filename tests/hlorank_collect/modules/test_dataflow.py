"""Demands of modules on their inputs, and inputs that meet them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank_collect.modules.dataflow import Dataflow, Demand, Value, demands
from hlorank_collect.modules.module_program import ELEMENT_TYPES, draw_inputs
from tests.hlorank_collect.modules.conftest import Parsed

GATHER = """
  %table = f32[10,16] parameter(0)
  %ids = s32[8] parameter(1)
  %zero = s32[] constant(0)
  %zeros = s32[8] broadcast(%zero), dimensions={}
  %size = s32[] constant(10)
  %sizes = s32[8] broadcast(%size), dimensions={}
  %negative = pred[8] compare(%ids, %zeros), direction=LT
  %wrapped = s32[8] add(%ids, %sizes)
  %index = s32[8] select(%negative, %wrapped, %ids)
  %column = s32[8,1] reshape(%index)
  ROOT %rows = f32[8,16] gather(%table, %column),
    offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,16}
"""


SLICES = """
  %x = f32[10,16] parameter(0)
  %i = s32[] parameter(1)
  %j = s32[] parameter(2)
  %update = f32[2,16] dynamic-slice(%x, %i, %j), dynamic_slice_sizes={2,16}
  ROOT %r = f32[10,16] dynamic-update-slice(%x, %update, %i, %j)
"""
SCATTER = """
  %x = f32[10,16] parameter(0)
  %i = s32[4,1] parameter(1)
  %updates = f32[4,3,16] parameter(2)
  ROOT %r = f32[10,16] scatter(%x, %i, %updates),
    update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
    to_apply=%set
"""
CALLED = """
%set {
  %old = f32[] parameter(0)
  ROOT %new = f32[] parameter(1)
}
%pick {
  %t = f32[10] parameter(0)
  %i = s32[] parameter(1)
  ROOT %r = f32[1] dynamic-slice(%t, %i), dynamic_slice_sizes={1}
}
%body {
  %state = (s32[], s32[], f32[10]) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  %at = s32[] get-tuple-element(%state), index=1
  %values = f32[10] get-tuple-element(%state), index=2
  %picked = f32[1] call(%values, %at), to_apply=%pick
  %all = f32[10] dynamic-update-slice(%values, %picked, %next)
  ROOT %result = (s32[], s32[], f32[10]) tuple(%next, %at, %all)
}
%condition {
  %state = (s32[], s32[], f32[10]) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %five = s32[] constant(5)
  ROOT %r = pred[] compare(%n, %five), direction=LT
}
%same {
  ROOT %i = s32[] parameter(0)
}
%more {
  %i = s32[] parameter(0)
  ROOT %r = s32[] add(%i, %i)
}
"""
LOOP = """
  %n = s32[] parameter(0)
  %pair = (s32[], f32[10]) parameter(1)
  %p = pred[] parameter(2)
  %free = s32[] parameter(3)
  %i = s32[] get-tuple-element(%pair), index=0
  %t = f32[10] get-tuple-element(%pair), index=1
  %j = s32[] conditional(%p, %i, %free), true_computation=%same, false_computation=%more
  %start = (s32[], s32[], f32[10]) tuple(%n, %j, %t)
  ROOT %end = (s32[], s32[], f32[10]) while(%start), condition=%condition, body=%body
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GATHER, {1: 10}),  # behind the wrapping of negative indices
        (SLICES, {1: 9, 2: 1}),  # starts where the slice fits
        (SLICES.replace("%i, %j)\n", "%j, %i)\n"), {1: 1, 2: 1}),
        (SCATTER, {1: 8}),
        (LOOP, {0: 10, 1: 10, 3: 10}),  # through tuples, calls, loops and branches
    ],
)
def test_the_bound_of_a_parameter_is_the_smallest_size_that_it_indexes(
    parsed: Parsed, body: str, expected: dict[int, int]
) -> None:
    flow = Dataflow(parsed(f"{CALLED}ENTRY %e {{\n{body}\n}}"))
    found = {flow.entry.index(value.node): demand.bound for value, demand in demands(flow).items()}
    assert found == expected


def test_positive_are_variances_and_second_moments_but_no_squares(parsed: Parsed) -> None:
    body = """
      %variance = f32[8] parameter(0)
      %moment = f32[8] parameter(1)
      %gradient = f32[8] parameter(2)
      %weight = f32[8] parameter(3)
      %r = f32[8] rsqrt(%variance)
      %square = f32[8] multiply(%gradient, %gradient)
      %sum = f32[8] add(%moment, %square)
      %s = f32[8] sqrt(%sum)
      %product = f32[8] multiply(%r, %weight)
      ROOT %result = f32[8] divide(%product, %s)
    """
    flow = Dataflow(parsed(f"ENTRY %e {{\n{body}\n}}"))
    found = demands(flow)
    assert [found.get(Value(node)) for node in flow.entry] == [
        Demand(positive=True), Demand(positive=True), None, None,
    ]  # fmt: skip


def drawn(parsed: Parsed, parameters: str, seed: int = 0) -> list[NDArray[Any]]:
    return [*draw_inputs(parsed(f"ENTRY %e {{\n{parameters}\nROOT %r = () tuple()\n}}"), seed)]


def test_integers_are_in_range_and_keys_are_any(parsed: Parsed) -> None:
    module = parsed(f"ENTRY %e {{{GATHER}}}")
    _, ids = draw_inputs(module, 0)
    assert set(ids.tolist()) <= set(range(10))
    assert len(set(ids.tolist())) > 2
    (key,) = drawn(parsed, "%key = u32[50,2] parameter(0)")
    assert key.max() > 2**31


def test_values_depend_on_the_seed_and_the_number_of_the_parameter_only(parsed: Parsed) -> None:
    one, other = "%a = f32[4] parameter(0)\n", "%b = f32[4] parameter(1)\n"
    first, second = drawn(parsed, one + other)
    assert first.tolist() != second.tolist()
    assert drawn(parsed, one)[0].tolist() == first.tolist()
    assert drawn(parsed, one, seed=1)[0].tolist() != first.tolist()


def test_every_type_has_values_of_its_own_that_can_be_put_and_run(parsed: Parsed) -> None:
    from hlorank_collect import xla
    from hlorank_collect.modules.module_program import check_measurable

    names = [
        "pred", "s2", "s4", "s8", "s16", "s32", "s64", "u2", "u4", "u8", "u16", "u32", "u64", "f16", "bf16", "f32",
        "f64", "c64", "c128", "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4",
        "f8e8m0fnu", "f4e2m1fn",
    ]  # fmt: skip
    assert len(names) == len(ELEMENT_TYPES)
    parameters = "\n".join(f"%p{i} = {name}[40,30] parameter({i})" for i, name in enumerate(names))
    reshaped = "\n".join(f"%r{i} = {name}[1200] reshape(%p{i})" for i, name in enumerate(names))
    root = f"ROOT %t = ({', '.join(f'{name}[1200]' for name in names)}) tuple({', '.join(f'%r{i}' for i in range(28))})"
    module = parsed(f"ENTRY %e {{\n{parameters}\n{reshaped}\n{root}\n}}")
    check_measurable(module)
    arrays = dict(zip(names, draw_inputs(module, 0), strict=True))
    outputs = xla.compile_module(module.SerializeToString()).run(xla.put([*arrays.values()], wide=True))
    for (name, array), output in zip(arrays.items(), outputs, strict=True):
        np.testing.assert_array_equal(np.asarray(output), array.ravel())
        if name[0] in "psu":
            assert sorted({*array.ravel().tolist()}) == [0, 1]
        elif name == "f8e8m0fnu":
            assert (array.astype(float) > 0).all()
        elif name != "f4e2m1fn":  # too coarse
            assert np.real(array).astype(float).std() == pytest.approx(0.1, rel=0.1)

"""Exported HLO text compiles, computes what the default computes, and has the layouts of the configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlorank.hlo.forms import hlo_text
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import ModuleConfiguration, apply, to_configuration
from hlorank.hlo.layout_search import random
from hlorank.hlo.layout_space import Layouts, layout_space
from hlorank_collect import xla
from hlorank_collect.timing import difference

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

ABOUT = {"hlorank": "0.1.0", "model": "m", "collection": "layout:cpu:random", "rank": 1, "score": 0.0}
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def program(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return carry @ carry.T, row.sum()

    looped, sums = jax.lax.scan(body, x @ x.T, x)
    return jax.numpy.tanh(looped).reshape(2, 2, 4).transpose(2, 0, 1), sums


def through_text(module: HloModuleProto, layouts: Layouts) -> HloModuleProto:
    """Return the module of the exported text of a configuration, which went through its JSON."""
    saved = to_configuration(module, layouts, ABOUT).model_dump_json()
    constrained = apply(module, ModuleConfiguration.model_validate_json(saved))
    text = hlo_text(constrained.SerializeToString())
    return HloModuleProto.FromString(xla.parse(text.encode(), stablehlo=False))


def outputs(module: HloModuleProto, inputs: list[Any]) -> list[Any]:
    executable = xla.compile_module(module.SerializeToString())
    return [np.asarray(one) for one in executable.run(inputs)]


def check(module: HloModuleProto, inputs: list[Any], configurations: int) -> None:
    space = layout_space(module)
    drawn = random(space, configurations, np.random.default_rng(0), lambda rows: np.zeros(len(rows)))
    reference = outputs(module, inputs)
    for one in drawn:
        assert difference(reference, outputs(through_text(module, one), inputs)) is None


@pytest.fixture(scope="module")
def captured() -> HloModuleProto:
    return HloModuleProto.FromString(xla.capture(xla.unoptimized_module(program, [X])))


def test_exported_texts_compute_the_same(captured: HloModuleProto) -> None:
    check(captured, xla.put([X]), 6)

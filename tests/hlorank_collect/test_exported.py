"""Exported HLO text compiles, computes what the default computes, and has the layouts of the configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlorank.hlo.forms import hlo_text
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import ModuleConfiguration, apply, to_configuration
from hlorank.hlo.layout_search import random
from hlorank.hlo.layout_space import layout_space
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


def outputs(module: HloModuleProto) -> list[Any]:
    executable = xla.compile_module(module.SerializeToString())
    return [np.asarray(one) for one in executable.run(xla.put([X]))]


def test_exported_texts_compute_the_same() -> None:
    captured = HloModuleProto.FromString(xla.capture(xla.unoptimized_module(program, [X])))
    reference = outputs(captured)
    for one in random(layout_space(captured), 6, np.random.default_rng(0), lambda rows: np.zeros(len(rows))):
        saved = to_configuration(captured, one, ABOUT).model_dump_json()
        constrained = apply(captured, ModuleConfiguration.model_validate_json(saved))
        text = hlo_text(constrained.SerializeToString())
        parsed = HloModuleProto.FromString(xla.parse(text.encode(), stablehlo=False))
        assert difference(reference, outputs(parsed)) is None

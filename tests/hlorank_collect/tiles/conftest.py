"""The code for GPUs on a CPU, where XLA accepts the options of GPUs and ignores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax (extra collect)")

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.tiles import measure_gemms
from hlorank_collect.tiles.triton_gemm import Gemm, Gemms, extract_gemms

GemmsOf = Callable[..., Gemms]


@pytest.fixture(scope="session")
def gemms_of() -> GemmsOf:
    """Finds the products of a function of float32 arrays of these shapes, or of these arrays."""

    def make(function: Callable[..., Any], *arguments: Any) -> Gemms:
        arrays = [np.zeros(one, np.float32) if isinstance(one, tuple) else one for one in arguments]
        return extract_gemms("program", HloModuleProto.FromString(xla.unoptimized_module(function, arrays)))

    return make


@pytest.fixture(scope="session")
def gemm(gemms_of: GemmsOf) -> Gemm:
    """The product of a (64, 128) and a (128, 96) matrix."""
    (gemm,) = gemms_of(lambda x, y: x @ y, (64, 128), (128, 96)).distinct
    return gemm


@pytest.fixture
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU in place of a GPU; no product counts as too fast, and Triton is not required."""
    device = xla._device("cpu")
    monkeypatch.setattr(xla, "_device", lambda _: device)
    monkeypatch.setattr(measure_gemms, "_TRITON", b"")
    monkeypatch.setattr(measure_gemms, "MIN_RUNTIME", 0)

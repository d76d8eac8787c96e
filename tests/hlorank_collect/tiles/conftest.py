"""Kernels of small functions, compiled as in `hlorank collect`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax (extra collect)")

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.tiles.kernel import Harvest, Kernel, harvest
from hlorank_collect.tiles.tile_task import TileTask
from tests.hlorank_collect.tasks import small_task

HarvestOf = Callable[..., Harvest]


@pytest.fixture(scope="session")
def gcc() -> str:
    """The path of gcc."""
    path = shutil.which("gcc")
    if path is None:
        pytest.skip("needs gcc")
    return path


@pytest.fixture
def task(tmp_path: Path, gcc: str) -> TileTask:
    """A task of a few tiles of one kernel."""
    return small_task(
        TileTask,
        program="tiled:layer",
        arguments="f32[512,64] f32[64,256]",
        collection="tile:cpu",
        output=str(tmp_path / "out"),
        rounds=3,
        time_limit=60,
        kernels=1,
    )


@pytest.fixture(scope="session")
def harvest_of() -> HarvestOf:
    """Finds the kernels of a function of float32 arrays of these shapes, or of these arrays."""

    def make(function: Callable[..., Any], *arguments: Any, name: str = "program") -> Harvest:
        arrays = [np.zeros(one, np.float32) if isinstance(one, tuple) else one for one in arguments]
        return harvest(
            name,
            HloModuleProto.FromString(
                xla.compile_module(xla.unoptimized_module(function, arrays), library_fusions=False).module()
            ),
        )

    return make


@pytest.fixture(scope="session")
def dot(harvest_of: HarvestOf) -> Kernel:
    """The product of a (20, 24) and a (24, 36) matrix."""
    (kernel,) = harvest_of(lambda x, y: x @ y, (20, 24), (24, 36)).kernels
    return kernel

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank_collect import xla
from hlorank_collect.tiles.triton_gemm import (
    Gemm,
    GemmConfiguration,
    GemmSizes,
    default_configuration,
    draw_configurations,
    fits,
)

CONFIGURATION = GemmConfiguration(block_m=64, block_n=128, block_k=32, split_k=4, num_stages=3, num_warps=8)
LARGE = GemmSizes(batch=1, batch_dims=0, m=1024, n=1024, k=1024, element_bytes=4)
SIZES = st.integers(2, 5000)


def test_the_compiler_reads_the_options_as_intended(gemm: Gemm, tmp_path: Path) -> None:
    xla.compile_module(gemm.module.SerializeToString(), overrides=CONFIGURATION.options(), dump=tmp_path)
    (dumped,) = tmp_path.glob("*.debug_options")
    found = dict(line.split(": ", 1) for line in dumped.read_text().splitlines() if ": " in line)
    assert found["xla_gpu_override_gemm_autotuner"] == (
        '"block_m: 64 block_n: 128 block_k: 32 split_k: 1 num_stages: 3 num_warps: 8 num_ctas: 1"'
    )
    assert found["xla_gpu_experimental_force_split_k"] == "4"
    assert found["xla_gpu_experimental_autotune_backends"] == "TRITON"
    assert found["xla_gpu_autotune_level"] == "0"


def test_the_order_of_the_values_in_the_bounds() -> None:
    bounds = CONFIGURATION.bounds(GemmSizes(6, 2, 8, 32, 16, 4))
    assert [*bounds.output_bounds] == [1, 1, 64, 128]
    assert [*bounds.kernel_bounds] == [32]
    assert [*bounds.input_bounds] == [4, 3, 8]
    assert CONFIGURATION.name == "m64.n128.k32.split4.stages3.warps8"


@settings(deadline=None, max_examples=30)
@given(m=SIZES, n=SIZES, k=SIZES, element_bytes=st.sampled_from([2, 4]), seed=st.integers(0, 9))
def test_configurations_are_distinct_and_fit_and_the_default_is_first(
    m: int, n: int, k: int, element_bytes: int, seed: int
) -> None:
    gemm = GemmSizes(1, 0, m, n, k, element_bytes)
    found = draw_configurations(gemm, 12, np.random.default_rng(seed))
    assert found[0] == default_configuration(gemm)
    assert len(set(found)) == len(found) == 12
    assert all(fits(one, gemm) for one in found)
    for one in found:
        assert 16 <= one.block_m < max(2 * m, 17)
        assert 16 <= one.block_n < max(2 * n, 17)
        assert 16 <= one.block_k < max(2 * k, 17)
        assert {one.block_m, one.block_n, one.block_k} <= {16, 32, 64, 128, 256}
    assert found == draw_configurations(gemm, 12, np.random.default_rng(seed))


def test_a_small_product_has_few_configurations() -> None:
    found = draw_configurations(GemmSizes(1, 0, 8, 8, 8, 4), 100, np.random.default_rng(0))
    assert len(found) == 20  # stages and warps
    assert {(one.block_m, one.block_n, one.block_k, one.split_k) for one in found} == {(16, 16, 16, 1)}


def test_the_default_is_limited_by_the_product() -> None:
    assert default_configuration(LARGE) == GemmConfiguration(64, 64, 32, 1, 3, 4)
    assert default_configuration(GemmSizes(1, 0, 20, 3000, 8, 2)) == GemmConfiguration(32, 64, 16, 1, 3, 4)


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (GemmConfiguration(128, 128, 32, 1, 5, 4), True),
        (GemmConfiguration(128, 128, 64, 1, 4, 4), False),  # 256 kB of shared memory
        (GemmConfiguration(256, 128, 16, 1, 1, 4), False),  # 256 sums for each thread
        (GemmConfiguration(256, 128, 16, 1, 1, 8), True),
        (GemmConfiguration(16, 16, 64, 16, 1, 4), True),
        (GemmConfiguration(16, 16, 128, 16, 1, 4), False),  # parts of half a block
    ],
)
def test_configurations_that_no_gpu_can_run_are_not_drawn(configuration: GemmConfiguration, expected: bool) -> None:
    assert fits(configuration, LARGE) is expected

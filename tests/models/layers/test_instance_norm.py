"""Instance normalization, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import instance_norm

from hlorank.models.compression.segment import Segment
from hlorank.models.layers.layer import InstanceNorm
from tests.models.run_layer import run_dense


def test_equals_pytorch(make_layer: Callable[..., InstanceNorm], segment: Segment) -> None:
    layer, x = make_layer("instance_norm"), 3 + 5 * torch.randn(24, 3, 6, dtype=torch.float64)
    torch.nn.init.normal_(layer.scale)
    torch.nn.init.normal_(layer.offset)
    expected = instance_norm(x.permute(1, 2, 0), weight=layer.scale, bias=layer.offset).permute(2, 0, 1)
    torch.testing.assert_close(run_dense(layer, x, segment), expected, rtol=1e-10, atol=1e-10)


def test_it_starts_with_mean_0_and_variance_1_and_equal_nodes_become_0(
    make_layer: Callable[..., InstanceNorm], segment: Segment
) -> None:
    layer, x = make_layer("instance_norm"), 3 + 5 * torch.randn(24, 3, 6, dtype=torch.float64)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(result.mean(0), torch.zeros(3, 6, dtype=torch.float64))
    torch.testing.assert_close(result.square().mean(0), torch.ones(3, 6, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    for equal in (x[:1], x[:1].expand(24, -1, -1)):
        torch.testing.assert_close(run_dense(layer, equal, segment), torch.zeros_like(equal))

"""Normalisation to unit length."""

from __future__ import annotations

import torch

from hlorank.models.layers.l2_norm import L2Norm


def test_states_get_unit_length_and_zeros_stay() -> None:
    x = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]], [[-2.0, 0.0]]], requires_grad=True)
    result = L2Norm()(x)
    torch.testing.assert_close(result, torch.tensor([[[0.6, 0.8]], [[0.0, 0.0]], [[-1.0, 0.0]]]))
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()

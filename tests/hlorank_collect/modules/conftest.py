"""Modules written by hand, as HLO text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto

Parsed = Callable[[str], HloModuleProto]


@pytest.fixture
def parsed() -> Parsed:
    """Returns the module of an HLO text, whose line `HloModule` is added."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    from hlorank_collect import xla

    def parse(text: str) -> HloModuleProto:
        return HloModuleProto.FromString(xla.parse(f"HloModule m\n{text}".encode(), stablehlo=False))

    return parse

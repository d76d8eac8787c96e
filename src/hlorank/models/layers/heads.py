"""Heads of attention."""

from __future__ import annotations

from hlorank.config import ConfigError


def head_width(width: int, heads: int) -> int:
    """How many channels each head has.

    Raises:
        ConfigError: the heads cannot share the width equally.
    """
    if heads < 1 or width % heads:
        raise ConfigError(f"model.heads={heads}: set it to a divisor of model.width={width}")
    return width // heads

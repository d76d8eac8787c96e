"""Streams of random numbers: no two purposes share a number or a draw."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import hlorank.training
from hlorank.training.random_streams import Stream, generator


def test_no_two_streams_draw_the_same_numbers() -> None:
    draws = {tuple(generator(0, stream, 1).integers(2**62, size=4).tolist()) for stream in Stream}
    assert len(draws) == len(Stream)


def test_a_draw_depends_on_its_key_and_seed() -> None:
    first = generator(0, Stream.STEP, 2, 3).random(4)
    np.testing.assert_array_equal(generator(0, Stream.STEP, 2, 3).random(4), first)
    for seed, *key in ((1, 2, 3), (0, 3, 2), (0, 2)):
        assert not np.array_equal(generator(seed, Stream.STEP, *key).random(4), first)


def test_training_draws_from_streams_alone() -> None:
    """Every stream has one user, and no module makes a generator of its own."""
    users: dict[str, list[str]] = {}
    for path in Path(hlorank.training.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if path.name == "random_streams.py":
            continue
        assert not re.search(r"default_rng\(|SeedSequence\(|RandomState\(", text), path.name
        for name in re.findall(r"\bStream\.(\w+)", text):
            users.setdefault(name, []).append(path.name)
    assert {name: len(found) for name, found in users.items()} == {stream.name: 1 for stream in Stream}

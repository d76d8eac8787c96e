"""Broken files give errors, never crashes, hangs or large memory."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.hlo import forms
from hlorank.hlo.reader import featurize, parse_records

PATH = Path("fuzz.pb")
MUTATIONS = 600


def flip_bits(data: bytearray, random: np.random.Generator) -> None:
    for place in random.integers(len(data), size=int(random.integers(1, 9))):
        data[place] ^= 1 << int(random.integers(8))


def truncate(data: bytearray, random: np.random.Generator) -> None:
    del data[int(random.integers(len(data))) :]


def cut_out(data: bytearray, random: np.random.Generator) -> None:
    start = int(random.integers(len(data)))
    del data[start : start + int(random.integers(1, 64))]


def insert(data: bytearray, random: np.random.Generator) -> None:
    start = int(random.integers(len(data)))
    data[start:start] = random.bytes(int(random.integers(1, 16)))


def repeat(data: bytearray, random: np.random.Generator) -> None:
    start = int(random.integers(len(data)))
    piece = data[start : start + int(random.integers(1, 256))]
    data[start:start] = piece * int(random.integers(1, 5))


BYTES: list[Callable[[bytearray, np.random.Generator], None]] = [flip_bits, truncate, cut_out, insert, repeat]


def read_all(data: bytes) -> int:
    return sum(featurize(record)[0].graph.nodes for record in parse_records(BytesIO(data), PATH))


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_mutated_files_are_read_or_refused(benchmark_module: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    messages = [(type(message), message.SerializeToString()) for message in benchmark_module["protobufs"]()]
    corpus = [(kind, data) for kind, data in messages if len(data) < 50_000]
    assert len(corpus) >= 12
    random = np.random.default_rng(0)
    caplog.set_level(logging.CRITICAL)
    assert all(read_all(data) >= 15 for _, data in corpus)
    before, read, slowest = peak_kib(), 0, 0.0
    refused: list[DataError] = []
    for _ in range(MUTATIONS):
        kind, original = corpus[int(random.integers(len(corpus)))]
        if random.integers(2):
            message = kind.FromString(original)
            for _ in range(int(random.integers(1, 4))):
                benchmark_module["change_field"](message, random)
            data = message.SerializeToString()
        else:
            mutable = bytearray(original)
            BYTES[int(random.integers(len(BYTES)))](mutable, random)
            data = bytes(mutable)
        start = time.process_time()
        try:
            read_all(data)
            read += 1
        except DataError as error:
            refused.append(error)
        slowest = max(slowest, time.process_time() - start)
    # Both outcomes are frequent, and the checks of many fields were reached.
    assert read > MUTATIONS // 10
    assert len({error.key.split(".")[-1] for error in refused}) >= 8
    assert all(error.file == PATH and len(str(error)) < 1_000 for error in refused)
    assert slowest < 2
    assert peak_kib() - before < 200_000


@pytest.mark.parametrize("number", [1, 3])
def test_a_file_of_empty_messages_is_refused_in_little_memory(number: int) -> None:
    data = bytes([number << 3 | 2, 0]) * (forms.MAX_BYTES // 2)
    before = peak_kib()
    with pytest.raises(DataError, match="at most"):
        read_all(data)
    assert peak_kib() - before < 100_000 + forms.MAX_BYTES // 2**10  # a copy, at most

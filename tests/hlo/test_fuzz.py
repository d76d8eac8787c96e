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
from google.protobuf.message import Message

from hlorank.files import DataError
from hlorank.hlo.reader import featurize, parse_records

PATH = Path("fuzz.pb")
MUTATIONS = 1_000


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


@pytest.fixture(scope="module")
def corpus(benchmark_module: dict[str, Any]) -> list[tuple[type[Message], bytes]]:
    """Serialize each kind of message with generated modules of 1 to 10 kB."""
    corpus = [(type(message), message.SerializeToString()) for message in benchmark_module["protobufs"]()]
    small = [(kind, data) for kind, data in corpus if len(data) < 50_000]
    assert len(small) >= 12
    return small


def read_all(data: bytes) -> int:
    return sum(featurize(record)[0].graph.nodes for record in parse_records(BytesIO(data), PATH))


def test_the_corpus_is_valid(corpus: list[tuple[type[Message], bytes]]) -> None:
    for _, data in corpus:
        assert read_all(data) >= 15


def test_mutated_files_are_read_or_refused(
    corpus: list[tuple[type[Message], bytes]], benchmark_module: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(0)
    caplog.set_level(logging.CRITICAL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read, slowest = 0, 0.0
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
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # Both outcomes are frequent, and the checks of many fields were reached.
    assert read > MUTATIONS // 10
    assert len({error.key.split(".")[-1] for error in refused}) >= 8
    assert all(error.file == PATH and len(str(error)) < 1_000 for error in refused)
    assert slowest < 2
    assert grown_kib < 200_000

"""Broken files give errors, never crashes, hangs or large memory."""

import logging
import resource
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.hlo import checks, forms
from hlorank.hlo.reader import featurize, parse_records

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attack.modules import protobufs  # of the folder of the benchmarks
from attack.mutations import mutate_message

PATH = Path("fuzz.pb")
MUTATIONS = 600


def read_all(data: bytes) -> int:
    return sum(featurize(record)[0].graph.nodes for record in parse_records(BytesIO(data), PATH))


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_mutated_files_are_read_or_refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, whole = checks._fault, checks._is_whole  # generated sizes fit no opcode: these run, but refuse nothing
    monkeypatch.setattr(checks, "_fault", lambda *given: fault(*given) and None)
    monkeypatch.setattr(checks, "_is_whole", lambda module: whole(module) and None)
    corpus = [message for message in protobufs() if message.ByteSize() < 50_000]
    assert len(corpus) >= 12
    random = np.random.default_rng(0)
    caplog.set_level(logging.CRITICAL)
    assert all(read_all(message.SerializeToString()) >= 15 for message in corpus)
    before, read, slowest = peak_kib(), 0, 0.0
    refused: list[DataError] = []
    for _ in range(MUTATIONS):
        data = mutate_message(corpus[int(random.integers(len(corpus)))], random)
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

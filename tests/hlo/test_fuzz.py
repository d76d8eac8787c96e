"""Broken files give errors, never crashes, hangs or large memory."""

from __future__ import annotations

import contextlib
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
from hlorank.hlo.hlo_pb2 import HloProto, ModuleTuningData, TuningData
from hlorank.hlo.opcodes import CONFIGURABLE
from hlorank.hlo.reader import featurize, parse_records

PATH = Path("fuzz.pb")
MUTATIONS = 1_000
EXTREMES = [0, 1, -1, 2, 97, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63)]


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


def change_field(message: Message, random: np.random.Generator) -> None:
    """Change one field somewhere below a message, so that the result still parses and reaches the deeper checks."""
    while fields := [field for field, _ in message.ListFields()]:
        field = fields[int(random.integers(len(fields)))]
        value: Any = getattr(message, field.name)
        extreme = EXTREMES[int(random.integers(len(EXTREMES)))]
        if field.is_repeated:
            place, action = int(random.integers(len(value))), int(random.integers(8))
            if action == 0:
                del value[place]
                return
            if action == 1:
                value.extend([value[place]] * int(random.integers(1, 50)))
                return
            if field.message_type is None:
                with contextlib.suppress(ValueError, TypeError):  # out of range, or no number
                    value[place] = extreme
                return
            message = value[place]
        elif field.message_type is not None:
            message = value
        elif isinstance(value, int):
            with contextlib.suppress(ValueError):
                setattr(message, field.name, extreme)
            return
        else:
            message.ClearField(field.name)
            return


@pytest.fixture(scope="module")
def corpus(benchmark_module: dict[str, Any]) -> list[tuple[type[Message], bytes]]:
    """Serialize each kind of message with generated modules of 1 to 10 kB."""
    made: list[Message] = []
    for nodes, seed in ((15, 1), (40, 2), (120, 3)):
        module = benchmark_module["generated_module"](nodes, seed)
        instructions = [one for computation in module.computations for one in computation.instructions]
        for one in instructions:
            if one.opcode in CONFIGURABLE:
                del one.shape.dimensions[6:]
        chosen = [node for node, one in enumerate(instructions) if one.opcode == "dot"][:3]
        layout = ModuleTuningData(module=module, fingerprint=seed, config_index_to_node=chosen)
        tile = ModuleTuningData(module=module, fingerprint=seed + 9)
        for nanoseconds in range(1_000, 1_020):
            run = layout.runs.add()
            run.profile.compute_time_ns = nanoseconds
            for _ in chosen:
                run.module_config.layout_config.nodes.add().tensors.add(dims=[1, 0])
            run = tile.runs.add(is_default=nanoseconds == 1_000)
            run.profile.compute_time_ns = nanoseconds
            run.op_config.tile_size_config.output_bounds.extend([4, 8])
        made += [module, HloProto(hlo_module=module), layout, tile]
        made.append(TuningData(modules=[layout.SerializeToString(), tile.SerializeToString()]))
    corpus = [(type(message), message.SerializeToString()) for message in made]
    small = [(kind, data) for kind, data in corpus if len(data) < 50_000]
    assert len(small) >= 12
    return small


def read_all(data: bytes) -> int:
    return sum(featurize(record)[0].graph.nodes for record in parse_records(BytesIO(data), PATH))


def test_the_corpus_is_valid(corpus: list[tuple[type[Message], bytes]]) -> None:
    for _, data in corpus:
        assert read_all(data) >= 15


def test_mutated_files_are_read_or_refused(
    corpus: list[tuple[type[Message], bytes]], caplog: pytest.LogCaptureFixture
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
                change_field(message, random)
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

"""Mutations of bytes, of messages, and of members of a zip file."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.message import Message

EXTREMES = (0, 1, -1, 2, 97, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Return bytes with a few flipped bits, or with a piece removed, inserted, repeated, or cut off."""
    changed = bytearray(data)
    start = int(random.integers(len(changed)))
    match int(random.integers(6)):
        case 0 | 1:
            for place in random.integers(len(changed), size=int(random.integers(1, 9))):
                changed[place] ^= 1 << int(random.integers(8))
        case 2:
            del changed[start:]
        case 3:
            del changed[start : start + int(random.integers(1, 64))]
        case 4:
            changed[start:start] = random.bytes(int(random.integers(1, 16)))
        case 5:
            changed[start:start] = changed[start : start + int(random.integers(1, 256))] * int(random.integers(1, 5))
    return bytes(changed)


def mutate_message(message: Message, random: np.random.Generator) -> bytes:
    """Return a serialized message with changed bytes, or with up to three changed fields, which parses."""
    data = message.SerializeToString()
    if random.integers(2):
        return mutate(data, random)
    changed = type(message).FromString(data)
    for _ in range(int(random.integers(1, 4))):
        _change_field(changed, random)
    return changed.SerializeToString()


def _change_field(message: Message, random: np.random.Generator) -> None:
    """Change one field of a message or of those inside it."""
    if not (fields := [field for field, _ in message.ListFields()]):
        return
    field = fields[int(random.integers(len(fields)))]
    value: Any = getattr(message, field.name)
    place, action = int(random.integers(len(value))) if field.is_repeated else 0, int(random.integers(8))
    extreme = EXTREMES[int(random.integers(len(EXTREMES)))]
    if field.is_repeated and action == 0:
        del value[place]
    elif field.is_repeated and action == 1:
        value.extend([value[place]] * int(random.integers(1, 50)))
    elif field.message_type is not None:
        _change_field(value[place] if field.is_repeated else value, random)
    elif field.is_repeated:
        with contextlib.suppress(ValueError, TypeError):  # out of range, or no number
            value[place] = extreme
    elif isinstance(value, int):
        with contextlib.suppress(ValueError):
            setattr(message, field.name, extreme)
    else:
        message.ClearField(field.name)


def rezipped(
    data: bytes,
    change: Callable[[str, bytes], bytes] = lambda _, data: data,
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """Return a zip file whose members are changed before they are packed, so that their checksums are right."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(output, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), change(name, old.read(name)), compression)  # without the time
    return output.getvalue()

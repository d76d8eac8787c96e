"""Where the parts of a serialized protobuf lie in its file, so that they can be read one at a time.

Wire format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import os
from typing import BinaryIO

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for place in range(_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return value
    return None


def field_places(file: BinaryIO, number: int) -> list[tuple[int, int]]:
    """Where the strings, bytes or messages of a field lie.

    Args:
        file: a serialized message, from its first byte to the end of the file.
        number: of the field.

    Returns:
        the offset and the size in bytes of each entry; none where the file is not a whole message.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    places: list[tuple[int, int]] = []
    while file.tell() < size:
        tag = _varint(file)
        length = {_FIXED64: 8, _FIXED32: 4}.get(-1 if tag is None else tag & 7)
        if tag is not None and tag & 7 in (_VARINT, _DELIMITED):
            length = _varint(file)
            if tag & 7 == _VARINT and length is not None:
                length = 0  # the value was all there is
        if tag is None or length is None or file.tell() + length > size:
            return []
        if (tag >> 3, tag & 7) == (number, _DELIMITED):
            places.append((file.tell(), length))
        file.seek(length, os.SEEK_CUR)
    return places

"""Opcode ids."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from hlorank.hlo.hlo_pb2 import HloInstructionProto
from hlorank.hlo.opcodes import OPCODES, opcode_ids


def test_the_table_is_complete() -> None:
    assert sorted(OPCODES.values()) == list(range(1, 121))
    assert (OPCODES["abs"], OPCODES["convolution"], OPCODES["dot"], OPCODES["reshape"], OPCODES["tan"]) == (
        1, 26, 34, 75, 120,
    )  # fmt: skip


def test_the_table_is_the_official_one(shared_data: Path) -> None:
    with (shared_data / "opcodes.csv").open(encoding="utf-8") as file:
        assert {row["opcode"]: int(row["id"]) for row in csv.DictReader(file)} == OPCODES


def test_unknown_opcodes_become_zero() -> None:
    ids = opcode_ids([HloInstructionProto(opcode=name) for name in ("add", "ragged-dot", "tan")])
    assert ids.dtype == np.uint8
    assert ids.tolist() == [2, 0, 120]

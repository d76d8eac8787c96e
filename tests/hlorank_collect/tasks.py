"""Small tasks of measuring and modules, for tests."""

from typing import Any, TypeVar

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect.task import Progress, Task

AnyTask = TypeVar("AnyTask", bound=Task)
SHAPES = "f32[8,16] f32[16,8]"
DOTS = {"program": "user_programs:dots", "arguments": SHAPES, "collection": "layout:cpu:random"}


def small_task(kind: type[AnyTask], **fields: Any) -> AnyTask:
    """Make a task of four configurations and four rounds; other fields, and these too, are given by their names."""
    usual = {"configurations": 4, "seed": 0, "rounds": 4, "time_limit": 60.0, "core": None}
    return kind(**{"arguments": None, **usual, **fields})


def silent(progress: Progress) -> None:
    """Report nothing."""


def parsed(body: str, computations: str = "") -> HloModuleProto:
    """Return the module of an entry computation, and others, in HLO text."""
    from hlorank_collect import xla_texts

    text = f"HloModule m\n{computations}\nENTRY %e {{\n{body}\n}}"
    return HloModuleProto.FromString(xla_texts.parse(text.encode(), stablehlo=False))

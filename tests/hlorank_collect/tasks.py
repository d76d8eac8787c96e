"""Small tasks of measuring, for tests."""

from __future__ import annotations

from typing import Any, TypeVar

from hlorank_collect.task import Progress, Task

AnyTask = TypeVar("AnyTask", bound=Task)


def small_task(kind: type[AnyTask], **fields: Any) -> AnyTask:
    """Make a task of four configurations and four rounds; other fields, and these too, are given by their names."""
    usual = {"configurations": 4, "seed": 0, "rounds": 4, "fast_compile": False, "time_limit": 60.0, "core": None}
    return kind(**{"arguments": None, **usual, **fields})


def silent(progress: Progress) -> None:
    """Report nothing."""

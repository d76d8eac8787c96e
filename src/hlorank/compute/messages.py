"""Messages between this process and its workers: a call, and its result or error."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from hlorank.config import ConfigError
from hlorank.files import DataError

Item = TypeVar("Item")


class WorkerDiedError(Exception):
    """The end of a worker before its call returned; the message gives the reason."""


def message(function: Callable[[Item], object], item: Item) -> bytes:
    """Return a call for a worker.

    Raises:
        Exception: the function cannot be imported by its name, or an argument cannot be pickled.
    """
    return pickle.dumps((function, item))


def answer(call: bytes) -> bytes:
    """Make a call in a worker, and return its result or error; an error of the program has its traceback as a note."""
    try:
        function, item = pickle.loads(call)  # noqa: S301 - from the process that started this worker
        reply: tuple[Any, Exception | None] = function(item), None
    except (ConfigError, DataError, OSError) as error:
        reply = None, error
    except Exception as error:
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        reply = None, error
    try:
        return pickle.dumps(reply)
    except Exception as error:  # a result or an error that cannot be pickled
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def refusal(problem: str) -> bytes:
    """Return the answer of a worker that can do no work."""
    return pickle.dumps((None, problem))


def result_of(reply: bytes) -> Any:
    """Return the result of a call.

    Raises:
        ConfigError: the worker can do no work.
        Exception: what the call raised.
    """
    result, error = pickle.loads(reply)  # noqa: S301 - from a worker of this process
    if isinstance(error, str):
        raise ConfigError(error)
    if error is not None:
        raise error
    return result

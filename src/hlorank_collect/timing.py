"""Timing of configurations in interleaved rounds, and comparison of their outputs with the default's."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.metrics import kendall_tau

Float64 = NDArray[np.float64]
Timer = Callable[[int], float]
"""Measures the configuration at an index once, and returns its runtime in nanoseconds."""
_EPSILON = {"bfloat16": 2.0**-7}  # finfo of numpy has only numpy's own types
_AGREEMENT = 0.9  # split-half Kendall tau at which the halves of the rounds agree
_CHECK = 5  # rounds between two comparisons
_COARSE = 0.25  # for 8-bit floats


class WrongOutputError(RuntimeError):
    """A configuration whose outputs differ from the default's."""


@dataclass(frozen=True)
class Rounds:
    """Number of rounds: measuring ends at the round limit, the time limit, or as soon as two halves agree."""

    min: int = 10
    """Rounds before the halves are compared."""
    max: int = 100
    """Round limit."""
    certain: int = 2
    """Rounds that are measured even after the time limit, up to `max`: each half needs one."""


def runtimes(times: Float64) -> Float64:
    """Estimate the runtime of each configuration, without the effects that slow down whole rounds.

    The estimate is exp of the median over rounds of (log T - median over configurations of log T), times the usual
    level of the machine: exp of the median over rounds of the median over configurations of log T. Times T are (rounds,
    configurations), all positive.
    """
    logs = np.log(times)
    level = np.median(logs, axis=1, keepdims=True)
    estimate: Float64 = np.exp(np.median(logs - level, axis=0) + np.median(level))
    return estimate


def split_half_tau(times: Float64) -> float:
    """Compute Kendall tau between the runtimes of even and odd rounds, NaN below two rounds or configurations."""
    if len(times) < 2:
        return math.nan
    return kendall_tau(runtimes(times[::2]), runtimes(times[1::2]))


def measure(
    timer: Timer,
    configurations: int,
    rng: np.random.Generator,
    rounds: Rounds,
    *,
    deadline: float = math.inf,
    heartbeat: Callable[[int], None] = lambda _: None,
) -> Float64:
    """Measure all configurations in each round, in a new random order: (rounds, configurations) nanoseconds.

    After the deadline, a `time.monotonic()`, no round is started, except for the `certain` ones. `heartbeat` is called
    after each round with the number of finished rounds. A time that is not positive and finite raises ValueError.
    """
    done: list[Float64] = []
    gc.collect()
    with ExitStack() as stack:
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        while len(done) < rounds.max:
            row = np.empty(configurations)
            for index in rng.permutation(configurations).tolist():
                row[index] = timer(index)
                if not 0 < row[index] < math.inf:
                    raise ValueError(f"timer: expected a positive time, found {row[index]} of configuration {index}")
            done.append(row)
            count = len(done)
            heartbeat(count)
            if count >= rounds.certain and time.monotonic() > deadline:
                break
            compared = count >= rounds.min and (count - rounds.min) % _CHECK == 0
            if compared and (configurations == 1 or split_half_tau(np.stack(done)) >= _AGREEMENT):
                break
    return np.stack(done)


def _comparable(array: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return an array of a type of numpy, and the tolerance: half the digits of floats, 0 for whole numbers."""
    if array.dtype.isbuiltin == 1 and array.dtype.kind in "fc":
        return array, float(np.finfo(array.dtype).eps) ** 0.5
    if array.dtype.kind in "biu":
        return array, 0.0
    if "int" in array.dtype.name:  # of 4 and 2 bits
        return array.astype(np.int8), 0.0
    return array.astype(np.float32), _EPSILON.get(array.dtype.name, _COARSE) ** 0.5


def has_nan(output: NDArray[Any]) -> bool:
    """Return True if an output holds NaN."""
    array, tolerance = _comparable(output)
    return bool(tolerance and np.isnan(array).any())


def difference(reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> str | None:
    """Compare outputs with the outputs of the default configuration, which hold no NaN.

    Floats may differ by half of their digits, relative to the value or to the root mean square of its output, since
    layouts change the order of sums; whole numbers may not. The first output that differs is described; else None.
    """
    for number, (wanted, got) in enumerate(zip(reference, outputs, strict=True)):
        expected, tolerance = _comparable(wanted)
        found, _ = _comparable(got)
        finite = np.abs(expected[np.isfinite(expected)]).astype(np.float64)
        scale = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        close = np.isclose(found, expected, rtol=tolerance, atol=tolerance * scale)
        if not close.all():
            return f"{np.count_nonzero(~close)} of {close.size} values of output {number} differ from the default's"
    return None

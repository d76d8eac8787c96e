"""Search spaces: overrides in Hydra's syntax as distributions of Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from hlorank.config import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = dict[str, "BaseDistribution"]


def split(overrides: Sequence[Override]) -> tuple[list[str], Space]:
    """Split overrides into those with one value and the search space; the last override of a key counts.

    Args:
        overrides: parsed; `choice`, `range` and `interval`, also with `tag(log, ...)`, define a search space.

    Returns:
        Overrides with one value as text, and the distribution of each other key.

    Raises:
        ConfigError: a range is empty, has an unknown tag, or is a logarithmic range of fractions.
    """
    last = {override.get_key_element(): override for override in overrides}
    fixed, space = list[str](), Space()
    for key, override in last.items():
        if override.is_sweep_override():
            space[key] = _distribution(key, override)
        else:
            fixed.append(f"{key}={override.get_value_element_as_str()}")
    return fixed, space


def _distribution(key: str, override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    value = override.value()
    if not isinstance(value, IntervalSweep | RangeSweep):
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    log = "log" in value.tags
    if unknown := value.tags - {"log"}:
        raise ConfigError(f"{key}: expected no tag but log, found {', '.join(sorted(unknown))}")
    try:
        return _interval(value, log) if isinstance(value, IntervalSweep) else _range(value, log)
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}") from None


def _interval(value: IntervalSweep, log: bool) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high = cast("tuple[Any, Any]", (value.start, value.end))
    if isinstance(low, int) and isinstance(high, int):  # as int(interval(1, 8)) makes them
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _range(value: RangeSweep, log: bool) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    found: list[Any] = sorted(value.range())
    if not found:
        raise ValueError("the range is empty")
    low, high, step = found[0], found[-1], abs(value.step)
    if isinstance(low, int):
        return IntDistribution(low, high, log=log, step=int(step))
    if log:
        raise ValueError("a range of fractions can't be logarithmic; use interval")
    return FloatDistribution(low, high, step=float(step))


def as_overrides(parameters: Mapping[str, Any]) -> list[str]:
    """Return the overrides that set the parameters of a trial."""
    return [f"{key}={value}" for key, value in parameters.items()]

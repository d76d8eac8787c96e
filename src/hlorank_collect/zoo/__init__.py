"""Built-in programs: neural networks of many families in plain JAX, each as forward function and training step."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType

from hlorank.config import ConfigError
from hlorank_collect.jax_program import Arguments, Function, JaxProgram, require_jax
from hlorank_collect.zoo.catalog import CATALOG, MODULES, Row


@cache
def programs() -> Mapping[str, JaxProgram]:
    """Return all programs by name, in the order of the catalog; none of them is built yet."""
    rows = [(f"{row.name}.{mode}", row, mode) for row in CATALOG for mode in row.modes]
    return MappingProxyType(
        {name: JaxProgram(name, row.family, partial(_build, row, mode)) for name, row, mode in rows}
    )


def program_named(name: str) -> JaxProgram:
    """Return the program of a name.

    Raises:
        ConfigError: the zoo has no program `name`; the message has the most similar names.
    """
    if name in programs():
        return programs()[name]
    near = get_close_matches(name, programs(), n=5, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"families: {', '.join(MODULES)}"
    raise ConfigError(f"program {name!r}: neither in the zoo nor a file; {hint}")


def _build(row: Row, mode: str) -> tuple[Function, Arguments]:
    require_jax()
    from hlorank_collect.zoo.model_programs import Model, forward_program, train_program

    family = getattr(import_module(f"{__name__}.{MODULES[row.family]}"), row.family)
    model: Model = family(**row.config)
    return train_program(model) if mode == "train" else forward_program(model)

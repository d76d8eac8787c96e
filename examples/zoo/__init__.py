"""Programs to measure: networks of many families in plain JAX, and Keras's applications, forward and as training steps.

From the project's folder, `hlorank collect $(python -m examples.zoo vit lstm) --out own` measures the programs of two
families; one program is named like `examples.zoo:vit_b2_forward`. Keras's need `pip install keras`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from hlorank_collect.program import Arguments, Function, JaxProgram

from .catalog import APPLICATIONS, CATALOG, MODULES

MODES = ("forward", "train")


@cache
def programs() -> Mapping[str, JaxProgram]:
    """Return all programs by name, in the order of the catalog; none of them is built yet."""
    found = {}
    for row in CATALOG:
        for mode in MODES:
            build = partial(_build, MODULES[row.family], row.family, row.sizes, mode)
            found[f"{row.name}.{mode}"] = JaxProgram(f"{row.name}.{mode}", row.family, build)
    for family, applications in APPLICATIONS.items():
        for application, side in applications.items():
            for mode in MODES:
                name, sizes = f"keras.{application.lower()}.{mode}", {"name": application, "side": side}
                build = partial(_build, "keras_applications", "application", sizes, mode)
                found[name] = JaxProgram(name, f"keras-{family}", build)
    return MappingProxyType(found)


def _build(module: str, function: str, sizes: Mapping[str, Any], mode: str) -> tuple[Function, Arguments]:
    from .model import Model, forward_program, train_program

    model: Model = getattr(import_module(f"{__name__}.{module}"), function)(**sizes)
    return train_program(model) if mode == "train" else forward_program(model)


def attribute(name: str) -> str:
    """Return the name of a program as an attribute of this module."""
    return name.replace(".", "_").replace("-", "_")


def __getattr__(name: str) -> JaxProgram:
    """Return a program, so that `examples.zoo:vit_b2_forward` names `vit.b2.forward`."""
    for program in programs().values():
        if attribute(program.name) == name:
            return program
    raise AttributeError(f"no program {name!r}: python -m examples.zoo lists them")

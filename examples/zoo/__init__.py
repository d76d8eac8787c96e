"""Programs to measure: networks of many families in plain JAX, and Keras's applications, forward and as training steps.

From the project's folder, `hlorank collect $(python -m examples.zoo vit lstm) --out own` measures the programs of two
families; a program is named like `examples.zoo:vit_b2_forward`. Keras's need the extra `zoo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from itertools import product
from types import MappingProxyType
from typing import Any

from hlorank_collect.program import Arguments, Function, JaxProgram

from .catalog import APPLICATIONS, CATALOG, FUNCTIONS, FURTHER_SIDES, LEAST_SIDES, TPU_CATALOG

MODES = ("forward", "train")


@cache
def programs() -> Mapping[str, JaxProgram]:
    """Return all programs by name, in the order of the catalog; none of them is built yet."""
    found = {}
    for model, sizes in [*CATALOG.items(), *TPU_CATALOG.items()]:
        family = model.partition(".")[0]
        for mode in MODES:
            found[f"{model}.{mode}"] = JaxProgram(f"{model}.{mode}", family, partial(_build, family, sizes, mode))
    for family, applications in APPLICATIONS.items():
        for application in applications.split():
            least, further = LEAST_SIDES.get(application, 64), FURTHER_SIDES.get(application)
            for side, mode in product(filter(None, (least, further)), MODES):
                name = ".".join(["keras", application.lower(), *([str(side)] if side == further else []), mode])
                sizes = {"name": application, "side": side}
                found[name] = JaxProgram(name, f"keras-{family}", partial(_build, "application", sizes, mode))
    return MappingProxyType(found)


def _build(function: str, sizes: Mapping[str, Any], mode: str) -> tuple[Function, Arguments]:
    from . import attentions, convnets, families
    from .model import Model, forward_program, train_program

    function = FUNCTIONS.get(function, function)
    module = next(module for module in (families, convnets, attentions) if hasattr(module, function))
    model: Model = getattr(module, function)(**sizes)
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

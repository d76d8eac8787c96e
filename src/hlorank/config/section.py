"""Base class of all configuration sections, and the report of every mistake in one error."""

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from hlorank.files import DataError, in_main, one_line, read_json

PASSWORD = re.compile(r"://[^:/@\s]*:\S*@|[?&](password|token)=")
STORE_ADDRESS = "an address without its password, which files would show: set MLFLOW_TRACKING_URI, or PGPASSWORD"
_MAX_MISTAKES = 100
_MAX_SHOWN = 200  # characters of a wrong value


class ConfigError(ValueError):
    """A configuration with unknown keys, wrong types, missing values or values out of range; a line for each."""

    def __str__(self) -> str:
        return "\n".join(map(one_line, super().__str__().split("\n")))


class Section(BaseModel):
    """A part of the configuration: names, types, constraints and meanings; the values are in conf/.

    The docstring below a field is its meaning in docs/reference/configuration.md.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a run that is called 2024 is a number in YAML
        defer_build=True,  # most commands read few sections
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_boolean(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is expected: Python's bool is an int."""
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = {kind, *get_args(kind)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise refused("a number")
        return value

    def require(self, holds: bool, key: str, expected: str) -> Self:
        """Return this section where a rule that spans several keys holds; else refuse the value of one of them."""
        if not holds:
            raise refused(expected, key=key, value=getattr(self, key))
        return self


SectionType = TypeVar("SectionType", bound=Section)


def refused(expected: str, **field: object) -> PydanticCustomError:
    """Return the error of a validator; that of a whole section has `key` and `value` of the field to report."""
    return PydanticCustomError("refused", "expected {expected}", {"expected": expected, **field})


def _without_password(address: str) -> str:
    if PASSWORD.search(address):
        raise refused(STORE_ADDRESS)
    return address


MainFolder = Annotated[str, AfterValidator(in_main)]
"""Folder that copies of a checkout share with it: DVC and git delete copies."""
StoreAddress = Annotated[MainFolder, AfterValidator(_without_password)]
"""Address of a store, without a password, which Hydra and DVC would write into files; a file is shared by copies."""


def parse(section: type[SectionType], values: object, *, prefix: str = "") -> SectionType:
    """Validate plain values as a section, whose dotted key is `prefix`; a ConfigError has a line for each wrong key."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        lines = [_line(section, problem, prefix) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines[:_MAX_MISTAKES])) from None


def read_section(section: type[SectionType], path: Path, remedy: str) -> SectionType:
    """Read a JSON file as a section; a DataError names what is wrong, and the remedy."""
    try:
        return parse(section, read_json(path))
    except DataError as error:
        raise DataError(error.key, f"{error.expected}; {remedy}", error.found, file=path) from None
    except ConfigError as error:
        found = "; ".join(str(error).splitlines())
        raise DataError("content", f"a {section.__name__}; {remedy}", found, file=path) from None


def _line(section: type[Section], problem: ErrorDetails, prefix: str) -> str:
    location, context = problem["loc"], problem.get("ctx", {})
    parts = [prefix, *(str(part) for part in location if part != "[key]"), str(context.get("key", ""))]
    key = ".".join(filter(None, parts))
    match problem["type"]:
        case "missing":
            return one_line(f"{key}: no value")
        case "extra_forbidden":
            return unknown_key(key, fields_at(section, location[:-1]))
    value = context.get("value", problem["input"])
    shown = value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]} ..."  # what is wrong must stay readable
    return one_line(f"{key}={shown}: {context.get('error', problem['msg'])}")


def unknown_key(key: str, names: Iterable[str]) -> str:
    """Return the line about a key that does not exist, with the names of its section."""
    return one_line(f"{key}: no such key; expected one of {', '.join(names)}")


def fields_at(section: type[BaseModel], location: Sequence[int | str]) -> Collection[str]:
    """Return the names of the fields of the section at a location; none where there is no section."""
    for part in location:
        field = section.model_fields.get(str(part))
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return []
        section = inner[0]
    return section.model_fields


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

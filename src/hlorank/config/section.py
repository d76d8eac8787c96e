"""Validation of configuration sections: what every section shares, and how mistakes are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError


class ConfigError(ValueError):
    """A configuration with an unknown key, a wrong type, a missing value or one out of range."""


class Section(BaseModel):
    """A part of the configuration: names, types, constraints and meanings; the values are in conf/.

    The docstring below a field is its meaning in docs/reference/configuration.md.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a run that is called 2024 is a number in YAML
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


SectionType = TypeVar("SectionType", bound=Section)


def registered(mapping: str) -> AfterValidator:
    """Return a validator for names that an extension point defines.

    Args:
        mapping: name of the extension point. The validation context holds the names that it has; without a context
            every name passes, and the component that looks the name up refuses it.
    """

    def check(name: str, info: ValidationInfo) -> str:
        names = (info.context or {}).get(mapping)
        if names is not None and name not in names:
            raise PydanticCustomError("unknown_name", "{expected}", {"expected": f"one of {', '.join(names)}"})
        return name

    return AfterValidator(check)


def find(mapping: Mapping[str, Any], key: str, name: str) -> Any:
    """Return an entry of an extension point.

    Args:
        mapping: the entries by name.
        key: of the configuration that holds the name.
        name: of the entry.

    Raises:
        ConfigError: `mapping` has no entry of that name.
    """
    if name not in mapping:
        raise ConfigError(f"{key}={name}: expected one of {', '.join(mapping)}")
    return mapping[name]


def parse(
    section: type[SectionType],
    values: object,
    *,
    prefix: str = "",
    registries: Mapping[str, Collection[str]] | None = None,
) -> SectionType:
    """Validate plain values as a section.

    Args:
        section: the class to make.
        values: nested dicts and lists of plain values.
        prefix: dotted key of the section within the configuration.
        registries: the names that each extension point has.

    Raises:
        ConfigError: names every wrong key, its value and what is allowed, one line each.
    """
    try:
        return section.model_validate(values, context=registries)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(section, error, prefix))) from None


def _problems(section: type[Section], error: ValidationError, prefix: str) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        location = [part for part in problem["loc"] if part != "[key]"]
        key = ".".join(map(str, [prefix, *location] if prefix else location))
        expected = _expected(section, problem, key)
        if problem["type"] in ("missing", "extra_forbidden"):
            yield f"{key}: {expected}"
        elif not location and problem["type"] == "value_error":
            yield f"{prefix}: {expected}" if prefix else expected
        else:
            yield f"{key}={_shown(problem['input'])}: {expected}"


def _shown(value: object) -> str:
    """A value as it is written on the command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
    return str(value)


def _expected(section: type[Section], problem: ErrorDetails, key: str) -> str:
    """What is allowed where a problem is."""
    context, kind = problem.get("ctx", {}), problem["type"]
    match kind:
        case "extra_forbidden":
            return _unknown_key(section, problem["loc"])
        case "missing":
            return "no value; conf/ sets a default for every key"
        case "literal_error":
            return f"expected one of {context['expected'].replace(' or ', ', ')}".replace("'", "")
        case "unknown_name":
            return f"expected {context['expected']}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bound = {"greater_than": "above", "greater_than_equal": "of at least", "less_than": "below"}
            limit = next(iter(context.values()))
            return f"expected a number {bound.get(kind, 'of at most')} {limit}"
        case "list_type":
            return f"expected a list, such as {key}=[{problem['input']}]"
        case "too_short":
            return "expected at least one entry"
        case "value_error":
            return str(context["error"])
    types = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}
    types |= {"finite": "a finite number", "model": "a group of keys", "dict": "a group of keys"}
    return f"expected {types[start]}" if (start := kind.partition("_")[0]) in types else problem["msg"]


def _unknown_key(section: type[Section], location: Sequence[int | str]) -> str:
    """The keys that there are where an unknown one was found, or the one that it resembles."""
    names = list(_fields(section, location[:-1]))
    if near := get_close_matches(str(location[-1]), names, n=1):
        return f"no such key; did you mean {near[0]}?"
    return f"no such key; expected one of {', '.join(names)}"


def _fields(section: type[BaseModel], location: Sequence[int | str]) -> Collection[str]:
    """The fields of the section at a location."""
    if not location:
        return section.model_fields
    field = section.model_fields.get(str(location[0]))
    kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
    inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return [] if inner is None else _fields(inner, location[1:])

"""Base class of all configuration sections, and the report of every mistake in one error."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from hlorank.files import DataError, one_line, read_json

Registries = Mapping[str, Mapping[str, Any]]
"""Extension points by name (origins, partitioners, layers, poolings, losses, methods)."""

_MEANT = "; did you mean "
_MAX_MISTAKES = 100


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
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_boolean(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is expected: Python's bool is an int."""
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = {kind, *get_args(kind)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise PydanticCustomError("int_type" if int in kinds else "float_type", "a number")
        return value

    def require(self, holds: bool, key: str, expected: str) -> Self:
        """Return this section where a rule that spans several keys holds; for the model validators of sections.

        Args:
            holds: True if the rule is satisfied.
            key: the field of this section to report.
            expected: the values of it that are allowed.

        Raises:
            PydanticCustomError: the rule is broken; `parse` reports the key, its value and what is allowed.
        """
        if not holds:
            raise refused(expected, key=key, value=getattr(self, key))
        return self


SectionType = TypeVar("SectionType", bound=Section)


def refused(expected: str, **field: object) -> PydanticCustomError:
    """Return the error of a validator; `parse` reports what is allowed.

    Args:
        expected: the values that are allowed.
        field: `key` and `value` of the field to report, where the validator is that of a whole section.
    """
    return PydanticCustomError("refused", "expected {expected}", {"expected": expected, **field})


def parse(
    section: type[SectionType], values: object, *, prefix: str = "", registries: Registries | None = None
) -> SectionType:
    """Validate plain values as a section.

    Args:
        section: the class to make.
        values: nested dicts and lists of plain values.
        prefix: dotted key of the section within the configuration.
        registries: the extension points whose names are checked.

    Raises:
        ConfigError: `values` has wrong keys; the message has a line for each, with its value and what is allowed.
    """
    try:
        return section.model_validate(values, context=registries)
    except ValidationError:
        raise ConfigError("\n".join(mistakes(section, values, prefix=prefix, registries=registries))) from None


def read_section(section: type[SectionType], path: Path, remedy: str) -> SectionType:
    """Read a JSON file as a section.

    Args:
        section: the class of the content.
        path: the file.
        remedy: instruction to get a correct file, for the message.

    Raises:
        DataError: the file is missing, is not a JSON object, or has wrong keys; the message has all of them.
    """
    try:
        values = read_json(path)
    except DataError as error:
        raise DataError(error.key, f"{error.expected}; {remedy}", error.found, file=path) from None
    if wrong := mistakes(section, values):
        raise DataError("content", f"a {section.__name__}; {remedy}", "; ".join(wrong), file=path)
    return section.model_validate(values)


def mistakes(
    section: type[Section], values: object, *, prefix: str = "", registries: Registries | None = None
) -> list[str]:
    """Return a line for each wrong key of a section, with its value and what is allowed; arguments as of `parse`.

    At most the first 100 wrong keys are reported.
    """
    try:
        section.model_validate(values, context=registries)
    except ValidationError as error:
        problems = error.errors(include_url=False)[:_MAX_MISTAKES]
        lines = [_line(section, problem, prefix) for problem in problems if problem["type"] != "missing"]
        # A misspelled key is also one without a value; the line about the misspelling says it all.
        meant = {line.rpartition(_MEANT)[2].rstrip("?") for line in lines if _MEANT in line}
        missing = [problem for problem in problems if problem["type"] == "missing"]
        lines += [_line(section, one, prefix) for one in missing if str(one["loc"][-1]) not in meant]
        return [*map(one_line, lines)]
    return []


def _line(section: type[Section], problem: ErrorDetails, prefix: str) -> str:
    location, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
    key = ".".join([*filter(None, [prefix]), *(str(part) for part in location if part != "[key]")])
    match kind:
        case "missing":
            return f"{key}: no value"
        case "extra_forbidden":
            return unknown_key(key, fields_at(section, location[:-1]))
        case "refused" if "key" in context:
            key = f"{key}.{context['key']}".lstrip(".")
            return f"{key}={_shown(context['value'])}: expected {context['expected']}"
        case "value_error":
            return ": ".join(filter(None, [key, str(context["error"])]))
    return f"{key}={_shown(problem['input'])}: {_expected(problem, key)}"


def unknown_key(key: str, names: Collection[str]) -> str:
    """Return the line about a key that does not exist: the name that it resembles, or else all names of its section."""
    if near := get_close_matches(key.rpartition(".")[2], names, n=1):
        return f"{key}: no such key{_MEANT}{near[0]}?"
    return f"{key}: no such key; expected one of {', '.join(names)}"


def _shown(value: object) -> str:
    """Return a value as it is written on the command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(map(_shown, value))}]"
    return str(value)


def _expected(problem: ErrorDetails, key: str) -> str:
    """Return what is allowed for the value of a key."""
    context, kind = problem.get("ctx", {}), problem["type"]
    match kind:
        case "literal_error":
            return f"expected one of {context['expected'].replace(' or ', ', ')}".replace("'", "")
        case "refused":
            return f"expected {context['expected']}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bound = {"greater_than": "above", "greater_than_equal": "of at least", "less_than": "below"}
            return f"expected a number {bound.get(kind, 'of at most')} {next(iter(context.values()))}"
        case "list_type":
            return f"expected a list, such as {key}=[{_shown(problem['input'])}]"
        case "too_short":
            return "expected at least one entry"
    types = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}
    types |= {"finite": "a finite number", "model": "a group of keys", "dict": "a group of keys"}
    return f"expected {types[start]}" if (start := kind.partition("_")[0]) in types else problem["msg"]


def fields_at(section: type[BaseModel], location: Sequence[int | str]) -> Collection[str]:
    """Return the names of the fields of the section at a location; none where there is no section."""
    if not location:
        return section.model_fields
    field = section.model_fields.get(str(location[0]))
    kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
    inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return [] if inner is None else fields_at(inner, location[1:])

"""Writer of tables in docs/reference and data: keys of the configuration, arguments of commands, measured graphs.

A page marks each place with a pair of comments, `<!-- keys: trainer -->`, `<!-- command: rank -->` or `<!-- card:
data/sample -->`, and `<!-- end -->`. The text between them is generated from the pydantic sections, conf/, the parsers
of the commands and the files of measured graphs; the text around them is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from hlorank.cli.main import make_parser
from hlorank.config import Config, Section
from hlorank.config.train_sections import arguments_section
from hlorank.fetch.origins import ORIGINS
from hlorank.training.losses import LOSSES
from scripts.card import card

ROOT = Path(__file__).resolve().parents[1]

_PLACE = r"(<!-- {kind}: (.+?) -->\n).*?(<!-- end -->)"
_TITLES = ("key", "type", "default", "meaning")
_ABSENT = object()
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_TYPES |= {"object": "group of keys"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def groups() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the JSON schema of each key, by the dotted name of its group; that of the top level is empty."""
    found: dict[str, dict[str, dict[str, Any]]] = {"": {}}
    for name, schema in _schemas(Config).items():
        if "$ref" in schema:
            found[name] = _schemas(Config.model_fields[name].annotation)
        elif name != "loss":  # has a table of its own
            found[""][name] = schema
    return found


def _schemas(section: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each key of a section, with the docstring below the field as its description."""
    schemas: dict[str, dict[str, Any]] = section.model_json_schema()["properties"]
    for kind in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                schemas[field.target.id]["description"] = inspect.cleandoc(str(text.value.value))
    return schemas


def in_words(schema: Mapping[str, Any]) -> str:
    """Return the type and the constraints of a key in words, from their JSON schema."""
    match schema:
        case {"anyOf": kinds}:
            return " or ".join(map(in_words, kinds))
        case {"enum": values}:
            return f"one of {', '.join(values)}"
        case {"type": "array", "items": items}:
            several = f"list of {in_words(items).removeprefix('one of ').replace('number', 'numbers')}"
            return several + ", not empty" * ("minItems" in schema)
    bounds = ", ".join(f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema)
    return f"{_TYPES[schema['type']]} {bounds}".strip()


def _in_cell(text: str) -> str:
    """Return text for a cell of a Markdown table: no end of the cell, no line breaks, no HTML outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", r"\|"))
    return "".join(part if part.startswith("`") else part.replace("<", r"\<") for part in parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = "|---" * len(titles) + "|\n"
    return _row(titles) + rule + "".join(map(_row, rows))


def _as_yaml(value: object) -> str:
    """Return a value as it is written on a command line."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case list():
            return f"[{', '.join(map(_as_yaml, value))}]"
        case "":
            return '""'
    return str(value)


def _choices(group: str) -> str:
    """Return a line with the files of a group, if it is a folder of conf/ with several."""
    names = sorted(path.stem for path in (ROOT / "conf").glob(f"{group}/*.yaml")) if group else []
    if len(names) < 2:
        return ""
    defaults = OmegaConf.select(OmegaConf.load(ROOT / "conf" / "base.yaml"), "defaults")
    shown = [f"`{name}` (default)" if {group: name} in defaults else f"`{name}`" for name in names]
    return f"Choices of `{group}=`: {', '.join(shown)}.\n\n"


def _choice(group: str, name: str) -> list[str]:
    """Return the override that chooses a file of a group, if it exists."""
    return [f"{group}={name}"] if (ROOT / "conf" / group / f"{name}.yaml").is_file() else []


@cache
def _composed(*overrides: str) -> DictConfig:
    """Return the composition of conf/ with some overrides."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def _key(key: str, schema: Mapping[str, Any], meaning: str, *overrides: str) -> list[str]:
    """Return the row of a key; its default is that of conf/ with some overrides, interpolations unresolved."""
    node: Any = OmegaConf.to_container(_composed(*overrides), resolve=False)
    for part in key.split("."):
        node = node.get(part, _ABSENT) if isinstance(node, dict) else _ABSENT
    default = "" if node is _ABSENT else f"`{_as_yaml(node)}`"
    return [f"`{key}`", in_words(schema), default, _in_cell(meaning)]


def keys() -> dict[str, str]:
    """Return a table of each group's keys, by dotted key: type and constraints, default of conf/, meaning.

    Raises:
        KeyError: a field has no docstring.
    """
    tables = {group or "top level": _choices(group) + _keys(group, schemas) for group, schemas in groups().items()}
    return tables | {"loss": _losses(), "origins": _origins()}


def _keys(group: str, schemas: Mapping[str, Mapping[str, Any]], *overrides: str) -> str:
    """Return the table of a group's keys."""
    rows = (
        _key(f"{group}.{name}".lstrip("."), schema, schema["description"], *overrides)
        for name, schema in schemas.items()
    )
    return _table(_TITLES, rows)


def _origins() -> str:
    """Return a heading and a table of the settings of each origin; defaults are from its file in conf/data."""
    parts = []
    for name, origin in ORIGINS.items():
        schemas = _schemas(origin.settings)
        parts.append(f"### data={name}\n\n{_keys(f'data.{name}', schemas, *_choice('data', name))}")
    return "\n".join(parts)


def _summary(docstring: str) -> str:
    """Return the first paragraph of a function's docstring without the verb."""
    summary = docstring.partition("\n\n")[0]
    return re.sub(r"^(Return|Compute) (the )?|^The ", "", summary)


def _losses() -> str:
    """Return a table of the losses and their arguments; meanings are from the docstrings of the functions."""
    rows = []
    for name, loss in LOSSES.items():
        text = inspect.getdoc(loss) or ""
        schemas = arguments_section(loss).model_json_schema()["properties"]
        arguments = [argument for argument in schemas if argument != "weight"]
        weight = {"type": "number", "minimum": 0}
        key = f"loss.{name}.weight" if arguments else f"loss.{name}"
        rows.append(_key(key, weight, f"Weight of this loss: {_summary(text)}", *_choice("loss", name)))
        for argument in arguments:
            (meaning,) = re.findall(rf"^ +{argument}: (.+(?:\n +\S.*)*?)(?=\n +\w+: |\n\n|\Z)", text, re.MULTILINE)
            rows.append(
                _key(f"loss.{name}.{argument}", schemas[argument], meaning.capitalize(), *_choice("loss", name))
            )
    return _choices("loss") + _table(_TITLES, rows)


def _signature(action: argparse.Action) -> str:
    """Return an argument as it is written on the command line."""
    value = "" if action.nargs == 0 else action.metavar or action.dest.upper()
    if action.choices:
        value = f"{{{','.join(action.choices)}}}"
    if action.nargs in ("+", "*"):
        value = f"{value} ..." if action.nargs == "+" else f"[{value} ...]"
    return f"{', '.join(action.option_strings)} {value}".strip()


def _arguments(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            meaning = (action.help or "") % {"default": action.default}
            needed = " (required)" if action.required and action.option_strings else ""
            yield [f"`{_signature(action)}`", _in_cell(meaning + needed)]


def commands() -> dict[str, str]:
    """Return the description of each subcommand of `hlorank` and a table of its arguments, by name."""
    (subparsers,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: textwrap.fill(parser.description or "", 120)
        + "\n\n"
        + _table(["argument", "meaning"], _arguments(parser))
        for name, parser in subparsers.choices.items()
    }


def measured(folder: str) -> dict[str, str]:
    """Return the card of a folder of measured graphs, by the folder."""
    return {folder: card(ROOT / folder)}


GENERATED: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "docs/reference/configuration.md": ("keys", keys),
    "docs/reference/cli.md": ("command", commands),
    **{
        f"data/{folder}/README.md": ("card", partial(measured, f"data/{folder}"))
        for folder in ("sample", "models", "keras")
    },
}
"""By page: the kind of its places, and the function that makes their text."""


def rewritten(name: str, page: Path) -> str:
    """Return a page with its places filled again.

    Args:
        name: name of the page, a key of `GENERATED`.
        page: the file.

    Raises:
        ValueError: the page lacks a place, or has one for which there is no text.
    """
    kind, make = GENERATED[name]
    text, place = page.read_text(encoding="utf-8"), re.compile(_PLACE.format(kind=kind), re.DOTALL)
    found, made = [match[1] for match in place.findall(text)], make()
    if sorted(found) != sorted(made):
        raise ValueError(f"{page}: expected one place each for {sorted(made)}, found {sorted(found)}")
    return place.sub(lambda match: f"{match[1]}\n{made[match[2]].rstrip()}\n\n{match[3]}", text)


def main() -> None:
    """Rewrite the pages."""
    for name in GENERATED:
        page = ROOT / name
        page.write_text(rewritten(name, page), encoding="utf-8")


if __name__ == "__main__":
    main()

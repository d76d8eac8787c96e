"""Writes what docs/reference says of configuration keys and of commands, from the schema, conf/ and the parsers.

A page marks each place with a pair of comments, `<!-- keys: trainer -->` or `<!-- command: rank -->` and
`<!-- end -->`. What stands between them is replaced; the text around them is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import fill

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import hlorank.config
from hlorank.cli.main import make_parser
from hlorank.config import Config

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

_PLACE = r"(<!-- {kind}: (.+?) -->\n).*?(<!-- end -->)"
_TYPES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    list[str]: "list of text",
    list[float]: "list of numbers",
    type(None): "null",
}


def groups(config: type = Config, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Each class of the schema that holds values, with its dotted key; that of the whole configuration is empty."""
    yield prefix, config
    for name, hint in typing.get_type_hints(config).items():
        for kind in typing.get_args(hint) or (hint,):
            if dataclasses.is_dataclass(kind):
                yield from groups(typing.cast("type", kind), f"{prefix}.{name}".lstrip("."))


def fields(config: type) -> Iterator[tuple[str, str]]:
    """Names of a class's values, without its groups, and their types in words."""
    for name, hint in typing.get_type_hints(config).items():
        kinds = [hint] if hint in _TYPES else list(typing.get_args(hint)) or [hint]
        if not any(map(dataclasses.is_dataclass, kinds)):
            yield name, " or ".join(_TYPES[kind] for kind in kinds)


def meanings() -> dict[tuple[str, str], str]:
    """The docstring below each field of the schema, by class and name, as one line."""
    found = {}
    for kind in ast.parse(inspect.getsource(hlorank.config)).body:
        if isinstance(kind, ast.ClassDef):
            for field, text in pairwise(kind.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    found[kind.name, field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def _in_cell(text: str) -> str:
    """Text as it stands in a cell of a Markdown table: no end of the cell, no HTML outside of code."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", r"\|"))
    return "".join(part if part.startswith("`") else part.replace("<", r"\<") for part in parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = "|---" * len(titles) + "|\n"
    return _row(titles) + rule + "".join(map(_row, rows))


def _as_yaml(value: object) -> str:
    """A value as it is written on a command line."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case list():
            return f"[{', '.join(map(_as_yaml, value))}]"
        case "":
            return '""'
    return str(value)


def _choices(group: str) -> str:
    """A line with the files of a group, if it is a folder of conf/ with several."""
    names = sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
    if len(names) < 2:
        return ""
    defaults = OmegaConf.select(OmegaConf.load(ROOT / "conf" / "config.yaml"), "defaults")
    shown = [f"`{name}` (default)" if {group: name} in defaults else f"`{name}`" for name in names]
    return f"Choices of `{group}=`: {', '.join(shown)}.\n\n"


@cache
def _composed(origin: str | None) -> DictConfig:
    """The composition of conf/ with the data of an origin, or the default ones."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=[f"data={origin}"] if origin else [])


def _default(key: str) -> str:
    """The value that a key has where nothing is overridden; below an origin, where it is chosen."""
    origin = key.split(".")[1] if key.startswith("data.") and key.count(".") > 1 else None
    value = OmegaConf.select(_composed(origin), key)
    return _as_yaml(OmegaConf.to_object(value) if OmegaConf.is_config(value) else value)


def keys() -> dict[str, str]:
    """A table of each group's keys, by dotted key: type, default of conf/, meaning.

    Raises:
        KeyError: a field of the schema has no docstring.
    """
    said, tables = meanings(), {}
    for group, config in groups():
        rows = []
        for name, kind in fields(config):
            key = f"{group}.{name}".lstrip(".")
            rows.append([f"`{key}`", kind, f"`{_default(key)}`", _in_cell(said[config.__name__, name])])
        if rows:
            tables[group or "top level"] = _choices(group) + _table(["key", "type", "default", "meaning"], rows)
    return tables


def _signature(action: argparse.Action) -> str:
    """An argument as it is given."""
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
    """What each subcommand of `hlorank` does, and a table of its arguments, by name."""
    (subparsers,) = (one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return {
        name: fill(parser.description or "", 120) + "\n\n" + _table(["argument", "meaning"], _arguments(parser))
        for name, parser in subparsers.choices.items()
    }


GENERATED: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "configuration.md": ("keys", keys),
    "cli.md": ("command", commands),
}
"""By page: the kind of its places, and what makes their text."""


def rewritten(page: Path) -> str:
    """A page of docs/reference with its places filled anew.

    Raises:
        ValueError: its places are not those that there is something to say about.
    """
    kind, make = GENERATED[page.name]
    text, place = page.read_text(encoding="utf-8"), re.compile(_PLACE.format(kind=kind), re.DOTALL)
    found, made = [match[1] for match in place.findall(text)], make()
    if sorted(found) != sorted(made):
        raise ValueError(f"{page}: expected one place each for {sorted(made)}, found {sorted(found)}")
    return place.sub(lambda match: f"{match[1]}\n{made[match[2]].rstrip()}\n\n{match[3]}", text)


def main() -> None:
    """Rewrites the pages."""
    for name in GENERATED:
        page = REFERENCE / name
        page.write_text(rewritten(page), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Extension points: entries by the names that the configuration uses, those of other packages among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import AfterValidator, ValidationInfo

from hlorank.config.plugins import VARIABLE, PluginError, import_named_plugins, import_plugin, is_plugin, module_of
from hlorank.config.section import ConfigError, refused

Entry = TypeVar("Entry")
Adapter = Callable[[str, Any], Entry | None]
"""Function of a name and the object of that name in another package, to an entry; None if it is of the wrong kind."""


class UnknownNameError(LookupError):
    """A name without an entry; the message says what is expected instead."""


class ExtensionPoint(dict[str, Entry]):
    """Entries by name.

    Another package adds an object by `POINT["name"] = object`; an entry is never replaced. Besides, the name
    `module:attribute` is an object of a plugin, without being listed.

    Args:
        entries: the entries of this project.
        expected: the kind of object that other packages may have, for messages.
        adapt: makes an entry of such an object.
    """

    def __init__(self, entries: Mapping[str, Entry], expected: str, adapt: Adapter[Entry]) -> None:
        super().__init__(entries)
        self._expected, self._adapt = expected, adapt

    def __setitem__(self, name: str, found: Any) -> None:
        """Add an object of another package.

        Raises:
            ConfigError: there is an entry of that name, the name is no plain name, or the object is of the wrong kind.
        """
        if super().__contains__(name):
            raise ConfigError(f"{name}: expected a name that is not taken; it has an entry")
        if not name.isidentifier():
            raise ConfigError(f"{name}: expected letters, digits and underscores")
        if (entry := self._adapt(name, found)) is None:
            raise ConfigError(f"{name}: expected {self._expected}")
        super().__setitem__(name, entry)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except UnknownNameError:
            return False
        return True

    def __missing__(self, name: str) -> Entry:
        """Return what a plugin registers or has under a name.

        Raises:
            UnknownNameError: there is nothing of that name, or it is of the wrong kind.
            ConfigError: a plugin that the environment names cannot be imported.
        """
        import_named_plugins()
        if super().__contains__(name):
            return self[name]
        if (module := module_of(name)) is None:
            raise UnknownNameError(f"one of {', '.join(self)}")
        if not is_plugin(module):
            raise UnknownNameError(f"a module that you let hlorank import: name it in plugins or {VARIABLE}")
        try:
            found = import_plugin(module)
        except PluginError as error:
            raise UnknownNameError(str(error)) from None
        if (attribute := getattr(found, name.partition(":")[2], None)) is None:
            raise UnknownNameError(f"a name that {module} defines")
        if (entry := self._adapt(name, attribute)) is None:
            raise UnknownNameError(self._expected)
        return entry

    def __or__(self, other: Mapping[str, Entry]) -> ExtensionPoint[Entry]:  # type: ignore[override] # of dict
        """Return the entries of both, to which other packages may add those of this one."""
        return ExtensionPoint({**self, **other}, self._expected, self._adapt)


def is_function(value: object, arguments: int) -> bool:
    """Return whether a value is a function that can be called with so many positional arguments."""
    if isinstance(value, type) or not callable(value):
        return False
    try:
        inspect.signature(value).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True


def registered(extension_point: str, *further: str) -> AfterValidator:
    """Return a validator for names that an extension point defines.

    The validation context is the extension points whose names are checked; other names pass, and the component that
    uses a name refuses it. With a context, which only the user's own configuration has, the module of a name
    `module:attribute` is imported.

    Args:
        extension_point: name of the extension point.
        further: other names that are allowed.
    """

    def check(name: str, info: ValidationInfo) -> str:
        if info.context is None:
            return name
        try:
            if (module := module_of(name)) is not None:
                import_plugin(module)
            if extension_point in info.context and name not in further:
                info.context[extension_point][name]
        except PluginError as error:
            raise refused(str(error)) from None
        except UnknownNameError as error:
            raise refused(", ".join([str(error), *(further if module is None else ())])) from None
        return name

    return AfterValidator(check)


def find(extension_point: ExtensionPoint[Entry], key: str, name: str) -> Entry:
    """Return an entry of an extension point.

    Args:
        extension_point: the entries by name.
        key: key of the configuration that holds the name.
        name: name of the entry.

    Raises:
        ConfigError: `extension_point` has no entry of that name.
    """
    try:
        return extension_point[name]
    except UnknownNameError as error:
        raise ConfigError(f"{key}={name}: expected {error}") from None

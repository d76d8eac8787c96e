"""Extension points: entries by the names that the configuration uses, also of plugins, which are others' modules.

The user names plugins: in the configuration, in the variable `HLORANK_PLUGINS`, or in a call of `import_plugin`. A file
never does: a model folder of somebody else names modules too, and importing a module runs its code. So entry points of
installed packages are not looked at either.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, TypeVar

from hlorank.config.section import ConfigError
from hlorank.files import DataError, code_digest

VARIABLE = "HLORANK_PLUGINS"
"""Environment variable with the names of plugins, separated by commas."""

Entry = TypeVar("Entry")
Adapter = Callable[[str, Any], Entry | None]
"""Function of a name and the object of that name in another package, to an entry; None if it is of the wrong kind."""

_imported: list[str] = []


class UnknownNameError(ConfigError):
    """A name without an entry, or of no module that can be a plugin; the message says what is expected instead."""


def search_working_folder(name: str) -> None:
    """Search the working folder, after all others and for no other reason, for a module that the user names."""
    package, folder = name.partition(".")[0], str(Path.cwd())
    if package not in sys.modules and find_spec(package) is None and folder not in sys.path:
        sys.path.append(folder)


def import_plugin(name: str) -> ModuleType:
    """Import a module that the user names, so that extension points find it and what it registers.

    Args:
        name: dotted name of the module. Its submodules are plugins, too.

    Raises:
        ConfigError: there is no such module, it has no source file, or its import fails.
    """
    try:
        search_working_folder(name)
        module = import_module(name)
    except (Exception, SystemExit) as error:  # the module may do anything
        failure = f"the import of {name} failed: {type(error).__name__}: {error}"
        raise UnknownNameError(f"expected a module that can be imported; {failure}") from None
    if module.__dict__.get("__file__") is None:
        raise UnknownNameError(f"expected a module with a source file, and {name} has none")
    if name not in _imported:
        _imported.append(name)
    return module


def imported_plugins() -> tuple[str, ...]:
    """Return the names of the plugins that this process has imported, in their order."""
    return tuple(_imported)


def import_named(key: str, name: str) -> None:
    """Import a plugin that a key of the configuration, or the environment variable, names."""
    try:
        import_plugin(name)
    except UnknownNameError as error:
        raise ConfigError(f"{key}={name}: {error}") from None


def _import_named_plugins() -> None:
    """Import the plugins that the environment variable names."""
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if name not in _imported:
            import_named(VARIABLE, name)


def is_plugin(module: str) -> bool:
    """Return whether a module is one that the user lets hlorank import."""
    return any(f"{module}.".startswith(f"{name}.") for name in _imported)


def module_of(name: str) -> str | None:
    """Return the module of a name `module:attribute`; None for any other name."""
    module, colon, _ = name.partition(":")
    return module if colon else None


def plugin_digests(names: Iterable[str]) -> dict[str, str]:
    """Return a digest of the source code of each plugin, by name."""
    return {name: code_digest(name) for name in sorted(set(names))}


def import_plugins_of_model(digests: Mapping[str, str]) -> list[str]:
    """Import the plugins of a model, all named by the user, and return the names whose digest differs now."""
    _import_named_plugins()
    if unnamed := [name for name in digests if not is_plugin(name)]:
        names = ",".join(unnamed)
        remedy = f"if you trust their code, set {VARIABLE}={names}; for a stage, plugins=[{names}] does the same"
        raise DataError("plugins", f"only modules that you let hlorank import ({remedy})", names)
    for name in digests:
        import_plugin(name)
    return [name for name, digest in plugin_digests(digests).items() if digest != digests[name]]


class ExtensionPoint(dict[str, Entry]):
    """Entries by name.

    Another package adds an object by `POINT["name"] = object`; an entry is never replaced. Besides, the name
    `module:attribute` is an object of a plugin, without being listed.

    Args:
        entries: the entries of this project.
        expected: the kind of object that other packages may have, for messages.
        adapt: makes an entry of such an object.
        others: names without an entry that the configuration may have in place of one, for messages.
    """

    def __init__(
        self, entries: Mapping[str, Entry], expected: str, adapt: Adapter[Entry], others: Iterable[str] = ()
    ) -> None:
        super().__init__(entries)
        self._expected, self._adapt, self._others = expected, adapt, others

    def __setitem__(self, name: str, found: Any) -> None:
        """Add an object of another package; a ConfigError if the name or the object does not fit."""
        entry = self._adapt(name, found)
        if entry is None or not name.isidentifier() or name in self:
            raise ConfigError(f"{name}: expected {self._expected}, and a plain name that has no entry")
        super().__setitem__(name, entry)

    def __missing__(self, name: str) -> Entry:
        """Return what a plugin registers or has under a name; UnknownNameError if there is nothing that fits."""
        _import_named_plugins()
        if name in self:
            return self[name]
        if (module := module_of(name)) is None:
            raise UnknownNameError(f"expected one of {', '.join([*self, *self._others])}")
        if not is_plugin(module):
            raise UnknownNameError(f"expected a module that you let hlorank import: name it in plugins or {VARIABLE}")
        import_plugin(module)
        try:
            found = resolve_name(name)
        except (AttributeError, ValueError):
            raise UnknownNameError(f"expected a name that {module} defines") from None
        if (entry := self._adapt(name, found)) is None:
            raise UnknownNameError(f"expected {self._expected}")
        return entry


def is_function(value: object, arguments: int) -> bool:
    """Return whether a value is a function that can be called with so many positional arguments."""
    if isinstance(value, type) or not callable(value):
        return False
    try:
        inspect.signature(value).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True


def find(extension_point: ExtensionPoint[Entry], key: str, name: str) -> Entry:
    """Return an entry of an extension point; the ConfigError of a wrong name has the key of the configuration."""
    try:
        return extension_point[name]
    except UnknownNameError as error:
        raise ConfigError(f"{key}={name}: {error}") from None

"""Plugins: modules of other packages that the user lets hlorank import.

The user names them in the configuration, in the variable `HLORANK_PLUGINS`, or in a call of `import_plugin`. A file
never does: a model folder of somebody else names modules too, and importing a module runs its code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

from hlorank.config.section import ConfigError
from hlorank.files import DataError, code_digest

VARIABLE = "HLORANK_PLUGINS"
"""Environment variable with the names of plugins, separated by commas."""

_imported: list[str] = []


class PluginError(ConfigError):
    """A module that cannot be a plugin; the message says what is expected instead."""


def import_plugin(name: str) -> ModuleType:
    """Import a module that the user names, so that extension points find it and what it registers.

    Args:
        name: dotted name of the module. Its submodules are plugins, too.

    Raises:
        PluginError: there is no such module, it has no source file, or its import fails.
    """
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from None
        remedy = "install its package, or put its folder on PYTHONPATH"
        raise PluginError(f"a module that can be imported, and there is no {error.name}; {remedy}") from None
    except (Exception, SystemExit) as error:  # the module may do anything
        raise _failed(name, error) from None
    if module.__dict__.get("__file__") is None:
        raise PluginError(f"a module with a source file, and {name} has none")
    if name not in _imported:
        _imported.append(name)
    return module


def _failed(name: str, error: BaseException) -> PluginError:
    return PluginError(f"a module that can be imported; the import of {name} failed: {type(error).__name__}: {error}")


def imported_plugins() -> tuple[str, ...]:
    """Return the names of the plugins that this process has imported, in their order."""
    return tuple(_imported)


def import_named_plugins() -> None:
    """Import the plugins that the environment variable names.

    Raises:
        ConfigError: one of them cannot be imported.
    """
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if name not in _imported:
            try:
                import_plugin(name)
            except PluginError as error:
                raise ConfigError(f"{VARIABLE}={name}: expected {error}") from None


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
    """Import the plugins that a model names, if the user lets hlorank import them.

    Args:
        digests: of the source code that the model was trained with, by name.

    Returns:
        The plugins whose source code differs now.

    Raises:
        ConfigError: a plugin cannot be imported.
        DataError: the user has not named one of them.
    """
    import_named_plugins()
    if unnamed := [name for name in digests if not is_plugin(name)]:
        names = ",".join(unnamed)
        remedy = f"if you trust their code, set {VARIABLE}={names}; for a stage, plugins=[{names}] does the same"
        raise DataError("plugins", f"only modules that you let hlorank import ({remedy})", names)
    for name in digests:
        try:
            import_plugin(name)
        except PluginError as error:
            raise ConfigError(f"plugin {name}: expected {error}") from None
    return [name for name, digest in plugin_digests(digests).items() if digest != digests[name]]

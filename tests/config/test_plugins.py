"""Plugins: only the user names them, and every reason why one cannot be imported is told."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from hlorank.config import ConfigError, import_plugin
from hlorank.config.plugins import (
    VARIABLE,
    import_plugins_of_model,
    imported_plugins,
    is_plugin,
    module_of,
    plugin_digests,
)
from hlorank.files import DataError, code_digest

MakePlugin = Callable[[str, str], None]


def test_a_module_and_its_submodules_are_a_plugin(make_plugin: MakePlugin) -> None:
    make_plugin("mine", "value = 3")
    make_plugin("mine.layers", "")
    assert not is_plugin("mine")
    assert import_plugin("mine").value == 3
    import_plugin("mine")
    assert imported_plugins() == ("mine",)
    assert is_plugin("mine")
    assert is_plugin("mine.layers")
    assert not is_plugin("minesweeper")
    assert not is_plugin("os")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import not_installed_here", "not_installed_here"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_is_named_with_its_error(make_plugin: MakePlugin, text: str, reason: str) -> None:
    make_plugin("failing", text)
    with pytest.raises(ConfigError, match=rf"failing.*{reason}"):
        import_plugin("failing")
    assert imported_plugins() == ()


@pytest.mark.parametrize(
    "name", ["nowhere", "nowhere.inside", "", ".relative", "with space", "a..b", "x" * 9999, "sys"]
)
def test_what_is_no_module_with_a_source_file_is_refused(make_plugin: MakePlugin, name: str) -> None:
    del make_plugin
    with pytest.raises(ConfigError):
        import_plugin(name)
    assert imported_plugins() == ()


def test_a_submodule_that_is_missing_is_named(make_plugin: MakePlugin) -> None:
    make_plugin("mine", "")
    with pytest.raises(ConfigError, match=r"mine\.layers"):
        import_plugin("mine.layers")


def test_a_file_never_makes_anything_imported(make_plugin: MakePlugin) -> None:
    make_plugin("theirs", "")
    with pytest.raises(DataError, match=f"{VARIABLE}=theirs"):
        import_plugins_of_model({"theirs": ""})
    assert "theirs" not in sys.modules


def test_a_model_gets_the_plugins_that_the_environment_names(
    make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plugin("mine", "")
    make_plugin("mine.layers", "value = 3")
    digests = plugin_digests(["mine.layers", "mine"])
    monkeypatch.setenv(VARIABLE, " mine , ")
    assert import_plugins_of_model(digests) == []
    assert {"mine", "mine.layers"} <= sys.modules.keys()
    make_plugin("mine.layers", "value = 4")
    code_digest.cache_clear()  # as in another process
    assert import_plugins_of_model(digests) == ["mine", "mine.layers"]
    assert import_plugins_of_model({}) == []


def test_a_plugin_of_the_environment_must_exist(make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    del make_plugin
    monkeypatch.setenv(VARIABLE, "nowhere")
    with pytest.raises(ConfigError, match=f"^{VARIABLE}=nowhere: "):
        import_plugins_of_model({})


def test_names_with_a_colon_have_a_module() -> None:
    assert module_of("mine.layers:Conv") == "mine.layers"
    assert module_of("sage") is None

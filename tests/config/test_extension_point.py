"""Extension points: what other packages add, by a short name or as `module:attribute`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from hlorank.config import ConfigError, ExtensionPoint, find, import_plugin, is_function
from hlorank.config.extension_point import (
    VARIABLE,
    UnknownNameError,
    import_plugins_of_model,
    imported_plugins,
    is_plugin,
    plugin_digests,
)
from hlorank.files import DataError, code_digest
from hlorank.models.serialization import ModelSpec
from hlorank.stages.command import EXTENSION_POINTS, load_composed, registries
from tests.config.test_root import changed, composed, mistakes

MakePlugin = Callable[[str, str], None]
CONV = """
from torch_geometric.nn import SimpleConv

class Conv(SimpleConv):
    pass

class NotALayer:
    pass

number = 3

def loss(scores, labels, margin: float):
    return (scores - margin * labels).sum()

def untyped(scores, labels, margin):
    return loss(scores, labels, margin)

def of_two(one, two):
    return two

"""


@pytest.fixture
def point() -> ExtensionPoint[int]:
    return ExtensionPoint({"one": 1}, "a whole number", lambda _, found: found if isinstance(found, int) else None)


def test_an_object_of_a_plugin_is_found_but_not_listed(point: ExtensionPoint[int], make_plugin: MakePlugin) -> None:
    make_plugin("mine", "number, text = 3, 'three'")
    with pytest.raises(UnknownNameError, match=VARIABLE):  # nobody named the module
        point["mine:number"]
    assert "mine" not in sys.modules
    import_plugin("mine")
    assert (point["mine:number"], "mine:number" in point, [*point]) == (3, True, ["one"])
    for name in ("mine:text", "mine:nothing", "mine:", "mine.sub:number", "two", ":", ":number", "os:name"):
        assert name not in point
        with pytest.raises(ConfigError, match=f"^key={name}: "):
            find(point, "key", name)


def test_entries_are_added_but_never_replaced(point: ExtensionPoint[int]) -> None:
    point["two"] = 2
    assert (point["two"], [*point]) == (2, ["one", "two"])
    for name, value in {"two": 2, "one": 3, "three:four": 4, "": 5, "text": "six"}.items():
        with pytest.raises(ConfigError, match=f"^{name}: "):
            point[name] = value
    assert {**point} == {"one": 1, "two": 2}


def test_the_environment_names_modules_that_register(
    point: ExtensionPoint[int], make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plugin("holder", "")
    vars(import_plugin("holder"))["point"] = point
    make_plugin("mine", "from holder import point\npoint['seven'] = 7")
    monkeypatch.setenv(VARIABLE, "mine")
    assert point["seven"] == 7


@pytest.mark.parametrize(
    ("value", "expected"), [(pow, True), (lambda a, b: 0, True), (len, False), (int, False), (3, False)]
)
def test_functions_of_two_arguments(value: Any, expected: bool) -> None:
    assert is_function(value, 2) is expected


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"model.block": "mine:Conv"}, None),
        ({"model.block": ["layer_norm", "mine:Conv"], "loss": {"mine:loss": {"weight": 1, "margin": 2}}}, None),
        ({"partition.algorithm": "mine:of_two", "model.pooling": ["mine:of_two", "max"]}, None),
        ({"plugins": ["mine"]}, None),
        ({"plugins": ["mine", "nowhere"]}, "plugins.1=nowhere: "),
        ({"plugins": "mine"}, "plugins=mine: "),
        ({"model.block": "mine:NotALayer"}, "model.block.0=mine:NotALayer: "),
        ({"model.post_layers": ["mine:Missing"]}, "model.post_layers.0=mine:Missing: "),
        ({"model.block": ["nowhere:Conv"]}, "model.block.0=nowhere:Conv: "),
        ({"loss": {"mine:untyped": 1.0}}, "loss.mine:untyped=mine:untyped: "),
        ({"loss": {"mine:loss": {"weight": 1, "margin": "x"}}}, "loss.mine:loss.margin=x: "),
        ({"data.origin": "mine:of_two"}, "data.origin=mine:of_two: "),
    ],
)
def test_the_configuration_names_objects_of_plugins(
    values: dict[str, Any], line: str | None, make_plugin: MakePlugin
) -> None:
    make_plugin("mine", CONV)
    if line is None:
        config = load_composed(changed(values), registries(*EXTENSION_POINTS))
        assert config.plugin_modules == {"mine"}
    else:
        (found,) = mistakes(values, *EXTENSION_POINTS)
        assert found.startswith(line)


def test_every_stage_imports_what_the_configuration_names(make_plugin: MakePlugin) -> None:
    """A stage that uses no layers may load a model that has them."""
    make_plugin("mine", CONV)
    load_composed(changed({"model.block": "mine:Conv"}), registries("methods"))
    assert "mine" in sys.modules
    assert load_composed(composed()).plugin_modules == set()


def test_a_specification_imports_nothing(make_plugin: MakePlugin) -> None:
    make_plugin("mine", CONV)
    values = load_composed(composed()).model.model_dump() | {"block": ["mine:Conv"]}
    model = ModelSpec.model_fields["model"].annotation
    assert model is not None
    assert model.model_validate(values).block == ["mine:Conv"]
    assert "mine" not in sys.modules


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
    "name", ["nowhere", "nowhere.inside", "", ".relative", "with space", "a..b", "x" * 9999, "sys", "mine.nothing"]
)
def test_what_is_no_module_with_a_source_file_is_refused(make_plugin: MakePlugin, name: str) -> None:
    make_plugin("mine", "")
    with pytest.raises(ConfigError):
        import_plugin(name)
    assert imported_plugins() == ()


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

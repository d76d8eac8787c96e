"""conf/ fits the schema; a mistake is named with its key, its value and what is allowed; plugins are found."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from hlorank.config import (
    ConfigError,
    DataConfig,
    ExtensionPoint,
    ModelConfig,
    extension_point,
    find,
    import_plugin,
    is_function,
    parse,
)
from hlorank.fetch.origins import ORIGINS
from hlorank.files import DataError, code_digest
from hlorank.models.layers.registry import LAYERS
from hlorank.models.serialization import ModelSpec
from hlorank.stages.command import load_composed
from hlorank.training.methods import METHODS
from tests.sections import CONF, composed

OPTIONS = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))
MakePlugin = Callable[[str, str], None]
PLUGIN = """
from torch_geometric.nn import SimpleConv

class Conv(SimpleConv):
    pass

def loss(scores, labels, margin: float):
    return (scores - margin * labels).sum()

def of_two(one, two):
    return two
"""
GLOBAL = {"experiment", "hparams_search"}  # groups whose options set values of all groups


def changed(values: dict[str, Any]) -> DictConfig:
    """Return the default composition with other values, also of keys that the schema lacks."""
    config = composed()
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key, value, force_add=True)
    return config


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts, by dotted key."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for name in node for key, leaf in leaves(node[name], f"{prefix}.{name}".strip(".")).items()}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_file_of_conf_loads_unchanged(group: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # a git worktree has folders in its main checkout
    raw = composed(f"{group}={option}")
    expected = leaves(OmegaConf.to_container(raw, resolve=True))
    own = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{option}.yaml"))
    assert isinstance(own, dict)
    searched = "hydra" in own  # Hydra's own settings are not in the composition
    for key in ("defaults", "hydra"):
        own.pop(key, None)
    keys = leaves(own, "" if group in GLOBAL else group).keys()
    assert keys or searched
    assert keys <= expected.keys()
    loaded = leaves(load_composed(raw).model_dump(mode="json"))
    assert {key: loaded[key] for key in expected} == expected
    assert loaded.keys() == expected.keys()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tracking.zzz", 1, "tracking.zzz: no such key; expected one of uri, experiment, artifacts"),
        ("trainer.max_epochs", 2.5, "trainer.max_epochs=2.5: Input should be a valid integer"),
        ("trainer.max_epochs", True, "trainer.max_epochs=true: expected a number"),
        ("trainer.max_epochs", None, "trainer.max_epochs=null: Input should be a valid integer"),
        ("trainer.max_epochs", 0, "trainer.max_epochs=0: Input should be greater than or equal to 1"),
        ("trainer.learning_rate", "nan", "trainer.learning_rate=nan: Input should be a finite number"),
        ("trainer.precision", "16", "trainer.precision=16: Input should be '32-true', 'bf16-mixed' or '16-mixed'"),
        ("baseline.strengths", [1.0, 0.0], "baseline.strengths.1=0.0: Input should be greater than 0"),
        ("paths", None, "paths=null: Input should be a valid dictionary"),
        ("paths.raw", "s3://store/raw", "paths.raw=s3://store/raw: expected a folder"),
        ("tracking.uri", "http://me:pw@host", "tracking.uri=http://***@host: expected an address without its password"),
        ("collection", "layout:xla", "collection=layout:xla: expected layout/<source>/"),
        ("seed", "???", "seed: no value"),
        ("output", "${nowhere}", "output: Interpolation key 'nowhere' not found"),
        ("evaluate", {"index_file": "i.json", "splits": ["test"]}, 'evaluate.splits=["test"]: expected valid among'),
        ("loss", {"mse": "much"}, "loss.mse=much: expected a number, which is the weight, or a group of keys"),
        ("loss", {"hinge": {"margin": 0.1}}, "loss.hinge.weight: no value"),
        ("data.origin", "nowhere:ORIGIN", "data.origin=nowhere: "),
        ("plugins", ["mine", "nowhere"], "plugins=nowhere: "),
        ("plugins", "mine", "plugins=mine: "),
        ("model.block", ["nowhere:Conv"], "model.block=nowhere: "),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(key: str, value: Any, message: str, make_plugin: MakePlugin) -> None:
    make_plugin("mine", PLUGIN)
    with pytest.raises(ConfigError) as caught:
        load_composed(changed({key: value}))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("point", "key", "others"),
    [
        (ORIGINS, "data.origin", {"local", "tpugraphs"}),
        (LAYERS, "model.block", {"sage", "residual"}),
        (METHODS, "method", {"gst", "gradient_boosting"}),
    ],
)
def test_a_wrong_name_is_answered_with_all_allowed_ones(point: ExtensionPoint[Any], key: str, others: set[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{key}=nothing: expected one of ") as caught:
        find(point, key, "nothing")
    assert others <= {*str(caught.value).partition("one of ")[2].split(", ")}


def test_an_origin_needs_no_file_in_conf() -> None:
    settings = {"root": "x", "split": "test", "dump": "before_optimizations"}
    data = load_composed(changed({"data.origin": "hlo", "data.hlo": settings})).data
    assert (data.origin, data.settings) == ("hlo", settings)  # the settings of the default origin are ignored


def test_values_are_converted_and_frozen() -> None:
    values = {"trainer.learning_rate": 1, "tracking.experiment": 2024, "output": "${paths.models}/${collection}"}
    loss = {"mse": 2, "hinge": {"weight": 0.5, "margin": 0.1}}
    config = load_composed(changed(values | {"loss": loss}))
    assert type(config.trainer.learning_rate) is float
    assert (config.output, config.tracking.experiment) == (f"models/{composed().collection}", "2024")
    assert {name: (term.weight, term.arguments) for name, term in config.loss.items()} == {
        "listmle": (1.0, {}),
        "mse": (2.0, {}),
        "hinge": (0.5, {"margin": 0.1}),
    }
    assert config.model_dump(mode="json")["loss"] == {"listmle": 1.0, "mse": 2.0} | {"hinge": loss["hinge"]}
    with pytest.raises(ValueError, match="frozen"):
        config.trainer.max_epochs = 3


def test_a_section_alone_is_parsed_below_its_prefix() -> None:
    plain = load_composed(composed()).model.model_dump()
    assert parse(ModelConfig, plain, prefix="model").width == plain["width"]
    with pytest.raises(ConfigError, match=r"^model\.width=0: .*\b1$"):
        parse(ModelConfig, plain | {"width": 0}, prefix="model")
    with pytest.raises(ConfigError, match=r"^data=3: "):
        parse(DataConfig, 3, prefix="data")


def test_a_mistake_is_one_line_whatever_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ModelConfig, {"width": {"\n\x1b": "x" * 10**5}, **{f"key\n{number}": 0 for number in range(10**4)}})
    lines = str(caught.value).split("\n")
    assert len(lines) <= 100
    assert all(line.isprintable() and len(line) <= 500 for line in lines)


@pytest.mark.parametrize(("cores", "counts"), [(1, (0, 1)), (2, (0, 2)), (8, (2, 6))])
def test_threads_and_workers(cores: int, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever OMP_NUM_THREADS says, with which the same command must give the same result; the default is a thread."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert load_composed(composed()).trainer.thread_count == 1
    trainer = load_composed(composed("trainer.threads=auto", "trainer.workers=auto")).trainer
    assert (trainer.worker_count, trainer.thread_count) == counts
    assert trainer.model_copy(update={"workers": 3}).worker_count == 3


@pytest.mark.parametrize(
    "values",
    [
        {"model.block": "mine:Conv"},
        {"model.block": ["layer_norm", "mine:Conv"], "loss": {"mine:loss": {"weight": 1, "margin": 2}}},
        {"partition.algorithm": "mine:of_two", "model.pooling": ["mine:of_two", "max"]},
        {"plugins": ["mine"]},
    ],
)
def test_the_configuration_names_objects_of_plugins(values: dict[str, Any], make_plugin: MakePlugin) -> None:
    """Every stage imports them: a stage that uses no layers may load a model that has them."""
    make_plugin("mine", PLUGIN)
    config = load_composed(changed(values))
    assert "mine" in sys.modules
    assert [*config.plugin_modules] == ["mine"]
    assert not load_composed(composed()).plugin_modules
    values = load_composed(composed()).model.model_dump() | {"block": ["other:Conv"]}
    specification = ModelSpec.model_fields["model"].annotation
    assert specification is not None
    assert specification.model_validate(values).block == ["other:Conv"]  # which imports nothing


@pytest.fixture
def point() -> ExtensionPoint[int]:
    return ExtensionPoint({"one": 1}, "a whole number", lambda _, found: found if isinstance(found, int) else None)


def test_an_object_of_a_plugin_is_found_but_not_listed(point: ExtensionPoint[int], make_plugin: MakePlugin) -> None:
    make_plugin("mine", "number, text = 3, 'three'")
    with pytest.raises(extension_point.UnknownNameError, match=extension_point.VARIABLE):  # nobody named the module
        point["mine:number"]
    assert "mine" not in sys.modules
    import_plugin("mine")
    assert (point["mine:number"], [*point]) == (3, ["one"])
    for name in ("mine:text", "mine:nothing", "mine:", "mine.sub:number", "two", ":", ":number", "os:name"):
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
    monkeypatch.setenv(extension_point.VARIABLE, "mine")
    assert point["seven"] == 7
    monkeypatch.setenv(extension_point.VARIABLE, "nowhere")
    with pytest.raises(ConfigError, match=f"^{extension_point.VARIABLE}=nowhere: "):
        extension_point.import_plugins_of_model({})


def test_functions_of_two_arguments() -> None:
    values = (pow, lambda a, b: 0, len, int, 3)
    assert [is_function(value, 2) for value in values] == [True, True, False, False, False]


def test_a_module_and_its_submodules_are_a_plugin(make_plugin: MakePlugin) -> None:
    make_plugin("mine", "value = 3")
    make_plugin("mine.layers", "")
    assert not extension_point.is_plugin("mine")
    assert import_plugin("mine").value == 3
    import_plugin("mine")
    assert extension_point.imported_plugins() == ("mine",)
    names = ("mine", "mine.layers", "minesweeper", "os")
    assert [*map(extension_point.is_plugin, names)] == [True, True, False, False]


def test_a_module_that_cannot_be_imported_is_refused_with_its_error(make_plugin: MakePlugin) -> None:
    failing = {"import not_here": "not_here", "1 / 0": "ZeroDivisionError", "raise SystemExit(3)": "SystemExit"}
    for number, (text, reason) in enumerate({**failing, "def broken(:": "SyntaxError"}.items()):
        make_plugin(f"failing{number}", text)
        with pytest.raises(ConfigError, match=rf"failing{number}.*{reason}"):
            import_plugin(f"failing{number}")
    make_plugin("mine", "")
    wrong = ("nowhere", "nowhere.inside", "", ".relative", "with space", "a..b", "x" * 9999, "sys", "mine.nothing")
    for name in wrong:  # no module with a source file
        with pytest.raises(ConfigError):
            import_plugin(name)
    assert extension_point.imported_plugins() == ()


def test_a_model_gets_plugins_of_the_environment(make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plugin("mine", "")
    make_plugin("mine.layers", "value = 3")
    with pytest.raises(DataError, match=f"{extension_point.VARIABLE}=mine"):  # a file never makes anything imported
        extension_point.import_plugins_of_model({"mine": ""})
    assert "mine" not in sys.modules
    digests = extension_point.plugin_digests(["mine.layers", "mine"])
    monkeypatch.setenv(extension_point.VARIABLE, " mine , ")
    assert extension_point.import_plugins_of_model(digests) == []
    assert {"mine", "mine.layers"} <= sys.modules.keys()
    make_plugin("mine.layers", "value = 4")
    code_digest.cache_clear()  # as in another process
    assert extension_point.import_plugins_of_model(digests) == ["mine", "mine.layers"]
    assert extension_point.import_plugins_of_model({}) == []

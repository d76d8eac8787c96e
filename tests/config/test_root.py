"""conf/ fits the schema, and every mistake is reported with its key, its value and what is allowed."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from hlorank.config import ConfigError, DataConfig, ModelConfig, load, parse
from hlorank.stages.command import EXTENSION_POINTS, load_composed, registries

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))
GLOBAL = {"experiment", "hparams_search"}  # groups whose options set values of all groups


@cache
def _composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> DictConfig:
    return deepcopy(_composed(*overrides))


def changed(values: dict[str, Any]) -> DictConfig:
    """Return the default composition with other values, also of keys that the schema lacks."""
    config = composed()
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key, value, force_add=True)
    return config


def mistakes(values: dict[str, Any], *extension_points: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_composed(changed(values), registries(*extension_points))
    return str(caught.value).splitlines()


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts, by dotted key."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for name in node for key, leaf in leaves(node[name], f"{prefix}.{name}".strip(".")).items()}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_file_of_conf_loads_unchanged(group: str, option: str) -> None:
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
    loaded = leaves(load_composed(raw, registries(*EXTENSION_POINTS)).model_dump(mode="json"))
    assert {key: loaded[key] for key in expected} == expected
    assert loaded.keys() == expected.keys()


def test_values_are_converted_to_the_types_of_their_fields() -> None:
    config = load_composed(composed("trainer.learning_rate=1", "output=out", "tracking.experiment=2024"))
    assert type(config.trainer.learning_rate) is float
    assert (config.output, config.tracking.experiment) == ("out", "2024")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tracking.zzz", 1, "tracking.zzz: no such key; expected one of uri, experiment, artifacts"),
        ("trainer.max_epochs", "many", "trainer.max_epochs=many: Input should be a valid integer"),
        ("trainer.max_epochs", 2.5, "trainer.max_epochs=2.5: Input should be a valid integer"),
        ("trainer.max_epochs", True, "trainer.max_epochs=true: expected a number"),
        ("trainer.max_epochs", None, "trainer.max_epochs=null: Input should be a valid integer"),
        ("trainer.max_epochs", 0, "trainer.max_epochs=0: Input should be greater than or equal to 1"),
        ("trainer.learning_rate", False, "trainer.learning_rate=false: expected a number"),
        ("trainer.learning_rate", "nan", "trainer.learning_rate=nan: Input should be a finite number"),
        ("trainer.precision", "16", "trainer.precision=16: Input should be '32-true', 'bf16-mixed' or '16-mixed'"),
        ("model.opcode_init", "perhaps", "model.opcode_init=perhaps: Input should be a valid boolean"),
        ("evaluate.splits", "valid", "evaluate.splits=valid: Input should be a valid list"),
        ("model.pooling", [], "model.pooling=[]: List should have at least 1 item"),
        ("baseline.strengths", [1.0, 0.0], "baseline.strengths.1=0.0: Input should be greater than 0"),
        ("loss", {"mse": "much"}, "loss.mse=much: expected a number, which is the weight, or a group of keys"),
        ("loss", {"hinge": {"margin": 0.1}}, "loss.hinge.weight: no value"),
        ("paths", None, "paths=null: Input should be a valid dictionary"),
        ("paths.raw", "s3://store/raw", "paths.raw=s3://store/raw: expected a folder"),
        ("collection", "layout:xla", "collection=layout:xla: expected layout/<source>/<default, random or models>"),
        ("seed", "???", "seed: no value"),
        ("output", "${nowhere}", "output: Interpolation key 'nowhere' not found"),
        ("evaluate", {"index_file": "i.json", "splits": ["test"]}, 'evaluate.splits=["test"]: expected valid among'),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_is_allowed(key: str, value: Any, message: str) -> None:
    (line,) = mistakes({key: value})
    assert line.startswith(message)


def test_all_mistakes_are_reported_at_once() -> None:
    values = {"trainer.max_epochs": 0, "trainer.precison": "32-true", "seed": "???", "model.heads": "x"}
    values |= {"method": "gts", "partition.algorithm": "metiss", "data.local.fold": 7}
    values |= {"model.block": ["sage", "sagee"], "model.stem": ["relu", "residual"], "loss": {"listmel": 1.0}}
    lines = mistakes(values, *EXTENSION_POINTS)
    assert sorted(line.partition(":")[0] for line in lines) == [
        "data.local.fold=7",
        "loss.listmel=listmel",
        "method=gts",
        "model.block.1=sagee",
        "model.heads=x",
        "partition.algorithm=metiss",
        "seed",
        "trainer.max_epochs=0",
        "trainer.precison",
    ]


@pytest.mark.parametrize(
    ("values", "known", "key"),
    [
        ({"data.origin": "sever"}, ["local", "tpugraphs"], "data.origin=sever"),
        ({"model.block": ["TransformerConv", "TransformrConv"]}, ["sage"], "model.block.1=TransformrConv"),
        ({"loss": {"listmel": 1.0}}, ["listmle", "hinge"], "loss.listmel=listmel"),
        ({"method": "gts"}, ["gst", "full", "gradient_boosting"], "method=gts"),
    ],
)
def test_names_of_extension_points_are_checked(values: dict[str, Any], known: list[str], key: str) -> None:
    (line,) = mistakes(values, *EXTENSION_POINTS)
    assert line.startswith(f"{key}: expected one of ")
    assert set(known) <= set(line.partition("one of ")[2].split(", "))
    load_composed(changed(values))  # a stage that does not use the name leaves it alone


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"data.local.fod": 1}, "data.local.fod: no such key"),
        ({"data.local.fold": 5}, "data.local.fold=5: "),
        ({"data.local.folds": "x"}, "data.local.folds=x: "),
        ({"data.local": "x"}, "data.local=x: "),
        ({"data.locl.root": "x"}, "data.locl: no such key"),
    ],
)
def test_settings_of_the_origin_are_checked(values: dict[str, Any], key: str) -> None:
    (line,) = mistakes(values, "origins")
    assert line.startswith(key)


def test_an_origin_needs_no_file_in_conf() -> None:
    settings = {"root": "x", "split": "test", "dump": "before_optimizations", "extra": True}
    data = load_composed(changed({"data.origin": "hlo", "data.hlo": settings}), registries("origins")).data
    assert (data.origin, data.settings) == ("hlo", settings)  # the settings of the default origin are ignored
    assert len(mistakes({"data.origin": "hlo"}, "origins")) == len(settings)


@pytest.mark.parametrize(
    ("loss", "key"),
    [
        ({"hinge": 1.0}, "loss.hinge.margin: no value"),
        ({"hinge": {"weight": 1.0, "margin": "x"}}, "loss.hinge.margin=x: "),
        ({"hinge": {"weight": 1.0, "margin": 1.0, "marge": 1.0}}, "loss.hinge.marge: no such key"),
        ({"mse": {"weight": 1.0, "margin": 1.0}}, "loss.mse.margin: no such key; expected one of weight"),
    ],
)
def test_arguments_of_losses_are_checked(loss: dict[str, Any], key: str) -> None:
    (line,) = mistakes({"loss": loss}, "losses")
    assert line.startswith(key)


def test_missing_and_misspelled_keys_are_named() -> None:
    raw = composed()
    with open_dict(raw):
        del raw.seed
        raw.trainer.warmup = "???"
        raw.trainer.max_epoch = raw.trainer.pop("max_epochs")
    with pytest.raises(ConfigError) as caught:
        load_composed(raw)
    keys = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    assert sorted(keys) == ["seed", "trainer.max_epoch", "trainer.max_epochs", "trainer.warmup"]


def test_interpolations_are_resolved() -> None:
    config = load_composed(changed({"output": "${paths.models}/${collection}"}))
    assert config.output == "models/" + composed().collection


def test_a_loss_is_its_weight_or_a_weight_with_arguments() -> None:
    loss = load_composed(changed({"loss": {"mse": 2, "hinge": {"weight": 0.5, "margin": 0.1}}})).loss
    assert {name: (term.weight, term.arguments) for name, term in loss.items()} == {
        "listmle": (1.0, {}),
        "mse": (2.0, {}),
        "hinge": (0.5, {"margin": 0.1}),
    }


def test_sections_are_frozen_and_dump_to_json() -> None:
    config = load_composed(composed("loss=hinge"))
    with pytest.raises(ValueError, match="frozen"):
        config.trainer.max_epochs = 3
    plain = config.model_dump(mode="json")
    assert plain["loss"] == {"hinge": {"weight": 1.0, "margin": 0.1}}


def test_a_configuration_that_was_dumped_loads_as_itself() -> None:
    known, raw = registries(*EXTENSION_POINTS), composed("loss=hinge")
    for raw.method in [*known["methods"], "auto"]:
        config = load_composed(raw, known)
        plain = json.loads(json.dumps(config.model_dump(mode="json")))
        for values in (plain, OmegaConf.create(plain)):  # a DictConfig is no dict, but a mapping
            assert load(values, known) == config


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


@pytest.mark.parametrize(
    ("cores", "limit", "counts"),
    [(1, "", (0, 1)), (2, "", (0, 2)), (8, "", (2, 6)), (8, "1", (0, 1)), (8, "4", (1, 3)), (2, "16", (0, 2))],
)
def test_threads_and_workers_share_the_cores(
    cores: int, limit: str, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    trainer = load_composed(composed("trainer.threads=auto", "trainer.workers=auto")).trainer
    assert (trainer.worker_count, trainer.thread_count) == counts
    fixed = trainer.model_copy(update={"workers": 3, "threads": 5})
    assert (fixed.worker_count, fixed.thread_count) == (3, 5)

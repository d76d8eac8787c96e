"""The real conf/ composes into the schema, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from hlorank.config import Config, ConfigError, DataConfig, LocalConfig, TrainerConfig, load

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))

GLOBAL = {"experiment", "hparams_search"}  # groups whose options set values of all groups


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def changed(key: str, value: Any) -> DictConfig:
    """The default composition with one value set, also under a key that the schema lacks."""
    config = composed()
    with open_dict(config):
        OmegaConf.update(config, key, value, force_add=True)
    return config


def values(node: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dicts, by dotted key."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for name in node for key, leaf in values(node[name], f"{prefix}.{name}".strip(".")).items()}


def test_the_defaults_load() -> None:
    config = load(composed())
    assert isinstance(config, Config)
    assert isinstance(config.trainer, TrainerConfig)
    assert (config.method, config.seed, config.output) == ("gst", 0, None)
    assert config.collection.startswith("layout/")


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_loads_unchanged(group: str, option: str) -> None:
    raw = composed(f"{group}={option}")
    leaves = values(OmegaConf.to_container(raw))
    own = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{option}.yaml"))
    assert isinstance(own, dict)
    searched = "hydra" in own  # Hydra keeps its own settings apart
    for key in ("defaults", "hydra"):
        own.pop(key, None)
    own = values(own, "" if group in GLOBAL else group)
    assert own or searched
    assert {key: leaves[key] for key in own} == own
    loaded = values(load(raw).model_dump(mode="json"))
    assert {key: loaded[key] for key in leaves} == leaves


@pytest.mark.parametrize("option", [option for group, option in OPTIONS if group == "data"])
def test_only_the_chosen_origin_is_present(option: str) -> None:
    data = load(composed(f"data={option}")).data
    assert data.origin == ("local" if option == "sample" else option)
    assert [key for key, value in vars(data).items() if key != "origin" and value is not None] == [data.origin]


def test_values_can_be_overridden_by_type() -> None:
    config = load(composed("data=local", "data.local.split_file=folds.json", "trainer.learning_rate=1", "output=out"))
    assert config.data.local == LocalConfig(root="data/own", split_file="folds.json", folds=5, fold=0)
    assert type(config.trainer.learning_rate) is float
    assert config.output == "out"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("trainer.max_epoch", 3, "not in 'TrainerConfig'"),
        ("colection", "tile/xla", "not in 'Config'"),
        ("data.locl.root", "x", "not in 'DataConfig'"),
        ("data.local.fod", 1, "not in 'LocalConfig'"),
        ("trainer.max_epochs", "many", "'many'"),
        ("trainer.max_epochs", 2.5, "'2.5'"),
        ("trainer.learning_rate", "fast", "'fast'"),
        ("model.opcode_init", "perhaps", "'perhaps'"),
        ("trainer.max_epochs", None, "'None'"),
        ("model.pooling", "mean", "not a ListConfig"),
        ("featurize.workers", [1], "'[1]'"),
        ("data.local", "x", "value: x"),
        ("paths", None, "not Optional"),
    ],
)
def test_a_mistake_is_named(key: str, value: Any, reason: str) -> None:
    # An unknown folder of keys is named itself.
    named = "data.locl" if key.startswith("data.locl") else key
    with pytest.raises(ConfigError) as caught:
        load(changed(key, value))
    assert str(caught.value).startswith(f"configuration: {named}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_replaced_group_is_named_by_its_class() -> None:
    with pytest.raises(ConfigError, match=r"^configuration: .*str is not a subclass of PathsConfig\. value: data$"):
        load(changed("paths", "data"))


def test_missing_values_are_named() -> None:
    raw = composed()
    with open_dict(raw):
        del raw.seed
        raw.trainer.warmup = "???"
        del raw.paths.raw
    with pytest.raises(ConfigError, match=r"^configuration: no value for paths\.raw, seed, trainer\.warmup$"):
        load(raw)


def test_a_broken_interpolation_is_named() -> None:
    with pytest.raises(ConfigError, match=r"configuration: output: .*'nowhere'"):
        load(changed("output", "${nowhere}"))


def test_interpolations_are_resolved() -> None:
    assert load(changed("output", "${paths.models}/${collection}")).output == "models/" + composed().collection


def test_a_plain_configuration_holds_json_types_only() -> None:
    local = LocalConfig(root="x", split_file=None, folds=3, fold=1)
    plain = DataConfig(origin="local", local=local).model_dump(mode="json")
    assert plain["local"] == {"root": "x", "split_file": None, "folds": 3, "fold": 1}
    assert type(plain["local"]) is dict
    assert plain["synthetic"] is None
    assert json.loads(json.dumps(plain)) == plain

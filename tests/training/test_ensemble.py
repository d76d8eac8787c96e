"""Who is a member of an ensemble, and what it does not train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank.config import Config, ConfigError
from hlorank.files import write_json
from hlorank.training.ensemble import make_members

Settings = Callable[..., Config]
GRAPHS = ["unet3d.2x2.bf16", "unet_3d.4x4.bf16", "resnet50.4x4.fp16", "bert_train", "bert_eval", "x.1", "x.2"]
FAMILIES = [{"unet3d.2x2.bf16", "unet_3d.4x4.bf16"}, {"bert_train", "bert_eval"}]


def test_a_model_alone_is_the_configuration_itself(settings: Settings) -> None:
    config = settings(seed=7, trainer__cpu_seconds=60)
    (member,) = make_members(config, GRAPHS)
    assert member.config == config
    assert member.held_out == ()


def test_members_differ_in_their_seed_and_share_the_time(settings: Settings) -> None:
    config = settings(seed=7, ensemble__seeds=4, trainer__cpu_seconds=60)
    members = make_members(config, GRAPHS)
    seeds = [member.config.seed for member in members]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [member.config.seed for member in make_members(config, GRAPHS)]
    for member in members:
        assert member.config.trainer.cpu_seconds == 15
        assert member.config.model_copy(update={"seed": 7, "trainer": config.trainer}) == config
        assert member.held_out == ()
    assert not set(seeds) & {m.config.seed for m in make_members(config.model_copy(update={"seed": 8}), GRAPHS)}


def test_folds_hold_out_every_graph_once_and_families_together(settings: Settings) -> None:
    members = make_members(settings(ensemble__seeds=2, ensemble__folds=3), GRAPHS)
    assert len(members) == 6
    assert len({member.config.seed for member in members}) == 6
    folds = [set(member.held_out) for member in members]
    assert folds[:3] == folds[3:]
    assert sorted(name for fold in folds[:3] for name in fold) == sorted(GRAPHS)
    assert all(folds)
    assert all(family <= fold or not family & fold for family in FAMILIES for fold in folds)


def test_the_sidecar_of_a_graph_names_its_family(settings: Settings, tmp_path: Path) -> None:
    names = ["a.1", "a.2", "b.1", "b.2"]
    for name in names:
        path = tmp_path / "layout/synthetic/random/train" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"family": name[0]})
    members = make_members(settings(ensemble__folds=2, paths__raw=tmp_path), names)
    assert sorted(member.held_out for member in members) == [("a.1", "a.2"), ("b.1", "b.2")]


def test_too_many_folds_are_named(settings: Settings) -> None:
    message = r"ensemble\.folds=6: the 7 graphs of train are of only 5 model families"
    with pytest.raises(ConfigError, match=message):
        make_members(settings(ensemble__folds=6), GRAPHS)

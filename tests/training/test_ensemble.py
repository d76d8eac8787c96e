"""Seeds of the members of an ensemble, and the graphs that each holds out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.config import ConfigError, EnsembleConfig
from hlorank.files import write_json
from hlorank.training.ensemble import Member, make_members

GRAPHS = ["unet3d.2x2.bf16", "unet_3d.4x4.bf16", "resnet50.4x4.fp16", "bert_train", "bert_eval", "x.1", "x.2"]
FAMILIES = [{"unet3d.2x2.bf16", "unet_3d.4x4.bf16"}, {"bert_train", "bert_eval"}]


def members_of(
    seeds: int, folds: int, seed: int = 7, names: list[str] = GRAPHS, raw: Path = Path("none")
) -> list[Member]:
    return make_members(EnsembleConfig(baselines=[], seeds=seeds, folds=folds), seed, names, raw)


def test_a_single_model_has_the_seed_of_the_configuration() -> None:
    assert members_of(1, 1) == [Member(7, ())]


def test_members_differ_in_their_seed() -> None:
    members = members_of(4, 1)
    seeds = [member.seed for member in members]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert members == members_of(4, 1)
    assert all(member.held_out == () for member in members)
    assert not set(seeds) & {member.seed for member in members_of(4, 1, seed=8)}


def test_folds_hold_out_every_graph_once_and_families_together() -> None:
    members = members_of(2, 3)
    assert len(members) == 6
    assert len({member.seed for member in members}) == 6
    folds = [set(member.held_out) for member in members]
    assert folds[:3] == folds[3:]
    assert sorted(name for fold in folds[:3] for name in fold) == sorted(GRAPHS)
    assert all(folds)
    assert all(family <= fold or not family & fold for family in FAMILIES for fold in folds)


def test_the_sidecar_of_a_graph_names_its_family(tmp_path: Path) -> None:
    names = ["a.1", "a.2", "b.1", "b.2"]
    for name in names:
        write_json(tmp_path / f"{name}.json", {"family": name[0]})
    members = members_of(1, 2, names=names, raw=tmp_path)
    assert sorted(member.held_out for member in members) == [("a.1", "a.2"), ("b.1", "b.2")]


def test_more_folds_than_families_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ensemble\.folds=6: .*\b5\b"):
        members_of(1, 6)

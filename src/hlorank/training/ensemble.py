"""The members of an ensemble: what each trains on, with which seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection, measured_family
from hlorank.data.splits import family, make_folds
from hlorank.training.random_streams import Stream, seed_sequence


@dataclass(frozen=True)
class Member:
    """One model of an ensemble.

    Attributes:
        config: the whole configuration, with the member's own seed and its share of the CPU time.
        held_out: graphs of train that it chooses its best epoch on; none trains on all and chooses on valid.
    """

    config: Config
    held_out: tuple[str, ...]


def make_members(config: Config, names: Sequence[str]) -> list[Member]:
    """The members, seeds times folds of them; the first has the seed of the configuration.

    Folds are scikit-learn's GroupKFold over model families: that of a graph's sidecar in data/raw, or else of its name.

    Args:
        config: the whole configuration.
        names: the graphs of train.

    Raises:
        ConfigError: fewer families than folds.
    """
    folds, count = config.ensemble.folds, config.ensemble.seeds * config.ensemble.folds
    held_out: list[tuple[str, ...]] = [()]
    if folds > 1:
        fold_of = _folds(config, names)
        held_out = [tuple(name for name in names if fold_of[name] == fold) for fold in range(folds)]
    budget = config.trainer.cpu_seconds
    trainer = config.trainer.model_copy(update={"cpu_seconds": None if budget is None else budget / count})
    return [
        Member(
            config.model_copy(update={"seed": _seed(config.seed, number), "trainer": trainer}), held_out[number % folds]
        )
        for number in range(count)
    ]


def _seed(seed: int, number: int) -> int:
    return int(seed_sequence(seed, Stream.ENSEMBLE, number).generate_state(1)[0]) if number else seed


def _folds(config: Config, names: Sequence[str]) -> dict[str, int]:
    collection = Collection.parse(config.collection)
    raw = Path(config.paths.raw) / collection.path / "train"
    families = {name: measured_family(raw / f"{name}.npz") or family(name) for name in names}
    if (count := len(set(families.values()))) < config.ensemble.folds:
        raise ConfigError(
            f"ensemble.folds={config.ensemble.folds}: the {len(names)} graphs of train are of only {count} model "
            "families, which stay together; set it to at most that, or to 1"
        )
    return make_folds(families, config.ensemble.folds)

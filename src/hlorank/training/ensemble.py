"""Members of an ensemble: the seed of each, and the graphs that it does not train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hlorank.config import ConfigError, EnsembleConfig
from hlorank.data.collection import measured_family
from hlorank.data.splits import family, make_folds
from hlorank.training.sampling import Stream, seed_sequence


@dataclass(frozen=True)
class Member:
    """One model of an ensemble.

    Attributes:
        seed: the seed of the member's training.
        held_out: graphs of train on which it chooses its best epoch; if empty, it trains on all of train and chooses
            on valid.
    """

    seed: int
    held_out: tuple[str, ...]


def make_members(config: EnsembleConfig, seed: int, names: Sequence[str], raw: Path) -> list[Member]:
    """Make seeds times folds members; the first has the seed of the configuration.

    Folds are scikit-learn's GroupKFold over model families: that of a graph's sidecar in data/raw, or else of its name.

    Args:
        config: the number of seeds and folds.
        seed: the seed of the configuration.
        names: the graphs of train.
        raw: the folder of their files in data/raw.

    Raises:
        ConfigError: there are fewer families than folds.
    """
    held_out: list[tuple[str, ...]] = [()]
    if config.folds > 1:
        fold_of = _folds(config.folds, names, raw)
        held_out = [tuple(name for name in names if fold_of[name] == fold) for fold in range(config.folds)]
    return [
        Member(_member_seed(seed, number), held_out[number % config.folds])
        for number in range(config.seeds * config.folds)
    ]


def _member_seed(seed: int, number: int) -> int:
    return int(seed_sequence(seed, Stream.ENSEMBLE, number).generate_state(1)[0]) if number else seed


def _folds(folds: int, names: Sequence[str], raw: Path) -> dict[str, int]:
    families = {name: measured_family(raw / f"{name}.npz") or family(name) for name in names}
    if (count := len(set(families.values()))) < folds:
        raise ConfigError(
            f"ensemble.folds={folds}: the {len(names)} graphs of train are of only {count} model families, which stay "
            "together; set it to at most that, or to 1"
        )
    return make_folds(families, folds)

"""Make a ranker that comes with the package: `dvc repro rankers/dvc.yaml` makes all of them; `make repro` makes none.

A model family is in one fold of five. In turn each fold is left out, the one before it chooses, and the others train;
the mean Kendall tau on the folds left out is that of the card. The ranker itself leaves none out: it trains on four
folds, and the last one chooses. Stages run in .hlorank/release/NAME, with MLflow's store there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from hlorank.code import features_digest
from hlorank.data.splits import SplitFile
from hlorank.files import METRICS, SPEC, WEIGHTS, atomic_folder, read_json, write_json
from hlorank.ranking.inputs import CARD
from hlorank.version import __version__

ROOT = Path(__file__).resolve().parents[1]
FOLDS, TRAINING = 5, ("fetch", "featurize", "partition", "train")


class Ranker(NamedTuple):
    """A ranker: the collection that its graphs are joined into, the folders of data/ with these, and its experiment."""

    collection: str
    parts: dict[str, str]
    experiment: str
    not_for: str


_NOT_FOR = (
    "Runtimes were measured on one machine (AMD EPYC, two cores): it does not know other processors, and on other "
    "backends its ranking means nothing. A score is no runtime, and compares configurations of one graph only."
)
RANKERS = {
    "layout.cpu": Ranker(
        "layout/cpu/random",
        {"layout/cpu/random": "sample", "layout/cpu/default": "sample", "layout/cpu/models": "models"},
        "best_layout",
        _NOT_FOR,
    ),
    "tile.cpu": Ranker("tile/cpu", {"tile/cpu": "sample"}, "best_tile", _NOT_FOR),
}


def main() -> None:
    """Make the ranker that the command names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=RANKERS)
    parser.add_argument("--out", type=Path, default=ROOT / "rankers", metavar="DIR")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the trainings, to try them quickly")
    arguments = parser.parse_intermixed_args()
    ranker, work = RANKERS[arguments.name], ROOT / ".hlorank/release" / arguments.name
    shutil.rmtree(work, ignore_errors=True)
    _link(ranker.parts, work / "tree")
    figures = [_fold(ranker, fold, work, arguments.overrides) for fold in range(FOLDS)]
    # One fold more, which has no family, is left out.
    _run(ranker, TRAINING, work, "all", FOLDS + 1, FOLDS - 1, arguments.overrides)
    model = work / "all/models" / ranker.collection / "full"
    card = _card(ranker, figures, arguments.overrides)
    with atomic_folder(arguments.out / arguments.name) as folder:
        for file in (SPEC, WEIGHTS):
            shutil.copyfile(model / file, folder / file)
        write_json(folder / CARD, card)
    sys.stdout.write(f"{arguments.out / arguments.name}: Kendall tau {card['kendall_tau']:.3f} on folds left out\n")


def _link(parts: Mapping[str, str], root: Path) -> None:
    """Bring collections into one tree."""
    for part, folder in parts.items():
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        (root / part).symlink_to(ROOT / "data" / folder / part)


def _run(
    ranker: Ranker, stages: Sequence[str], work: Path, name: str, folds: int, valid: int, overrides: Sequence[str]
) -> None:
    """Run stages in a folder of their own, with the number of folds, of which one chooses and the next is left out."""
    place, split_file = work / name, work / f"split-{folds}.json"
    # The split files of data/ agree where they have the same families.
    files = [ROOT / "data" / folder / "split.json" for folder in ranker.parts.values()]
    families = {family: fold for file in files for family, fold in SplitFile(**read_json(file)).families.items()}
    write_json(split_file, SplitFile(folds=folds, families=families).model_dump(exclude_unset=True))
    data = [f"data.local.root={work / 'tree'}", f"data.local.split_file={split_file}", f"data.local.folds={folds}"]
    if len(ranker.parts) > 1:
        data.append(f"data.local.collections=[{','.join(ranker.parts)}]")
    model = ["method=full", f"tracking.uri=sqlite:///{place / 'mlflow.db'}"]
    own = {"fetch": ["data=local", *data, f"data.local.fold={valid}"], "train": [*model, *overrides], "evaluate": model}
    words = [f"collection={ranker.collection}", f"experiment={ranker.experiment}"]
    words += [f"paths.{key}={place / key}" for key in ("raw", "features", "segments", "models", "reports", "state")]
    for stage in stages:
        command = [ROOT / "scripts/stage", stage, *words, *own.get(stage, ())]
        subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - words of this module


def _fold(ranker: Ranker, left_out: int, work: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train without a fold, and return its number of graphs and mean figures."""
    name = f"fold-{left_out}"
    _run(ranker, (*TRAINING, "evaluate"), work, name, FOLDS, (left_out - 1) % FOLDS, overrides)
    figures = read_json(work / name / "reports" / ranker.collection / "full" / METRICS)["test"]
    return {key: figures[key] for key in ("graphs", "kendall_tau", "noise_ceiling", "slowdown_1", "slowdown_5")}


def _card(ranker: Ranker, figures: Sequence[Mapping[str, Any]], overrides: Sequence[str]) -> dict[str, Any]:
    return {
        "trained_on": [f"data/{folder}/{part}" for part, folder in ranker.parts.items()],
        "experiment": " ".join([ranker.experiment, *overrides]),
        "folds": [*figures],
        "kendall_tau": round(fmean(figure["kendall_tau"] for figure in figures), 4),
        "not_for": ranker.not_for,
        "hlorank": __version__,
        "features": features_digest(),
    }


if __name__ == "__main__":
    main()

"""Trainer of the rankers that come with the package, which rankers/dvc.yaml runs.

All collections of layouts that one CPU measured are joined, as what copies cost is alike in them. Settings are those of
docs/explanation/models.md, from which the Kendall tau by folds is, too. Nothing of the pipeline is read or written.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hlorank.files import SPEC, WEIGHTS, fingerprint, read_json, write_json
from hlorank.ranking.rankers import CARD, Card
from hlorank.version import __version__

WORK = Path(".hlorank/release").resolve()  # a relative store would be that of the main checkout
JOINED = ("layout/cpu/random", "layout/cpu/default", "layout/cpu/models")
FEATURES = ("hlorank.featurize", "hlorank.hlo", "hlorank.data")
MEASURED = "AMD EPYC, and Intel Xeon for 8 graphs of layout/cpu/models"
NOT_FOR = f"GPUs, TPUs, several devices, and CPUs unlike those measured: {MEASURED}"
RANKERS: dict[str, dict[str, Any]] = {
    "layout.cpu": {
        "method": "analytical",
        "collections": [*JOINED],
        "tau": {"layout:cpu:random": 0.765, "layout:cpu:default": 0.667, "layout:cpu:models": 0.795},
    },
    "tile.cpu": {"method": "best_tile", "collections": ["tile/cpu"], "tau": {"tile:cpu": 0.748}},
}
"""Rankers by name; tau is the mean over five folds of families, each left out once."""


def code_of_features() -> str:
    """Return a digest of the statements of the modules that make features of a program."""
    from hlorank.stages.code import code_of

    modules = code_of("featurize")["modules"]
    return fingerprint({name: digest for name, digest in modules.items() if name.startswith(FEATURES)})


def stage(name: str, *overrides: str) -> None:
    """Run a stage in the work folder."""
    paths = (f"paths.{kind}={WORK}/{kind}" for kind in ("raw", "features", "models", "reports", "state"))
    store = (f"tracking.uri=sqlite:///{WORK}/mlflow.db", f"tracking.artifacts={WORK}/mlartifacts") * (
        name in {"train", "evaluate"}
    )
    words = [sys.executable, "-P", "-m", f"hlorank.stages.{name}", *paths, *store, *overrides]
    subprocess.run(words, check=True)  # noqa: S603 - words of this module


def train(name: str) -> None:
    """Train a ranker, and replace its folder."""
    about = RANKERS[name]
    address, method, data = "tile/cpu", "full", ["experiment=best_tile"]
    if name == "layout.cpu":
        for part in about["collections"]:
            group = "models" if part.endswith("models") else "sample"
            stage("fetch", f"data={group}", f"collection={part}", f"output={WORK}/parts/{part}")
        address, method = "layout/cpu/random", "analytical"
        data = ["data=local", f"data.local.root={WORK}/parts", f"data.local.collections=[{','.join(JOINED)}]"]
    chosen = [f"collection={address}", *(["experiment=best_tile"] if name == "tile.cpu" else [])]
    stage("fetch", *data, *chosen[:1])
    stage("featurize", *chosen)
    for step in ("train", "evaluate"):  # whole graphs, which need no partition
        stage(step, *chosen, f"method={method}")
    made, kept = WORK / "models" / address / method, Path("rankers") / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for file in (SPEC, WEIGHTS):
        shutil.copy(made / file, kept / file)
    scores = read_json(WORK / "reports" / address / method / "scores.json")
    own: dict[str, Any] = {
        "name": name,
        "kind": name.partition(".")[0],
        "backend": "cpu",
        "not_for": NOT_FOR,
        "version": __version__,
    }
    card = Card(**about, **own, test_tau=scores["test"]["tau"], code=code_of_features())
    write_json(kept / CARD, card.model_dump())


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    for ranker in RANKERS:
        train(ranker)
    shutil.rmtree(WORK)

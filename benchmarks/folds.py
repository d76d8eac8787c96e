"""Folds of the cross-validation: which graphs of a collection train, choose and are left out, and their features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import ROOT, composed, prepare_data  # type: ignore[import-not-found] # same folder

from hlorank.config import Split
from hlorank.data.collection import Collection, graph_files, measured_family
from hlorank.data.splits import SplitFile, family, make_folds
from hlorank.files import fingerprint, read_json, shared_dir, write_json

FOLDS = 5
KERNELS = Path("data/official/op_tuning_data.pb")
"""The file of tile/xla, below the shared files."""
PROGRAMS = Path("data/tpugraphs/npz")
"""The tree of layout/xla/default, below the shared files."""
JOINED = "layout/joined/random"
PARTS = {"layout/cpu/random": "sample", "layout/cpu/default": "sample", "layout/cpu/models": "models"}
"""The collections that `JOINED` consists of, and the folder of data/ that has each."""
OUTPUTS = "layout/tpu-v3/outputs"
TPU = (OUTPUTS, "layout/tpu-v3/random", "layout/tpu-v3/default")
BUNDLED = {**PARTS, **dict.fromkeys(TPU, "sample")}
ZERO_SHOT = "layout/xla/outputs"
"""The estimates of `OUTPUTS` to train and to choose on, and the real programs that are published to rank."""
REAL = ("npz/layout/xla/default/train", "npz/layout/xla/default/valid", "restored/layout/xla/random/train")
"""Their folders, below data/tpugraphs of the shared files."""


@dataclass(frozen=True, eq=False)
class Fold:
    """One way to divide the graphs of a collection.

    Attributes:
        collection: path of the collection.
        number: number of the fold, from 0.
        root: the tree of the graphs.
        splits: the split of each graph; test is the fold left out.
        families: the family of each graph.
    """

    collection: str
    number: int
    root: Path
    splits: Mapping[str, Split]
    families: Mapping[str, str]

    def data(self, work: Path) -> tuple[str, ...]:
        """Write the fold's split file, unless it is there, and return the overrides with which fetch reads it."""
        path = work / self.collection / f"fold-{self.number}.json"
        numbers = {"valid": 0, "test": 1, "train": 2}
        fold_of = {graph: numbers[split] for graph, split in self.splits.items()}
        content = SplitFile(folds=3, collections={str(Collection.parse(self.collection)): fold_of})
        write_json(path, content.model_dump(exclude_unset=True))
        values = {"root": self.root, "split_file": path, "folds": 3, "fold": 0}
        if self.collection == JOINED:
            values["collections"] = f"[{','.join(PARTS)}]"
        return "data=local", *(f"data.local.{key}={value}" for key, value in values.items())


def folds_of(collection: str, work: Path) -> list[Fold]:
    """Return the folds of a collection; what is generated or converted is written into `work` first."""
    address = Collection.parse(collection)
    if collection == "tile/xla":
        return _one_kernel_each(collection, work / "kernels")
    if collection == "layout/xla/default":
        return [_real_pair(collection)]
    if collection == ZERO_SHOT:
        return [_zero_shot(collection, work / "zero-shot")]
    if collection == JOINED:
        root = _linked_parts(work / "joined")
        families = {
            f"{Collection.parse(part).model_name}.{graph}": name
            for part, folder in PARTS.items()
            for graph, name in _bundled_families(folder, part).items()
        }
        number_of = {name: fold for folder in PARTS.values() for name, fold in _bundled_folds(folder).items()}
    elif address.source == "synthetic":
        root = work / "generated"
        prepare_data(composed(collection, (f"paths.raw={root}",), 0, work))
        names = [file.stem for split in ("train", "valid", "test") for file in graph_files(root, address, split)]
        families = {name: name for name in names}
        number_of = make_folds(families, FOLDS)
    else:
        folder = BUNDLED.get(collection, "sample")
        root = ROOT / "data" / folder
        families, number_of = _bundled_families(folder, collection), _bundled_folds(folder)

    def split_of(name: str, left_out: int) -> Split:
        splits: dict[int, Split] = {left_out: "test", (left_out - 1) % FOLDS: "valid"}
        return splits.get(number_of[name], "train")

    return [
        Fold(collection, number, root, {graph: split_of(name, number) for graph, name in families.items()}, families)
        for number in range(FOLDS)
    ]


def available(collection: str) -> bool:
    """Return whether the files of a collection are there; those of TpuGraphs may be absent."""
    if collection in TPU and not graph_files(ROOT / "data" / BUNDLED[collection], Collection.parse(collection), None):
        return False
    needed = {"tile/xla": KERNELS, "layout/xla/default": PROGRAMS, ZERO_SHOT: PROGRAMS}
    return collection not in needed or (shared_dir() / needed[collection]).exists()


def _bundled_families(folder: str, collection: str) -> dict[str, str]:
    files = graph_files(ROOT / "data" / folder, Collection.parse(collection), None)
    return {file.stem: measured_family(file) or family(file.stem) for file in files}


def _bundled_folds(folder: str) -> dict[str, int]:
    """Return the fold of each family; the split files of data/ agree where they have the same families."""
    return SplitFile(**read_json(ROOT / "data" / folder / "split.json")).families


def _linked_parts(root: Path) -> Path:
    """Bring the collections of `PARTS` into one tree, and return its root."""
    for part, folder in PARTS.items():
        link = root / part
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "data" / folder / part)
    return root


def _one_kernel_each(collection: str, root: Path) -> list[Fold]:
    """Leave out each kernel in turn, and choose on the three of another of five groups."""
    from hlorank.fetch.hlo import convert

    names = [path.stem for path in convert(shared_dir() / KERNELS, root / collection, "tile")]
    families = {name: name for name in names}
    group_of = make_folds(families, FOLDS)
    folds = []
    for number, left_out in enumerate(sorted(names, key=lambda name: (group_of[name], name))):
        valid = (group_of[left_out] - 1) % FOLDS
        splits: dict[str, Split] = {name: "valid" if group_of[name] == valid else "train" for name in names}
        folds.append(Fold(collection, number, root, {**splits, left_out: "test"}, families))
    return folds


def _real_pair(collection: str) -> Fold:
    """Train on unet3d and rank unet_3d.4x4.bf16; nothing chooses, so that the smallest training loss does."""
    root, address = shared_dir() / PROGRAMS, Collection.parse(collection)
    splits: dict[str, Split] = {file.stem: "train" for file in graph_files(root, address, "train")}
    splits |= {file.stem: "test" for file in graph_files(root, address, "valid")}
    return Fold(collection, 0, root, splits, {name: name for name in splits})


def _zero_shot(collection: str, root: Path) -> Fold:
    """Train on estimates for TPU v3 but those of a fold, which choose, and rank the real programs of TpuGraphs."""
    estimated = graph_files(ROOT / "data" / BUNDLED[OUTPUTS], Collection.parse(OUTPUTS), None)
    real = [file for folder in REAL for file in sorted((shared_dir() / PROGRAMS.parent / folder).glob("*.npz"))]
    (root / collection).mkdir(parents=True, exist_ok=True)
    for file in [*estimated, *(path.with_suffix(".json") for path in estimated), *real]:
        link = root / collection / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())
    families, number_of = _bundled_families(BUNDLED[OUTPUTS], OUTPUTS), _bundled_folds(BUNDLED[OUTPUTS])
    splits: dict[str, Split] = {name: "valid" if number_of[of] == 0 else "train" for name, of in families.items()}
    own = {file.stem: file.stem for file in real}
    return Fold(collection, 0, root, splits | dict.fromkeys(own, "test"), families | own)


@cache
def prepared(fold: Fold, overrides: tuple[str, ...], work: Path) -> tuple[Path, str]:
    """Featurize and partition the graphs of a fold; return the folder, and the fingerprint of the data."""
    data, place = fold.data(work), work / fold.collection / f"fold-{fold.number}"
    config = composed(fold.collection, overrides, 0, place, data)
    place /= fingerprint(config.model_dump(mode="json", include={"featurize", "partition"}))[:12]
    place.mkdir(parents=True, exist_ok=True)
    config = composed(fold.collection, overrides, 0, place, data)
    return place, fingerprint([prepare_data(config), dict(fold.splits)])

"""Folds of the cross-validation: which graphs of a collection train, choose and are left out, and their features."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from harness import ROOT, composed, prepare_data

from hlorank.config import Split
from hlorank.data.collection import SPLITS, Collection, graph_files
from hlorank.data.splits import SplitFile, family_of, make_folds
from hlorank.files import fingerprint, one_process, read_json, shared_dir, write_json

FOLDS = 5
KERNELS = Path("data/official/op_tuning_data.pb")
"""The file of tile/xla, below the shared files."""
PROGRAMS = Path("data/tpugraphs")
"""The folder of the real programs, below the shared files."""
PARTS = {"layout/cpu/random": "sample", "layout/cpu/default": "sample", "layout/cpu/models": "models"}
"""The collections of CPUs, and the folder of data/ that has each."""
OUTPUTS, SMALLER = "layout/tpu-v3/outputs", "layout/tpu-v5e/outputs"
TPU = (OUTPUTS, "layout/tpu-v3/random", "layout/tpu-v3/default", SMALLER)
BUNDLED = {**PARTS, **dict.fromkeys(TPU, "sample")}
JOINED = {"layout/joined/random": tuple(PARTS), "layout/tpu-v3/models": TPU[:3]}
"""Collections that consist of others, on all of which one model trains."""
ZERO_SHOT = "layout/xla/outputs"
"""The estimates of `OUTPUTS` to train and to choose on, and the real programs that are published to rank."""
REAL = "layout/xla/random"
"""The real programs that are published apart from the archives of TpuGraphs, each left out once."""
TRANSFER = (f"{REAL}@2", *(f"{SMALLER}@{count}" for count in (0, 8, 32)))
"""So many graphs of a collection train beside estimates of `OUTPUTS`; networks begin with a model of those."""
SYNTHETIC = "layout/synthetic/random"
CURVES = tuple(f"{name}%{percent}" for name in (OUTPUTS, "layout/cpu/random", SYNTHETIC) for percent in (10, 30))
CURVES += (f"{SYNTHETIC}%100",)  # rows of all its graphs are of the generator of commit 42ca19e
"""Collections with so many percent of the graphs of train."""
KERAS = "layout/keras/models"
"""The collections of CPUs to train and to choose on, and data/keras to rank."""
NO_OPERANDS = (OUTPUTS, *CURVES[:2], SMALLER, ZERO_SHOT, REAL, *TRANSFER)
"""Collections for models that do not read the layouts of operands."""
COLLECTIONS = (*TPU, ZERO_SHOT, REAL, *TRANSFER, *PARTS, KERAS, *JOINED, SYNTHETIC, *CURVES, "tile/cpu", "tile/xla")
_REAL_FOLDERS = ("npz/layout/xla/default/train", "npz/layout/xla/default/valid", "restored/layout/xla/random/train")
_PREFIX = "estimated."


def address_of(collection: str) -> Collection:
    """Return the address of a collection, whose name may end with @ or % and how many graphs train."""
    return Collection.parse(collection.partition("@")[0].partition("%")[0])


@dataclass(frozen=True, eq=False)
class Fold:
    """One way to divide the graphs of a collection."""

    collection: str  # its path
    number: int  # from 0
    root: Path  # the tree of the graphs
    splits: dict[str, Split]  # of each graph; test is the fold left out
    families: dict[str, str]  # of each graph
    start: Fold | None = None  # on its model networks are trained further, on `further` alone
    further: tuple[str, ...] = ()

    @property
    def of_networks(self) -> Fold:
        """The fold for networks; where they go on with few graphs, none chooses, so the least training loss does."""
        if self.start is None:
            return self
        splits: dict[str, Split] = {graph: split for graph, split in self.splits.items() if split == "test"}
        return replace(self, root=self.root.with_name("alone"), splits=splits | dict.fromkeys(self.further, "train"))

    def data(self, work: Path) -> tuple[str, ...]:
        """Write the fold's split file, unless it is there, and return the overrides with which fetch reads it."""
        path = work / self.collection / f"fold-{self.number}-{fingerprint(dict(self.splits))[:8]}.json"
        numbers = {"valid": 0, "test": 1, "train": 2}
        fold_of = {graph: numbers[split] for graph, split in self.splits.items()}
        content = SplitFile(folds=3, collections={str(address_of(self.collection)): fold_of})
        write_json(path, content.model_dump(exclude_unset=True))
        values = {"root": self.root, "split_file": path, "folds": 3, "fold": 0}
        if self.collection in JOINED:
            values["collections"] = f"[{','.join(filter(available, JOINED[self.collection]))}]"
        return "data=local", *(f"data.local.{key}={value}" for key, value in values.items())


def folds_of(collection: str, work: Path) -> list[Fold]:
    """Return the folds of a collection; what is generated or converted is written into `work` first."""
    address = address_of(collection)
    if collection == "tile/xla":
        return _one_kernel_each(collection, work / "kernels")
    if "@" in collection:
        return _transfer(collection, work)
    if "%" in collection:
        return _fewer(collection, work)
    if collection == ZERO_SHOT:
        return [_others(collection, (OUTPUTS,), _real_files(), work / "zero-shot")]
    if collection == KERAS:
        ranked = graph_files(ROOT / "data/keras", Collection.parse("layout/cpu/models"), None)
        return [_others(collection, (*PARTS,), ranked, work / "keras")]
    if collection == REAL:
        return _real(work / "real")
    if collection in JOINED:
        parts = [*filter(available, JOINED[collection])]
        root = _linked_parts(parts, work / "joined")
        families = {
            f"{Collection.parse(part).model_name}.{graph}": name
            for part in parts
            for graph, name in _bundled_families(BUNDLED[part], part).items()
        }
        number_of = {of: fold for part in parts for of, fold in _bundled_folds(BUNDLED[part]).items()}
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
    if collection in JOINED:
        return any(map(available, JOINED[collection]))
    address = address_of(collection)
    if address.path.as_posix() in TPU and not graph_files(ROOT / "data/sample", address, None):
        return False
    needed = {"tile/xla": KERNELS, **dict.fromkeys((ZERO_SHOT, REAL, f"{REAL}@2"), PROGRAMS)}
    return collection not in needed or (shared_dir() / needed[collection]).exists()


def _bundled_families(folder: str, collection: str) -> dict[str, str]:
    files = graph_files(ROOT / "data" / folder, Collection.parse(collection), None)
    return {file.stem: family_of(file) for file in files}


def _bundled_folds(folder: str) -> dict[str, int]:
    """Return the fold of each family; the split files of data/ agree where they have the same families."""
    return SplitFile(**read_json(ROOT / "data" / folder / "split.json")).families


def _linked_parts(parts: Iterable[str], root: Path) -> Path:
    """Bring collections into one tree, and return its root."""
    for part in parts:
        link = root / part
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "data" / BUNDLED[part] / part)
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


def _real_files() -> list[Path]:
    folders = [shared_dir() / PROGRAMS / folder for folder in _REAL_FOLDERS]
    return sorted(file for folder in folders for file in folder.glob("*.npz"))


def _real(root: Path) -> list[Fold]:
    """Train on all real programs of TpuGraphs that are there but one, and rank that; nothing chooses."""
    names = _link(_real_files(), root / REAL)
    train: dict[str, Split] = dict.fromkeys(names, "train")
    families = {name: name for name in names}
    return [Fold(REAL, number, root, {**train, name: "test"}, families) for number, name in enumerate(names)]


def _others(collection: str, parts: Sequence[str], ranked: Sequence[Path], root: Path) -> Fold:
    """Train on bundled collections but their families of a fold, which choose, and rank other graphs."""
    families, splits = dict[str, str](), dict[str, Split]()
    for part in parts:
        prefix = f"{Collection.parse(part).search}." * (len(parts) > 1)  # they have graphs of one name
        files = graph_files(ROOT / "data" / BUNDLED[part], Collection.parse(part), None)
        _link(files, root / collection, prefix)
        own, number_of = {f"{prefix}{file.stem}": family_of(file) for file in files}, _bundled_folds(BUNDLED[part])
        families |= own
        splits |= {name: "valid" if number_of[of] == 0 else "train" for name, of in own.items()}
    _link(ranked, root / collection)
    own = {file.stem: family_of(file) for file in ranked}
    return Fold(collection, 0, root, splits | dict.fromkeys(own, "test"), families | own)


def _fewer(collection: str, work: Path) -> list[Fold]:
    """Leave so many percent of the graphs of train, at least two, in an order that depends on their names alone."""
    name, _, percent = collection.partition("%")
    found = []
    for fold in folds_of(name, work):
        train = [graph for graph, split in fold.splits.items() if split == "train"]
        left_out = sorted(train, key=_shuffled)[max(2, round(len(train) * int(percent) / 100)) :]
        splits = {graph: split for graph, split in fold.splits.items() if graph not in left_out}
        root = work / "fewer" / percent / str(fold.number)
        files = [file for split in (None, *SPLITS) for file in graph_files(fold.root, address_of(name), split)]
        _link([file for file in files if file.stem in splits], root / name)
        found.append(replace(fold, collection=collection, root=root, splits=splits))
    return found


def _shuffled(graph: str) -> int:
    return zlib.crc32(graph.encode())


def _transfer(collection: str, work: Path) -> list[Fold]:
    """Bring a collection and estimates of `OUTPUTS` together; the latter are without the families that are left out.

    Of the collection's train so many graphs stay, in an order that depends on their names alone.
    """
    name, _, count = collection.partition("@")
    targets = folds_of(name, work)
    if name == REAL:
        sources = starts = folds_of(ZERO_SHOT, work) * len(targets)
    else:
        sources, starts = folds_of(OUTPUTS, work), folds_of(f"{name}@0", work) if int(count) else []
    found = []
    for target, source in zip(targets, sources, strict=True):
        folder = work / "after-estimates" / collection / str(target.number)
        files = graph_files(target.root, Collection.parse(name), None)
        shuffled = sorted((file.stem for file in files), key=_shuffled)
        few = tuple(graph for graph in shuffled if target.splits[graph] != "test")[: int(count)]
        splits: dict[str, Split] = {graph: split for graph, split in target.splits.items() if split == "test"}
        splits |= dict.fromkeys(few, "train")
        for part in ("alone", "together"):
            _link([file for file in files if file.stem in splits], folder / part / name)
        kept = {graph: split for graph, split in source.splits.items() if split != "test"}
        estimates = [source.root / source.collection / f"{graph}.npz" for graph in kept]
        _link(estimates, folder / "together" / name, _PREFIX, (".npz",))
        families = {graph: target.families[graph] for graph in splits}
        families |= {f"{_PREFIX}{graph}": source.families[graph] for graph in kept}
        splits |= {f"{_PREFIX}{graph}": split for graph, split in kept.items()}
        start = starts[target.number] if few else None
        found.append(Fold(collection, target.number, folder / "together", splits, families, start, few))
    return found


def _link(
    files: Iterable[Path], folder: Path, prefix: str = "", suffixes: Sequence[str] = (".npz", ".json")
) -> list[str]:
    """Link graphs into a folder, and the JSON files next to them; return the graphs' names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [path for file in files for suffix in suffixes if (path := file.with_suffix(suffix)).exists()]
    for path in paths:
        link = folder / f"{prefix}{path.name}"
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())
    return [path.stem for path in paths if path.suffix == ".npz"]


@cache
def prepared(fold: Fold, overrides: tuple[str, ...], work: Path) -> tuple[Path, str]:
    """Featurize and partition the graphs of a fold; return the folder, and the fingerprint of the data."""
    data, place = fold.data(work), work / fold.collection / fold.root.name / f"fold-{fold.number}"
    collection = address_of(fold.collection).path.as_posix()
    config = composed(collection, overrides, 0, place, data)
    place /= fingerprint(config.model_dump(mode="json", include={"featurize", "partition"}))[:12]
    place.mkdir(parents=True, exist_ok=True)
    config = composed(collection, overrides, 0, place, data)
    with one_process(place.with_suffix(".lock"), f"stages that write {place}"):  # cells of two jobs share it
        return place, fingerprint([prepare_data(config), dict(fold.splits)])

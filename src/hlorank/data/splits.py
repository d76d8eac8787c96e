"""New splits of a collection by graph, with model families together."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hlorank.config import ConfigError, Section, Split, read_section
from hlorank.data.collection import Collection, sidecar_path
from hlorank.files import DataError, read_json, write_json

_log = logging.getLogger(__name__)

Fold = Annotated[int, Field(ge=0, strict=True)]

MIN_FOLDS = 3  # valid, test, and at least one to train on

_HASHED = re.compile(r"[0-9a-f]{32}")
_FINGERPRINT = re.compile(r"_-?[0-9a-f]{8,16}$")
_VARIANT = re.compile(
    r"""(?<![a-z0-9])(?:
        (?:dynamic_)?batch_size(?:_\d+)? | (?:batch|bs)_?\d+    # batch size
      | (?:bf|fp?|b?float|u?int|[su])(?:4|8|16|32|64)           # dtype
      | \d+x\d+(?:x\d+)? | \d+_shards?                          # topology, mesh
      | train(?:ing)? | test | eval | inference                  # phase
    )(?![a-z0-9])""",
    re.VERBOSE,
)


class SplitFile(Section):
    """Content of a split file, which can be committed and edited: the folds of graphs by their name or model family."""

    folds: int = Field(ge=MIN_FOLDS)
    collections: dict[str, dict[str, Fold]] = Field(default_factory=dict)  # by address and labelled graph
    families: dict[str, Fold] = Field(default_factory=dict)  # of collections that are not in `collections`


def family(name: str) -> str:
    """Return the model family of a graph; graphs of one family must not be in two splits.

    Two names are of one family if they agree without the parts of `_VARIANT`, the fingerprint of a tile kernel at the
    end (`_-342c949e14733d96`), case and separators: `unet_3d.4x4.bf16` and `unet3d` are one family.

    Sizes of the model stay: `L-10_H-768_A-12` is another family than `L-12_H-768_A-12`. A name that is only a
    hash of 32 digits, as in the official test files, is a family.
    """
    text = name.lower()
    if _HASHED.fullmatch(text):
        return text
    text = _FINGERPRINT.sub("", text)
    return re.sub(r"[^a-z0-9]+", "", _VARIANT.sub("", text)) or text


def family_of(graph: Path) -> str:
    """Return the model family of a graph, which the JSON file next to its npz file names, or else the graph's name."""
    path = sidecar_path(graph)
    named = read_json(path).get("family") if path.is_file() else None
    return family(graph.stem) if named is None else str(named)


def make_folds(families: Mapping[str, str], folds: int) -> dict[str, int]:
    """Deal graphs into folds, families together, with about as many graphs in each; the same on every call.

    Fewer families than folds are refused with ConfigError.
    """
    from sklearn.model_selection import GroupKFold

    names = sorted(families)
    if (count := len(set(families.values()))) < folds:
        raise ConfigError(
            f"data.local.folds={folds}: the labelled graphs are of {count} model families, which stay together; lower "
            f"it to {MIN_FOLDS} at least, or use folders train, valid and test, with data.local.split_file=null"
        )
    held_out = (rows for _, rows in GroupKFold(n_splits=folds).split(names, groups=[families[n] for n in names]))
    return {names[row]: fold for fold, rows in enumerate(held_out) for row in rows}


def split_graphs(
    collection: Collection, families: Mapping[str, str], split_file: Path, folds: int, fold: int
) -> dict[str, Split]:
    """Return the split of each graph of known family: `fold` is valid, the next one test, the others are train.

    A collection that the split file (`SplitFile`) lists neither by graph nor by family is dealt into folds and added to
    it. A file that does not fit `folds`, the graphs or their families is refused with DataError.
    """
    content = SplitFile(folds=folds)
    if split_file.exists():
        content = read_section(SplitFile, split_file, "edit the file, or delete it to split again")
    if content.folds != folds:
        expected = f"{folds}; set data.local.folds to the number in the file, or delete the file to split again"
        raise DataError("folds", expected, content.folds, file=split_file)
    address = str(collection)
    if address not in content.collections and content.families:
        fold_of = {name: content.families.get(family) for name, family in families.items()}
        if missing := sorted({families[name] for name, known in fold_of.items() if known is None}):
            expected = f"a fold for each model family of {address}; add it to the file"
            raise DataError("families", expected, f"none for {', '.join(missing)}", file=split_file)
    elif address not in content.collections:
        fold_of = {**make_folds(families, folds)}
        content = content.model_copy(update={"collections": {**content.collections, address: fold_of}})
        write_json(split_file, content.model_dump(exclude_unset=True))
        _log.info("%s: dealt %s into %d folds; commit this file to keep them", split_file, address, folds)
    else:
        fold_of = {**content.collections[address]}
        listed, graphs = fold_of.keys(), families.keys()
        if listed != graphs:
            expected = "each labelled graph of data.local.root once; edit the file, or remove this entry to split again"
            parts = (("missing", sorted(graphs - listed)), ("unknown", sorted(listed - graphs)))
            found = "; ".join(f"{word} graphs: {', '.join(names)}" for word, names in parts if names)
            raise DataError(address, expected, found, file=split_file)
    if wrong := [name for name, known in fold_of.items() if known not in range(folds)]:
        raise DataError(address, f"folds in 0..{folds - 1}", f"{fold_of[wrong[0]]} for {wrong[0]}", file=split_file)
    splits: dict[int | None, Split] = {fold: "valid", (fold + 1) % folds: "test"}
    return {name: splits.get(fold_of[name], "train") for name in families}

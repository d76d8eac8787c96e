"""A new split of a collection by graph, which keeps model families together."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, Split
from hlorank.files import DataError, read_json, write_json

_log = logging.getLogger(__name__)

MIN_FOLDS = 3  # valid, test, and at least one to train on

_HASHED = re.compile(r"[0-9a-f]{32}")
_FINGERPRINT = re.compile(r"_-?[0-9a-f]{8,16}$")
_VARIANT = re.compile(
    r"""(?<![a-z0-9])(?:
        (?:dynamic_)?batch_size(?:_\d+)? | (?:batch|bs)_?\d+    # batch size
      | (?:bf|fp?|b?float|u?int|[su])(?:4|8|16|32|64)           # dtype
      | \d+x\d+(?:x\d+)? | \d+_shards?                          # topology, mesh
      | train | test | eval | inference                         # phase
    )(?![a-z0-9])""",
    re.VERBOSE,
)


def family(name: str) -> str:
    """The model family of a graph: graphs of one family must not lie on both sides of a split.

    Two names are of one family if they agree once these are removed, in any place and order:

    - the fingerprint of a tile kernel, a signed hexadecimal number at the end (`_-342c949e14733d96`);
    - batch size (`batch_128`, `batch_size_32`, `dynamic_batch_size`, `bs64`);
    - dtype (`bf16`, `fp32`, `int8`);
    - topology or mesh (`4x4`, `2x2x4`, `1_shard`);
    - phase (`train`, `test`, `eval`, `inference`);
    - case and separators: `unet_3d.4x4.bf16` and `unet3d` are one family.

    Sizes of the model stay: `L-10_H-768_A-12` is another family than `L-12_H-768_A-12`. A name that is nothing but a
    hash of 32 digits, as in the official test files, is a family of its own.
    """
    text = name.lower()
    if _HASHED.fullmatch(text):
        return text
    text = _FINGERPRINT.sub("", text)
    return re.sub(r"[^a-z0-9]+", "", _VARIANT.sub("", text)) or text


def make_folds(families: Mapping[str, str], folds: int) -> dict[str, int]:
    """Deals graphs into folds, families together, with about as many graphs in each; the same on every call.

    Args:
        families: the family of each graph.
        folds: how many.

    Raises:
        ConfigError: fewer families than folds.
    """
    from sklearn.model_selection import GroupKFold

    names = sorted(families)
    if (count := len(set(families.values()))) < folds:
        raise ConfigError(
            f"data.local.folds={folds}: expected at most {count}, as the {len(names)} labelled graphs are of {count} "
            "model families, which stay together; or set data.local.split_file=null to keep the splits of the tree"
        )
    held_out = (rows for _, rows in GroupKFold(n_splits=folds).split(names, groups=[families[n] for n in names]))
    return {names[row]: fold for fold, rows in enumerate(held_out) for row in rows}


def split_graphs(
    collection: Collection, families: Mapping[str, str], split_file: Path, folds: int, fold: int
) -> dict[str, Split]:
    """The split of each graph: one fold is valid, the next one test, the others train.

    The folds stand in a JSON file that can be committed and edited. It names them by graph, by model family, or both:
    `{"folds": 5, "collections": {"layout:own:default": {"<graph>": 0, ...}}, "families": {"<family>": 0, ...}}`.
    Families hold for every collection that does not stand under `collections`. Without them, such a collection is
    dealt into folds and added to the file.

    Args:
        collection: the address under which the file holds the folds of graphs.
        families: the family of each graph with labels.
        split_file: the file, read if it exists.
        folds: number of folds, at least 3.
        fold: the fold used as valid, 0..folds-1.

    Raises:
        ConfigError: there are fewer families than folds.
        DataError: the file does not fit `folds`, the graphs or their families.
    """
    document = _read_split_file(split_file, folds)
    collections, address = document.setdefault("collections", {}), str(collection)
    fold_of: Mapping[str, int]
    if address not in collections and "families" in document:
        fold_of = _folds_of_families(document["families"], families, address, folds, split_file)
    else:
        if address not in collections:
            collections[address] = make_folds(families, folds)
            write_json(split_file, document)
            _log.info("%s: dealt %s into %d folds; commit this file to keep them", split_file, address, folds)
        fold_of = _folds_of_graphs(collections[address], families, address, folds, split_file)
    splits: dict[int, Split] = {fold: "valid", (fold + 1) % folds: "test"}
    return {name: splits.get(fold_of[name], "train") for name in families}


def _read_split_file(split_file: Path, folds: int) -> dict[str, Any]:
    document = read_json(split_file) if split_file.exists() else {"folds": folds}
    named = document.keys() - {"folds"}
    if "folds" not in document or not named <= {"collections", "families"}:
        expected = "folds (a number), and collections or families (objects)"
        raise DataError("keys", expected, sorted(document), file=split_file)
    if document["folds"] != folds:
        expected = f"{folds} (set data.local.folds to what the file says, or delete the file to split anew)"
        raise DataError("folds", expected, document["folds"], file=split_file)
    for key in sorted(named):
        if not isinstance(document[key], dict):
            raise DataError(key, "an object", document[key], file=split_file)
    return document


def _check_folds(key: str, fold_of: Mapping[str, Any], folds: int, split_file: Path) -> None:
    if wrong := [name for name, fold in fold_of.items() if type(fold) is not int or not 0 <= fold < folds]:
        raise DataError(key, f"folds in 0..{folds - 1}", f"{fold_of[wrong[0]]} for {wrong[0]}", file=split_file)


def _folds_of_families(
    fold_of: Mapping[str, Any], graphs: Mapping[str, str], address: str, folds: int, split_file: Path
) -> dict[str, int]:
    """The fold of each graph, from that of its family; the file may hold families that the collection lacks."""
    _check_folds("families", fold_of, folds, split_file)
    if missing := sorted(set(graphs.values()) - fold_of.keys()):
        expected = f"a fold for each model family of {address} (add it to the file)"
        raise DataError("families", expected, f"none for {', '.join(missing)}", file=split_file)
    return {name: fold_of[family] for name, family in graphs.items()}


def _folds_of_graphs(
    fold_of: Any, graphs: Mapping[str, str], address: str, folds: int, split_file: Path
) -> Mapping[str, int]:
    """The fold of each graph; the file must hold these graphs and no others."""
    if not isinstance(fold_of, dict):
        raise DataError(address, "an object of graph: fold", fold_of, file=split_file)
    _check_folds(address, fold_of, folds, split_file)
    missing, unknown = sorted(set(graphs) - fold_of.keys()), sorted(fold_of.keys() - set(graphs))
    if missing or unknown:
        expected = "each labelled graph of data.local.root once (edit the file, or remove this entry to split anew)"
        parts = (("missing", missing), ("unknown", unknown))
        found = "; ".join(f"{word} graphs: {', '.join(names)}" for word, names in parts if names)
        raise DataError(address, expected, found, file=split_file)
    return fold_of

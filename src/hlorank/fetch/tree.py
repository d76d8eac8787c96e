"""Folder of one collection that every origin writes: `<output>/<split>/<graph>.npz`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hlorank.data.collection import SPLITS


def remove_stale(output: Path, keep: Collection[Path]) -> None:
    """Remove graphs of an earlier fetch, and files that a kill left half-written, from a collection's folder.

    Only npz, json and partial files directly in the split folders are removed, so that other files survive a wrong
    `output`.

    Args:
        output: the collection's folder.
        keep: the files in it to keep.
    """
    for split in SPLITS:
        for path in (output / split).glob("*"):
            if path.suffix in {".npz", ".json", ".partial"} and path not in keep:
                path.unlink()

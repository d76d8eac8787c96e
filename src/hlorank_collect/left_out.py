"""Programs that `hlorank collect` could not measure, with reasons, in one file next to the collections' folders."""

from __future__ import annotations

from pathlib import Path

from hlorank.data.collection import Collection
from hlorank.files import DataError, one_line, read_json, write_json

LEFT_OUT = "left_out.json"


def read_left_out(root: Path) -> dict[str, dict[str, str]]:
    """Return the reasons by collection, written with `:`, and program.

    Args:
        root: the folder of `hlorank collect`; without the file, nothing was left out.

    Raises:
        DataError: the file is damaged.
    """
    path = root / LEFT_OUT
    if not path.is_file():
        return {}
    collections = read_json(path)
    for collection, reasons in collections.items():
        if not (isinstance(reasons, dict) and all(isinstance(why, str) for why in reasons.values())):
            raise DataError(collection, "reasons by program", reasons, file=path)
    return collections


def record_left_out(root: Path, collection: Collection, program: str, reason: str | None) -> None:
    """Record why a program could not be measured; None removes the reason of one that is measured.

    Args:
        root: the folder of `hlorank collect`.
        collection: the collection.
        program: name of the program.
        reason: the reason, stored as one line.

    Raises:
        DataError: the file is damaged.
        OSError: the file cannot be written.
    """
    before = read_left_out(root)
    reasons = {name: why for name, why in before.get(str(collection), {}).items() if name != program}
    if reason is not None:
        reasons[program] = one_line(reason)
    after = {name: others for name, others in {**before, str(collection): reasons}.items() if others}
    if after != before:
        write_json(root / LEFT_OUT, after)

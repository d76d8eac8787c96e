"""Files of a folder, to compare folders."""

from pathlib import Path


def contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder, hidden ones included, by its path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}

"""Origin of the runtimes of a collection: measured or estimated, on which backend, and by which compiler."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from hlorank.config import Section, parse
from hlorank.data.collection import TPU_SOURCES, Collection, sidecar_path
from hlorank.files import DataError, read_json

MANIFEST = "manifest.json"
"""In a collection's folder, written by fetch."""


class Manifest(Section):
    """Facts that all graphs of a collection share; lists have more than one entry where graphs differ."""

    backend: str
    """cpu, gpu, or the generation of a TPU, such as tpu-v3."""
    runtimes: Literal["measured", "estimated"]
    devices: list[str]
    """Names of processors; for estimates, those that the compiler compiled for."""
    compilers: list[str]
    """Libraries with the compiler and their versions, such as jaxlib 0.10.2."""

    def __str__(self) -> str:
        how = "measured on" if self.runtimes == "measured" else "estimated by the compiler for"
        compilers = f" ({', '.join(self.compilers)})" if self.compilers else ""
        return f"{how} {self.backend}, {', '.join(self.devices)}{compilers}"


def manifest_of(collection: Collection, graphs: Iterable[Path]) -> Manifest | None:
    """Return the manifest of graphs by the JSON files next to them; None where it is not known.

    Raises:
        DataError: a file is of another backend than others or than the collection's address says, or is measured where
            others are estimated.
    """
    if collection.source in TPU_SOURCES:
        return Manifest(backend="tpu-v3", runtimes="measured", devices=["TPU v3"], compilers=[])
    known: tuple[str, str] | None = None
    devices, compilers = dict[str, None](), dict[str, None]()
    for path in filter(Path.is_file, map(sidecar_path, graphs)):
        about: dict[str, Any] = read_json(path)
        if "collection" not in about or "versions" not in about:
            continue
        backend = Collection.parse(about["collection"]).source
        found = (backend, about.get("runtimes", "measured"))
        known = known or (collection.backend or backend, found[1])
        if found != known:
            raise DataError(
                "collection, runtimes", f"{' '.join(known)}, as of the other graphs", " ".join(found), file=path
            )
        devices[about.get("cpu" if backend == "cpu" else "device") or backend] = None
        library = "libtpu" if "libtpu" in about["versions"] else "jaxlib"
        compilers[f"{library} {about['versions'].get(library, 'of an unknown version')}"] = None
    if known is None:
        return None
    return parse(
        Manifest, {"backend": known[0], "runtimes": known[1], "devices": [*devices], "compilers": [*compilers]}
    )


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a collection's folder; None where there is none."""
    path = folder / MANIFEST
    return parse(Manifest, read_json(path)) if path.is_file() else None

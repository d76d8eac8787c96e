"""Origin `tpugraphs`: the official archives, from a server, from a folder, or already unpacked.

The official server publishes neither sizes nor checksums, so both are recorded at the first download
(`archives.json` next to the archives) and checked from then on, for mirrors and folders as well.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock
from pydantic import Field

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError, Section, Split, parse, read_section
from hlorank.data.collection import SPLITS, Collection
from hlorank.data.graph import check_name
from hlorank.data.npz import NpzFile
from hlorank.fetch.download import Digest, download, extract, require_space
from hlorank.files import (
    DataError,
    atomic_folder,
    atomic_path,
    read_json,
    redact_credentials,
    resolve_path,
    sha256_file,
    write_json,
)

logger = logging.getLogger(__name__)

COLLECTIONS = (
    "layout:xla:default",
    "layout:xla:random",
    "layout:nlp:default",
    "layout:nlp:random",
    "tile:xla",
)
LICENSE = "LICENSE"
MANIFEST = "MANIFEST.json"
"""File in the collection's folder with the files of each complete split, and the digest of their archive."""
_TREES = ("npz", "npz_all/npz", "npz_all", ".")


class TpuGraphsConfig(Section):
    """Settings of the origin `tpugraphs`."""

    base_url: str
    """http(s) address of the archives, or a folder that holds archives or the unpacked (Kaggle) tree."""
    splits: list[Split] = Field(min_length=1)
    """Splits to fetch; others are removed."""
    downloads: str
    """Folder of archives and partial downloads; outside what DVC deletes."""
    keep_archives: bool
    """Keep the archives after they are unpacked."""
    retries: int = Field(ge=0)
    """Consecutive failures without a byte gained after which a download stops."""
    timeout_seconds: float = Field(gt=0)
    """Time limit for a connection, and for each piece of the response."""


class _Digests(Section, extra="allow"):
    """Digest of each file at its first download, by file name."""

    __pydantic_extra__: dict[str, Digest]


class _Checksums:
    """JSON file of `_Digests`, by which a mirror must have the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> dict[str, Digest]:
        """Return the recorded digests; a damaged file is refused with DataError."""
        if not self.path.exists():
            return {}
        remedy = "the size in bytes and the SHA-256 of each file; to record them again, remove the file"
        return read_section(_Digests, self.path, remedy).__pydantic_extra__

    def record(self, name: str, digest: Digest) -> None:
        """Record the digest of a file."""
        entries = self.entries() | {name: digest}
        write_json(self.path, {name: digest.model_dump() for name, digest in entries.items()})

    def verify(self, file: Path) -> Digest:
        """Return the digest of a file; one that differs from the recorded digest is refused with DataError."""
        recorded, digest = self.entries().get(file.name), Digest.of(file)
        if recorded not in (None, digest):
            remedy = f"it is damaged, or its source has changed: to accept it, remove its entry in {self.path}"
            raise DataError("content", f"{recorded}", f"{digest}; {remedy}", file=file)
        return digest


class _Content(Section):
    """A complete split: its files' SHA-256 by name, and that of the archive they came from, if any."""

    archive: str | None
    files: dict[str, str]


class _Splits:
    """Folder of a collection, in which each split is either complete and in the manifest, or absent from it.

    The files are checked against the manifest, as DVC and other origins write this folder too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = folder / MANIFEST

    def _entries(self) -> dict[str, Any]:
        try:
            return read_json(self._manifest)
        except DataError:
            return {}

    def intact(self, split: str) -> _Content | None:
        """Return the split's content if its files are exactly those of the manifest, else None."""
        try:
            content = parse(_Content, self._entries().get(split))
        except ConfigError:
            return None
        folder, files = self.folder / split, content.files
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        intact = names == files.keys() and all(sha256_file(folder / name) == files[name] for name in sorted(names))
        return content if intact else None

    def discard(self, split: str) -> None:
        """Remove a split, first from the manifest, with what a kill left of it."""
        self._forget(split)
        for folder in (self.folder / split, *self.folder.glob(f".{split}.*")):
            shutil.rmtree(folder, ignore_errors=True)

    def _forget(self, split: str) -> None:
        entries = self._entries()
        if entries.pop(split, None) is not None:
            write_json(self._manifest, entries)

    def replace(
        self, split: str, source: Path, size: int, write: Callable[[Path], object], archive: str | None = None
    ) -> None:
        """Replace a split by the files of `size` bytes that `write` puts into an empty folder, after a check of each.

        After a kill at any point the manifest lists no files of two versions.
        """
        require_space([(self.folder, size)])
        with atomic_folder(self.folder / split) as staged:
            write(staged)
            content = _Content(archive=archive, files=_checked(staged, source))
            self._forget(split)
        write_json(self._manifest, {**self._entries(), split: content.model_dump()})


def _checked(folder: Path, source: Path) -> dict[str, str]:
    """Return the SHA-256 of each npz file by name, after a check of its name and of the checksums in the file."""

    def checked(path: Path) -> str:
        try:
            check_name(path.stem)
            with NpzFile(path) as file:
                file.check()
        except DataError as error:
            raise DataError(f"{path.name}: {error.key}", error.expected, error.found, file=source) from None
        return sha256_file(path)

    paths = sorted(folder.iterdir())
    hashes = map_graphs(checked, paths, SERIAL, f"check {source.name}")
    return {path.name: digest for path, digest in zip(paths, hashes, strict=True)}


@dataclass(frozen=True)
class _Fetch:
    """One call of `fetch`, its arguments checked."""

    collection: Collection
    config: TpuGraphsConfig
    downloads: Path
    checksums: _Checksums
    splits: _Splits

    def archive_name(self, split: str) -> str:
        return f"npz_{'_'.join(self.collection.parts)}_{split}.tar"

    def from_server(self) -> None:
        # The small file is first: a wrong address then fails before gigabytes are downloaded.
        if not (self.splits.folder / LICENSE).is_file():
            path = self._download(LICENSE)
            self.checksums.record(LICENSE, self.checksums.verify(path))
            self._copy_license(path)
        for split in self.config.splits:
            name = self.archive_name(split)
            kept = self.downloads / name
            if not self._is_done(split):
                self._download(name)
                try:
                    self._unpack(kept, split)
                except OSError:  # no space, for example
                    raise
                except Exception:
                    kept.unlink()
                    logger.warning("%s: removed; the next run downloads it again", kept)
                    raise
            if not self.config.keep_archives:
                kept.unlink(missing_ok=True)

    def from_folder(self, folder: Path) -> None:
        if (folder / LICENSE).is_file():
            self._copy_license(folder / LICENSE)
        else:
            logger.warning("%s: no %s there; the dataset's licence is at the official address", folder, LICENSE)
        for split in self.config.splits:
            archive = folder / self.archive_name(split)
            if archive.is_file():
                self._unpack(archive, split)
            else:
                self._copy(folder, split)

    def _is_done(self, split: str) -> bool:
        content, recorded = self.splits.intact(split), self.checksums.entries().get(self.archive_name(split))
        if content is None or content.archive is None:
            return False
        return recorded is None or recorded.sha256 == content.archive

    def _download(self, name: str) -> Path:
        """Return the downloaded file; a kept file that differs from its recorded digest is downloaded again."""
        path, recorded = self.downloads / name, self.checksums.entries().get(name)
        if path.exists() and recorded is not None and (found := Digest.of(path)) != recorded:
            logger.warning("%s: %s, but %s in %s; downloading again", path, found, recorded, self.checksums.path)
            path.unlink()
        url = f"{self.config.base_url.rstrip('/')}/{name}"
        unpack_to = self.splits.folder if name != LICENSE else None
        download(url, path, retries=self.config.retries, timeout=self.config.timeout_seconds, unpack_to=unpack_to)
        return path

    def _copy_license(self, source: Path) -> None:
        with atomic_path(self.splits.folder / LICENSE) as temporary:
            shutil.copyfile(source, temporary)

    def _unpack(self, archive: Path, split: str) -> None:
        digest, content = self.checksums.verify(archive), self.splits.intact(split)
        if content is None or content.archive != digest.sha256:
            inside = (*self.collection.parts, split)

            def wanted(path: PurePosixPath) -> bool:
                return path.suffix == ".npz" and path.parent.parts[-len(inside) :] == inside

            self.splits.replace(
                split, archive, digest.size, lambda folder: extract(archive, folder, wanted), digest.sha256
            )
        self.checksums.record(archive.name, digest)  # only of an archive that is intact

    def _copy(self, folder: Path, split: str) -> None:
        places = [folder / tree / self.collection.path / split for tree in _TREES]
        source = next((place for place in places if place.is_dir()), None)
        if source is None:
            folders = ", ".join(str(place.relative_to(folder)) for place in places)
            expected = f"{self.archive_name(split)} or one of the folders {folders}"
            remedy = "none of them; complete the folder, or leave the split out of data.tpugraphs.splits"
            raise DataError(f"split {split} of {self.collection}", expected, remedy, file=folder)
        paths, content = sorted(source.glob("*.npz")), self.splits.intact(split)
        if not paths:
            raise DataError("folder", "npz files", "none", file=source)
        if content is None or content.files != {path.name: sha256_file(path) for path in paths}:

            def copy(staged: Path) -> None:
                for path in paths:  # copies, not links: the raw data must not change when its source does
                    shutil.copyfile(path, staged / path.name)

            self.splits.replace(split, source, sum(path.stat().st_size for path in paths), copy)


def fetch(collection: Collection, config: TpuGraphsConfig, output: Path) -> None:
    """Write splits of an official collection to `output/<split>/<graph>.npz`, with the dataset's LICENSE.

    A second call verifies the files and fetches nothing; a call after a kill at any point ends in the same files.
    Splits that are not configured are removed. Calls that share `config.downloads` wait for each other.
    """
    if str(collection) not in COLLECTIONS:
        raise ConfigError(f"collection={collection}: expected one of {', '.join(COLLECTIONS)} with data=tpugraphs")
    downloads, output = resolve_path(config.downloads).resolve(), output.resolve()
    is_url = re.match(r"https?://", config.base_url) is not None
    shown, folder = redact_credentials(config.base_url), resolve_path(config.base_url).resolve()
    if not is_url and not folder.is_dir():
        raise ConfigError(f"data.tpugraphs.base_url={shown}: expected an http(s) address or a folder")
    if output in [folder / tree / collection.path for tree in _TREES]:
        raise ConfigError(f"data.tpugraphs.base_url={shown}: expected a folder other than the output {output}")
    downloads.mkdir(parents=True, exist_ok=True)
    with FileLock(downloads / ".lock"):
        for leftover in (*downloads.glob(".*.partial"), *output.glob(".*.partial")):  # of writes that were killed
            if leftover.is_file():
                leftover.unlink()
        job = _Fetch(collection, config, downloads, _Checksums(downloads / "archives.json"), _Splits(output))
        for split in set(SPLITS) - set(config.splits):
            job.splits.discard(split)
        if is_url:
            job.from_server()
        else:
            job.from_folder(folder)

"""Origin `tpugraphs`: the official archives, from a server, from a folder, or already unpacked.

The official server publishes neither sizes nor checksums, so both are recorded at the first download
(`archives.json` next to the archives) and checked from then on, for mirrors and folders as well.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock
from pydantic import Field
from rich.console import Console
from rich.progress import track

from hlorank.config import ConfigError, Section, Split, parse
from hlorank.data.collection import SPLITS, Collection
from hlorank.data.graph import check_name
from hlorank.data.npz import NpzFile
from hlorank.fetch.download import Digest, download, extract, require_space
from hlorank.files import (
    DataError,
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


class _Checksums:
    """JSON file with the digest of each file at its first download, by file name: a mirror must have the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Digest | None:
        """Return the recorded digest, None for a file never recorded; a damaged entry is refused with DataError."""
        entry = read_json(self.path).get(name) if self.path.exists() else None
        if entry is None:
            return None
        try:
            return parse(Digest, entry)
        except ConfigError as error:
            raise DataError(name, "a size in bytes and a SHA-256", error, file=self.path) from None

    def __setitem__(self, name: str, digest: Digest) -> None:
        entries = read_json(self.path) if self.path.exists() else {}
        write_json(self.path, {**entries, name: digest.model_dump()})

    def verify(self, file: Path) -> Digest:
        """Return the digest of a file; one that differs from the recorded digest is refused with DataError."""
        recorded, digest = self[file.name], Digest.of(file)
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
        """Remove a split, first from the manifest."""
        entries = self._entries()
        if entries.pop(split, None) is not None:
            write_json(self._manifest, entries)
        shutil.rmtree(self.folder / split, ignore_errors=True)

    def replace(self, split: str, fill: Callable[[Path], _Content]) -> None:
        """Replace a split by what `fill` writes into an empty folder, and returns.

        The folder is on the same file system, outside of what DVC hashes. After a kill at any point the manifest lists
        no files of two versions.
        """
        staged = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        try:
            content = fill(staged)
            self.discard(split)
            self.folder.mkdir(parents=True, exist_ok=True)
            staged.rename(self.folder / split)
            write_json(self._manifest, {**self._entries(), split: content.model_dump()})
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _checked(folder: Path, source: Path) -> dict[str, str]:
    """Return the SHA-256 of each npz file by name, after a check of its name and of the checksums in the file."""
    hashes = {}
    silent = not sys.stderr.isatty()
    for path in track(sorted(folder.iterdir()), f"check {source.name}", console=Console(stderr=True), disable=silent):
        try:
            check_name(path.stem)
            with NpzFile(path) as file:
                file.check()
        except DataError as error:
            raise DataError(f"{path.name}: {error.key}", error.expected, error.found, file=source) from None
        hashes[path.name] = sha256_file(path)
    return hashes


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
            self.checksums[LICENSE] = self.checksums.verify(path)
            self._copy_license(path)
        for split in self.config.splits:
            name = self.archive_name(split)
            kept = self.downloads / name
            if not (self.config.keep_archives and kept.exists()) and self._is_done(split):
                kept.unlink(missing_ok=True)
                continue
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
                kept.unlink()

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
                self._copy(self._tree(folder, split), split)

    def _is_done(self, split: str) -> bool:
        content = self.splits.intact(split)
        if content is None or content.archive is None:
            return False
        recorded = self.checksums[self.archive_name(split)]
        return recorded is None or recorded.sha256 == content.archive

    def _download(self, name: str) -> Path:
        """Return the downloaded file; a kept file that differs from its recorded digest is downloaded again."""
        path, recorded = self.downloads / name, self.checksums[name]
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
        digest = self.checksums.verify(archive)
        content = self.splits.intact(split)
        if content is not None and content.archive == digest.sha256:
            self.checksums[archive.name] = digest
            return
        require_space([(self.splits.folder, digest.size)])
        inside = (*self.collection.parts, split)

        def fill(folder: Path) -> _Content:
            extract(archive, folder, lambda path: path.suffix == ".npz" and path.parent.parts[-len(inside) :] == inside)
            files = _checked(folder, archive)
            self.checksums[archive.name] = digest  # only of an archive that is intact
            return _Content(archive=digest.sha256, files=files)

        self.splits.replace(split, fill)

    def _tree(self, folder: Path, split: str) -> Path:
        places = [PurePosixPath(tree) / self.collection.path / split for tree in _TREES]
        if (found := next((folder / place for place in places if (folder / place).is_dir()), None)) is not None:
            return found
        expected = f"{self.archive_name(split)} or one of the folders {', '.join(map(str, places))}"
        remedy = "none of them; complete the folder, or leave the split out of data.tpugraphs.splits"
        raise DataError(f"split {split} of {self.collection}", expected, remedy, file=folder)

    def _copy(self, source: Path, split: str) -> None:
        paths = sorted(source.glob("*.npz"))
        if not paths:
            raise DataError("folder", "npz files", "none", file=source)
        content = self.splits.intact(split)
        if content is not None and content.files == {path.name: sha256_file(path) for path in paths}:
            return
        require_space([(self.splits.folder, sum(path.stat().st_size for path in paths))])

        def fill(folder: Path) -> _Content:
            for path in paths:  # copies, not links: the raw data must not change when its source does
                shutil.copyfile(path, folder / path.name)
            return _Content(archive=None, files=_checked(folder, source))

        self.splits.replace(split, fill)


def fetch(collection: Collection, config: TpuGraphsConfig, output: Path) -> None:
    """Write splits of an official collection to `output/<split>/<graph>.npz`, with the dataset's LICENSE.

    A second call verifies the files and fetches nothing; a call after a kill at any point ends in the same files.
    Splits that are not configured are removed. Calls that share `config.downloads` wait for each other.

    Raises:
        ConfigError: the collection is not an official one, or the address is neither http(s) nor a folder other than
            `output`.
        DownloadError: the server refuses, or the retries are used up.
        DataError: an archive or a file is damaged or unsafe, is missing in a folder, or differs from the first one.
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
        for written in (downloads, output):
            for leftover in written.glob(".*.partial"):  # left by atomic writes that were killed
                leftover.unlink()
        job = _Fetch(collection, config, downloads, _Checksums(downloads / "archives.json"), _Splits(output))
        for split in set(SPLITS) - set(config.splits):
            job.splits.discard(split)
        if is_url:
            job.from_server()
        else:
            job.from_folder(folder)

"""Origin `tpugraphs`: the official archives, from a server, from a folder, or already unpacked.

The official server publishes neither sizes nor checksums, so both are recorded at the first download
(`archives.json` next to the archives) and checked from then on, for mirrors and folders as well.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from hlorank.fetch.archive import extract
from hlorank.fetch.download import Digest, Ledger, download, require_space
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


class _Content(Section):
    """A complete split: its files' SHA-256 by name, and that of the archive they came from, if any."""

    archive: str | None
    files: dict[str, str]


class _Unpacked:
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
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        intact = found == files.keys() and all(sha256_file(folder / name) == files[name] for name in sorted(found))
        return content if intact else None

    def discard(self, split: str) -> None:
        """Remove a split, first from the manifest."""
        entries = self._entries()
        if entries.pop(split, None) is not None:
            write_json(self._manifest, entries)
        shutil.rmtree(self.folder / split, ignore_errors=True)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield an empty folder on the same file system, outside of what DVC hashes, and remove it afterwards."""
        folder = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, split: str, staged: Path, content: _Content) -> None:
        """Replace a split by a staged folder; after a kill at any point the manifest lists no files of two versions."""
        self.discard(split)
        self.folder.mkdir(parents=True, exist_ok=True)
        staged.rename(self.folder / split)
        write_json(self._manifest, {**self._entries(), split: content.model_dump()})


def _check_files(folder: Path, source: Path) -> dict[str, str]:
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
    ledger: Ledger
    unpacked: _Unpacked

    def archive_name(self, split: str) -> str:
        return f"npz_{'_'.join(self.collection.parts)}_{split}.tar"

    def from_server(self) -> None:
        # The small file is first: a wrong address then fails before gigabytes are downloaded.
        if not (self.unpacked.folder / LICENSE).is_file():
            path = self._download(LICENSE)
            self.ledger[LICENSE] = self.ledger.verify(path)
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
        content = self.unpacked.intact(split)
        if content is None or content.archive is None:
            return False
        recorded = self.ledger[self.archive_name(split)]
        return recorded is None or recorded.sha256 == content.archive

    def _download(self, name: str) -> Path:
        """Return the downloaded file, verified against the ledger; a kept file that fails is downloaded again."""
        path = self.downloads / name
        recorded = self.ledger[name]
        if path.exists() and recorded is not None and (found := Digest.of(path)) != recorded:
            logger.warning("%s: %s, but %s recorded in %s; downloading again", path, found, recorded, self.ledger.path)
            path.unlink()
        url = f"{self.config.base_url.rstrip('/')}/{name}"
        unpack_to = self.unpacked.folder if name != LICENSE else None
        download(url, path, retries=self.config.retries, timeout=self.config.timeout_seconds, unpack_to=unpack_to)
        return path

    def _copy_license(self, source: Path) -> None:
        with atomic_path(self.unpacked.folder / LICENSE) as temporary:
            shutil.copyfile(source, temporary)

    def _unpack(self, archive: Path, split: str) -> None:
        digest = self.ledger.verify(archive)
        content = self.unpacked.intact(split)
        if content is not None and content.archive == digest.sha256:
            self.ledger[archive.name] = digest
            return
        require_space([(self.unpacked.folder, digest.size)])
        inside = (*self.collection.parts, split)
        with self.unpacked.staging() as staged:
            extract(archive, staged, lambda path: path.suffix == ".npz" and path.parent.parts[-len(inside) :] == inside)
            files = _check_files(staged, archive)
            self.ledger[archive.name] = digest  # only of an archive that is intact
            self.unpacked.publish(split, staged, _Content(archive=digest.sha256, files=files))

    def _tree(self, folder: Path, split: str) -> Path:
        for tree in _TREES:
            found = folder / tree / self.collection.path / split
            if found.is_dir():
                return found
        places = ", ".join(str(PurePosixPath(tree) / self.collection.path / split) for tree in _TREES)
        raise DataError(
            f"split {split} of {self.collection}",
            f"{self.archive_name(split)} or one of the folders {places}",
            "none of them; complete the folder, or leave the split out of data.tpugraphs.splits",
            file=folder,
        )

    def _copy(self, source: Path, split: str) -> None:
        paths = sorted(source.glob("*.npz"))
        if not paths:
            raise DataError("folder", "npz files", "none", file=source)
        content = self.unpacked.intact(split)
        if content is not None and content.files == {path.name: sha256_file(path) for path in paths}:
            return
        require_space([(self.unpacked.folder, sum(path.stat().st_size for path in paths))])
        # Copies, not links: the raw data must not change when its source does.
        with self.unpacked.staging() as staged:
            for path in paths:
                shutil.copyfile(path, staged / path.name)
            self.unpacked.publish(split, staged, _Content(archive=None, files=_check_files(staged, source)))


def fetch(collection: Collection, config: TpuGraphsConfig, output: Path) -> None:
    """Write splits of an official collection to `output/<split>/<graph>.npz`, with the dataset's LICENSE.

    A second call verifies the files and fetches nothing; a call after a kill at any point ends in the same files.
    Splits that are not configured are removed. Calls that share `downloads` wait for each other.

    Args:
        collection: one of COLLECTIONS.
        config: address, splits and settings of the download; its folder `downloads` also has the ledger
            `archives.json`.
        output: the collection's folder, such as data/raw/layout/xla/default.

    Raises:
        ConfigError: the collection is not an official one, or the address is neither http(s) nor a folder other than
            `output`.
        DownloadError: the server responds with an error status that is not retried (such as 404), or the retries are
            used up.
        DataError: an archive or a file is damaged or unsafe, is missing in a folder, or differs from the ledger.
        OSError: (ENOSPC) there is too little disk space.
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
        job = _Fetch(collection, config, downloads, Ledger(downloads / "archives.json"), _Unpacked(output))
        for split in set(SPLITS) - set(config.splits):
            job.unpacked.discard(split)
        if is_url:
            job.from_server()
        else:
            job.from_folder(folder)

"""Origin `tpugraphs`: the official archives, from a server, from a folder, or already unpacked.

The official server publishes neither sizes nor checksums, so both are recorded at the first download
(`archives.json` next to the archives) and checked from then on, for mirrors and folders as well.
"""

import errno
import logging
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.filesize import decimal

from hlorank import files
from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError, Section, Split, parse, read_section
from hlorank.data.collection import SPLITS, Collection
from hlorank.data.configurations import order_fingerprint
from hlorank.data.graph import check_name
from hlorank.data.npz import NpzFile
from hlorank.fetch.download import Digest, announced_bytes, download, extract, require_space

logger = logging.getLogger(__name__)

BASE_URL = "https://download.tensorflow.org/data/tpu_graphs/v0/"  # as in conf/data/tpugraphs.yaml
COLLECTIONS = ("layout:xla:default", "layout:xla:random", "layout:nlp:default", "layout:nlp:random", "tile:xla")
LICENSE = "LICENSE"
MANIFEST = "MANIFEST.json"  # in the collection's folder: the content of each complete split
DIGESTS = "archives.json"  # in the folder of downloads: the digest of each file at its first download
_NOT_WRITABLE = {errno.EACCES, errno.ENOENT, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
_TREES = ("npz", "npz_all/npz", "npz_all", ".")
# Releases of the dataset hold equal files but for the order of configurations. Orders of some graphs of a release:
# unet3d and unet_3d.4x4.bf16 of layout:xla:default, cd708819... and 23559853... of test.
_RELEASES = {"2023-08": {"b8100a8fb1ad4db7", "87fe84d304a2fc76", "4e816044e548731a", "9250e1baa9e0900c"}}


class TpuGraphsConfig(Section):
    """Settings of the origin `tpugraphs`."""

    base_url: str = Field(exclude=True)
    """http(s) address of the archives, or a folder that holds archives or the unpacked (Kaggle) tree."""
    splits: list[Split] = Field(min_length=1)
    """Splits to fetch; others are removed."""
    downloads: str = Field(exclude=True)
    """Folder of archives and partial downloads; outside what DVC deletes."""
    keep_archives: bool = Field(exclude=True)
    """Keep the archives after they are unpacked."""
    retries: int = Field(ge=0, exclude=True)
    """Consecutive failures without a byte gained after which a download stops."""
    timeout_seconds: float = Field(gt=0, exclude=True)
    """Time limit for a connection, and for each piece of the response."""


class _Digests(Section, extra="allow"):
    """Digest of each file at its first download, by file name; a mirror must have the same bytes."""

    __pydantic_extra__: dict[str, Digest]


class _Content(Section):
    """A complete split: SHA-256 of its archive, if any, and of its files; number and order of their configurations."""

    archive: str | None
    files: dict[str, str]
    configurations: dict[str, tuple[int, str]] = Field(default_factory=dict)
    release: str | None = None  # of the dataset, where one of the graphs is known


def _entries(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path)
    except files.DataError:
        return {}


def _record(path: Path, name: str, entry: Section | None) -> None:
    """Set an entry of a JSON file by its name, or remove it (None)."""
    known = _entries(path)
    entries = {key: value for key, value in known.items() if key != name}
    if entry is not None:
        entries[name] = entry.model_dump()
    if entries != known:
        files.write_json(path, entries)


def _content(folder: Path, source: Path, archive: str | None) -> _Content:
    """Return the content of a split's folder, after a check of the names of files and of the checksums in them."""

    def checked(path: Path) -> tuple[str, tuple[int, str]]:
        try:
            check_name(path.stem)
            with NpzFile(path) as file:
                key = "node_config_feat" if "node_config_feat" in file.keys else "config_feat"
                file.check(file.keys - {key})
                order = order_fingerprint(file.chunks(key))
                return files.sha256_file(path), (file.header(key)[0][0], order)
        except files.DataError as error:
            raise files.DataError(f"{path.name}: {error.key}", error.expected, error.found, file=source) from None

    paths = sorted(folder.iterdir())
    content = _Content(archive=archive, files={})
    for path, (digest, found) in zip(paths, map_graphs(checked, paths, SERIAL, f"check {source.name}"), strict=True):
        content.files[path.name], content.configurations[path.name] = digest, found
    orders = {order for _, order in content.configurations.values()}
    release = next((name for name, known in _RELEASES.items() if known & orders), None)
    return content.model_copy(update={"release": release})


@dataclass(frozen=True)
class _Fetch:
    """One call of `fetch`: each split in `output` is complete and in the manifest, which checks files, or absent."""

    collection: Collection
    config: TpuGraphsConfig
    downloads: Path
    output: Path

    def from_server(self) -> None:
        # The small file is first: a wrong address then fails before gigabytes are downloaded.
        if not (self.output / LICENSE).is_file():
            path = self._download(LICENSE)
            _record(self.downloads / DIGESTS, LICENSE, self._verified(path))
            self._copy_license(path)
        for split in self.config.splits:
            kept = self.downloads / self._archive_name(split)
            content, recorded = self._intact(split), self._digests().get(kept.name)
            archive = None if content is None else content.archive
            if archive is None or (recorded is not None and recorded.sha256 != archive):
                self._download(kept.name)
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
            archive = folder / self._archive_name(split)
            if archive.is_file():
                self._unpack(archive, split)
            else:
                self._copy(folder, split)

    def discard(self, split: str) -> None:
        """Remove a split, first from the manifest, with what a kill left of it."""
        _record(self.output / MANIFEST, split, None)
        for folder in (self.output / split, *self.output.glob(f".{split}.*")):
            shutil.rmtree(folder, ignore_errors=True)

    def _archive_name(self, split: str) -> str:
        return f"npz_{'_'.join(self.collection.parts)}_{split}.tar"

    def _digests(self) -> dict[str, Digest]:
        """Return the recorded digests; a damaged file is refused with DataError."""
        path = self.downloads / DIGESTS
        if not path.exists():
            return {}
        remedy = "the size in bytes and the SHA-256 of each file; to record them again, remove the file"
        return read_section(_Digests, path, remedy).__pydantic_extra__

    def _verified(self, file: Path) -> Digest:
        """Return the digest of a file; one that differs from the recorded digest is refused with DataError."""
        recorded, digest = self._digests().get(file.name), Digest.of(file)
        if recorded not in (None, digest):
            place = self.downloads / DIGESTS
            remedy = f"it is damaged, or its source has changed: to accept it, remove its entry in {place}"
            raise files.DataError("content", f"{recorded}", f"{digest}; {remedy}", file=file)
        return digest

    def _intact(self, split: str, *, names_only: bool = False) -> _Content | None:
        """Return the split's content if its files are exactly the files of the manifest, else None."""
        try:
            content = parse(_Content, _entries(self.output / MANIFEST).get(split))
        except ConfigError:
            return None
        paths = [*(self.output / split).glob("*")]
        same = {path.name for path in paths} == content.files.keys()
        read = [] if names_only else paths
        return content if same and all(files.sha256_file(path) == content.files[path.name] for path in read) else None

    def _replace(self, split: str, source: Path, size: int, archive: str | None, write: Callable[[Path], None]) -> None:
        """Replace a split by checked files of `size` bytes that `write` puts into a folder; a kill mixes nothing."""
        require_space([(self.output, size)])
        with files.atomic_folder(self.output / split) as staged:
            write(staged)
            content = _content(staged, source, archive)
            _record(self.output / MANIFEST, split, None)
        _record(self.output / MANIFEST, split, content)

    def _download(self, name: str) -> Path:
        """Return the downloaded file; a kept file that differs from its recorded digest is downloaded again."""
        path, recorded = self.downloads / name, self._digests().get(name)
        if path.exists() and recorded is not None and (found := Digest.of(path)) != recorded:
            place = self.downloads / DIGESTS
            logger.warning("%s: %s, but %s in %s; downloading again", path, found, recorded, place)
            path.unlink()
        url = f"{self.config.base_url.rstrip('/')}/{name}"
        unpack_to = self.output if name != LICENSE else None
        download(url, path, retries=self.config.retries, timeout=self.config.timeout_seconds, unpack_to=unpack_to)
        return path

    def _copy_license(self, source: Path) -> None:
        with files.atomic_path(self.output / LICENSE) as temporary:
            shutil.copyfile(source, temporary)

    def _unpack(self, archive: Path, split: str) -> None:
        digest, content = self._verified(archive), self._intact(split)
        if content is None or content.archive != digest.sha256:
            pattern = f"{self.collection.path.as_posix()}/{split}/?*.npz"
            write = partial(extract, archive, pattern=pattern)
            self._replace(split, archive, digest.size, digest.sha256, write)
        _record(self.downloads / DIGESTS, archive.name, digest)  # only of an archive that is intact

    def _copy(self, folder: Path, split: str) -> None:
        places = [folder / tree / self.collection.path / split for tree in _TREES]
        source = next((place for place in places if place.is_dir()), None)
        if source is None:
            folders = ", ".join(str(place.relative_to(folder)) for place in places)
            expected = f"{self._archive_name(split)} or one of the folders {folders}"
            remedy = "none of them; complete the folder, or leave the split out of data.tpugraphs.splits"
            raise files.DataError(f"split {split} of {self.collection}", expected, remedy, file=folder)
        paths, content = sorted(source.glob("*.npz")), self._intact(split)
        if not paths:
            raise files.DataError("folder", "npz files", "none", file=source)

        def copy(staged: Path) -> None:
            for path in paths:  # copies, not links: the raw data must not change when its source does
                shutil.copyfile(path, staged / path.name)

        if content is None or content.files != {path.name: files.sha256_file(path) for path in paths}:
            self._replace(split, source, sum(path.stat().st_size for path in paths), None, copy)


def fetch(collection: Collection, config: TpuGraphsConfig, output: Path) -> None:
    """Write splits of an official collection to `output/<split>/<graph>.npz`, with the dataset's LICENSE.

    A second call verifies the files and fetches nothing; a call after a kill at any point ends in the same files.
    Splits that are not configured are removed. Calls that share `config.downloads` wait for each other.
    """
    if str(collection) not in COLLECTIONS:
        raise ConfigError(f"collection={collection}: expected one of {', '.join(COLLECTIONS)} with data=tpugraphs")
    downloads, output = files.resolve_path(config.downloads).resolve(), output.resolve()
    is_url = re.match(r"https?://", config.base_url) is not None
    shown, folder = files.redact_credentials(config.base_url), files.resolve_path(config.base_url).resolve()
    if not is_url and not folder.is_dir():
        raise ConfigError(f"data.tpugraphs.base_url={shown}: expected an http(s) address or a folder")
    if output in [folder / tree / collection.path for tree in _TREES]:
        raise ConfigError(f"data.tpugraphs.base_url={shown}: expected a folder other than the output {output}")
    with files.one_process(downloads / ".lock", f"a fetch into {downloads}"):
        for leftover in (*downloads.glob(".*.partial"), *output.glob(".*.partial")):  # of writes that were killed
            if leftover.is_file():
                leftover.unlink()
        job = _Fetch(collection, config, downloads, output)
        for split in set(SPLITS) - set(config.splits):
            job.discard(split)
        if is_url:
            job.from_server()
        else:
            job.from_folder(folder)


def fetch_cached(collection: Collection, cache: Path) -> Path:
    """Return a folder of downloads with an official collection; a complete folder is neither locked nor written."""
    downloads, settings = cache / "downloads" / collection.model_name, {"base_url": BASE_URL, "keep_archives": False}
    settings |= {"splits": [*SPLITS], "downloads": str(downloads), "retries": 8, "timeout_seconds": 60}
    job = _Fetch(collection, parse(TpuGraphsConfig, settings), downloads, cache / collection.path)

    def missing() -> list[Split]:
        return [split for split in SPLITS if job._intact(split, names_only=True) is None]

    try:
        if not missing():
            return cache
        with files.one_process(downloads / "lock", f"the download of {collection} to {cache}"):
            if splits := missing():  # also by a process that had the lock
                size = announced_bytes([f"{BASE_URL.rstrip('/')}/{job._archive_name(split)}" for split in splits], 10)
                shown = "of an unknown size" if size is None else f"{decimal(size)} of archives"
                sys.stderr.write(f"hlorank: downloading {collection} ({', '.join(splits)}), {shown}, to {cache}\n")
                fetch(collection, job.config, job.output)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        remedy = "set HLORANK_CACHE or cache= to a folder that can be, or root= to one that has the collection"
        raise ConfigError(f"cache={cache}: cannot be written ({error.strerror}); {remedy}") from None
    return cache

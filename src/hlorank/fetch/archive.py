"""Safe extraction of downloaded tar archives."""

from __future__ import annotations

import errno
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from hlorank.data.graph import check_name
from hlorank.files import DataError, atomic_path

MAX_MEMBERS = 100_000


def _refuse_unsafe(member: tarfile.TarInfo) -> None:
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise DataError(member.name, "a regular file or a folder", "a link, a device or another special member")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(member.name, "a relative path inside the archive", "an absolute one, or one with ..")


def extract(archive: Path, target: Path, wanted: Callable[[PurePosixPath], bool]) -> None:
    """Extract the wanted files of an uncompressed tar archive, each in one step, directly into a folder.

    Only the bytes and the file name of a member are used: no folders, modes, owners or dates. The archive is refused if
    any member is unsafe, wanted or not. A damaged header in the middle, which tarfile takes for the end, is an error.

    Args:
        archive: the tar file.
        target: the folder to write into; created if missing.
        wanted: chooses files by their path in the archive.

    Raises:
        DataError: `archive` is not a tar file, is truncated or damaged, has no wanted files or one twice, or a member
            is a link, a device, sparse, or outside the archive's root; or it has more than MAX_MEMBERS members, or a
            name that no graph can have.
    """
    target.mkdir(parents=True, exist_ok=True)
    names: set[str] = set()
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number == MAX_MEMBERS:
                    raise DataError("members", f"at most {MAX_MEMBERS:,}", "more")
                _refuse_unsafe(member)
                path = PurePosixPath(member.name)
                if not member.isreg() or not wanted(path):
                    continue
                check_name(path.stem)
                if path.name in names:
                    raise DataError(member.name, "each file once", "a second file of that name")
                names.add(path.name)
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                with content, atomic_path(target / path.name) as temporary, temporary.open("wb") as output:
                    shutil.copyfileobj(content, output)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataError(
                    "archive", f"the end mark at byte {tar.offset}", "something else (damaged or truncated)"
                )
    except DataError as error:
        raise error.in_file(archive) from None
    except Exception as error:  # tarfile raises nearly every type on damaged headers
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a seek out of range
            raise
        raise DataError("archive", "a complete, uncompressed tar file", error, file=archive) from None
    if not names:
        raise DataError("members", "the wanted files", "none of them", file=archive)

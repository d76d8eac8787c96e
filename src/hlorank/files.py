"""Atomic files, locks, names of shared files, fingerprints, texts of errors, and the folder of shared data."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from numpy.typing import NDArray

log = logging.getLogger(__name__)

SHARED_VARIABLE = "HLORANK_SHARED"

# Files that one package writes and others read.
SPEC, METRICS, SCORES = "spec.json", "metrics.json", "scores.json"
"""Specification of a folder of features, segments or a model, written last, so that a folder with it is complete; and
figures of a stage's output, which DVC shows."""
WEIGHTS, HISTORY, RUN = "weights.safetensors", "history.csv", "run.json"
"""Of a training: the weights, the learning curve with a row for each epoch, and the MLflow run."""
LOCKS = "locks"
"""Folder of locks in `paths.state`."""

MAX_MESSAGE = 500
"""Characters of the message of an error."""
MAX_NAME = 120  # bytes of a graph's name, to which files add suffixes; a file system takes 255

# An http address has no / in its user and password; the password in that of a database may have any character.
_USER = re.compile(r"(?<=http://|ttps://)[^/?#\s]*@|(?<!http://|ttps://)(?<=://)[^/:@\s]*(?::\S*)?@", re.IGNORECASE)
_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_SECRET = re.compile(
    r"(?<=[?&;])([\w.-]*(?:token|passw|pwd|secret|key|credential|auth|sig|session)[\w.-]*=)[^&;#\s'\"]+", re.IGNORECASE
)


def redact_credentials(text: str) -> str:
    """Return a text in which `***` replaces the secrets of all addresses: user and password, tokens, signatures."""
    return _SECRET.sub(r"\1***", _USER.sub("***@", text))


def escape(text: str) -> str:
    r"""Return text with escapes for the characters that cannot be printed, such as `\n`, `\x1b`, `\udcff`."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 graph`, `2,000 graphs`; the plural of the noun ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short_name(text: str) -> str:
    """Return a text as a name of at most MAX_NAME bytes: the end of a longer text becomes its fingerprint."""
    data = os.fsencode(text)
    short = data[: MAX_NAME - 9].decode(errors="ignore")
    return text if len(data) <= MAX_NAME else f"{short}-{hashlib.sha256(data).hexdigest()[:8]}"


def file_name(text: str) -> str:
    """Return a text as a name of a file: letters, digits, dot, minus and underscore, as many as `short_name` has."""
    return short_name(re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-"))


def one_line(message: object) -> str:
    r"""Return a message as one line of at most MAX_MESSAGE characters, whatever a damaged file or a name puts in it.

    Credentials are redacted, characters that cannot be printed are escaped, and the middle of a longer message is left
    out.
    """
    line = escape(redact_credentials(str(message)[: 20 * MAX_MESSAGE]))
    tail = MAX_MESSAGE // 3
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - tail - 5]} ... {line[-tail:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class DataError(ValueError):
    """Data that breaks its contract; the message, one line, has the file, the key, the expected and the found value."""

    def __init__(self, key: str, expected: str, found: object, *, file: Path | str | None = None) -> None:
        # With these arguments instead of the message, the error can be pickled between worker processes.
        super().__init__(key, expected, found)
        self.key, self.expected, self.found, self.file = key, expected, found, file

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.file is not None else self.key
        return one_line(f"{place}: expected {self.expected}, found {self.found}")

    def in_file(self, file: Path | str) -> DataError:
        """Return the same error with the file in which it was found."""
        return type(self)(self.key, self.expected, self.found, file=file)


def shared_dir() -> Path:
    """Return the folder of shared data: the variable HLORANK_SHARED, else `../shared`."""
    return Path(os.environ.get(SHARED_VARIABLE) or "../shared")


def bundled(name: str) -> Path:
    """Return a folder that comes with the package: conf, or sample, the bundled collections."""
    return Path(__file__).parent / "bundled" / name


def temporary_folder() -> Path:
    """Return a new folder, which is deleted when the process ends."""
    folder = tempfile.mkdtemp(prefix="hlorank-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def resolve_path(path: str | Path) -> Path:
    """Return a path of the configuration, of which a leading `$HLORANK_SHARED` or `~` stands for a folder here.

    Outside of a clone `data/sample`, the default data, is that of the package.
    """
    first, *others = Path(path).parts or ("",)
    if (first, *others[:1]) == ("data", "sample") and not Path(first, "sample").exists():
        return bundled("sample").joinpath(*others[1:])
    return shared_dir().joinpath(*others) if first == f"${SHARED_VARIABLE}" else Path(path).expanduser()


def main_folder() -> Path:
    """Return the current folder; in a git worktree, or in a copy of `dvc exp run`, that of the main checkout."""
    here = Path(str(Path.cwd()).partition("/.dvc/tmp/exps/")[0])
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    if (link := top / ".git").is_file():
        own = top / link.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        if (own / "commondir").is_file():  # a submodule has none
            git = (own / (own / "commondir").read_text(encoding="utf-8").strip()).resolve()
            return git.parent / here.relative_to(top) if git.name == ".git" else here
    return here


def in_main(place: str) -> str:
    """Return the address of a relative folder or sqlite database, which is to outlive copies, in `main_folder`."""
    scheme, _, path = place.rpartition(":///")
    kept = not path or path.startswith("/") or ":" in path or scheme.partition("+")[0] not in {"", "sqlite"}
    if kept or (main := main_folder()) == Path.cwd():
        return place
    return f"{scheme}:///{quote(str(main))}/{path}" if scheme else str(main / path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name `path` in errors of the operating system that name no file, or a temporary one for it."""
    try:
        yield
    except OSError as error:
        if type(error) is OSError and error.errno is None:  # as NumPy raises it
            raise OSError(errno.ENOSPC, f"incomplete ({error}); is the disk full?", str(path)) from error
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        # Only parts of names are compared: names in errors may be absolute for a relative `path`.
        temporary = any(part.startswith(f".{path.name}.") for name in names for part in Path(name).parts)
        if error.errno is not None and (temporary or not names):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that replaces it when the block succeeds, and is removed otherwise.

    The parent folder is created. A reader never sees a half-written file, also after a kill. Errors of writing name
    `path`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path` that replaces it when the block succeeds, and is removed otherwise.

    A kill leaves the old folder, the new one or none, and perhaps hidden folders that the next call removes.
    """
    temporary, old = (path.with_name(f".{path.name}.{suffix}") for suffix in ("partial", "old"))
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    with _named(path):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            if path.exists():
                path.rename(old)
            temporary.rename(path)
        finally:
            for leftover in (temporary, old):
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def one_process(lock: Path, work: str) -> Iterator[bool]:
    """Wait while another process holds a lock, and keep others waiting meanwhile; a kill releases the lock.

    Yields True if another process held the lock. `work` names what is done, for the message of a process that waits.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    file, waited = FileLock(lock), False
    try:
        held = file.acquire(timeout=0)
    except Timeout:
        log.warning("another process runs %s: waiting for it", work)
        held, waited = file.acquire(), True
    with held:
        yield waited


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` on a binary file that becomes `path` in one step."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        write(file)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step."""
    write_atomic(path, lambda file: file.write(text.encode()))


def csv_cell(value: object) -> object:
    """Return a value as a cell of a CSV file: `'` comes before a text that is a formula to a spreadsheet, unlike -1."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    return value if _NUMBER.fullmatch(value) else f"'{value}"


def write_json(path: Path, value: object) -> None:
    """Write JSON with sorted keys in one step; NaN is refused, as other JSON readers refuse it."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file, or other content, is a DataError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("file", "a JSON file", "no such file", file=path) from None
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise DataError("file", "valid JSON", error, file=path) from None
    if not isinstance(value, dict):
        raise DataError("file", "a JSON object", type(value).__name__, file=path)
    return cast("dict[str, Any]", value)


def recorded_run(model: Path) -> dict[str, str]:
    """Return the texts of run.json in a model folder: the MLflow run, and the experiment.

    It is empty where DVC has brought another model or only the model, as run.json is not an output that DVC keeps.
    """
    run = read_json(model / RUN) if (model / RUN).is_file() else {}
    return {key: value for key, value in run.items() if isinstance(value, str)} if is_of_model(run, model) else {}


def is_of_model(record: Mapping[str, Any], model: Path) -> bool:
    """Return False for a record of another model than that of a folder; a record of an older version names none."""
    spec = read_json(model / SPEC) if (model / SPEC).is_file() else {}
    return "model" not in record or record["model"] == spec.get("spec_sha256")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one .npy file in one step; object arrays are refused."""
    write_atomic(path, lambda file: np.save(file, array, allow_pickle=False))


def map_array(path: Path) -> NDArray[Any]:
    """Map one .npy file into memory, read-only; object arrays and other files are refused with DataError."""
    try:
        return npy.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DataError("file", "a .npy file", "no such file", file=path) from None
    except (ValueError, OverflowError, OSError) as error:
        raise DataError("file", "a .npy file", error, file=path) from None


def open_file(path: Path, expected: str) -> BinaryIO:
    """Open a regular file for reading; another path, also a pipe, which would wait, is a DataError."""
    try:
        if path.is_file():
            return path.open("rb")
        found = "a folder" if path.is_dir() else "a pipe or a device" if path.exists() else "no such file"
    except OSError as error:  # no permission, for example, or too long a name
        found = str(error.strerror)
    raise DataError("file", expected, found, file=path)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: object) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest(*names: str) -> str:
    """Return a digest of the source code of modules and packages of these dotted names, with all modules in them.

    A result that is kept between runs has it in its key, so that a change of the code computes the result again.
    """
    digest = hashlib.sha256()
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None, f"{name} has no source file"
        origin = Path(spec.origin)
        for path in sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]:
            digest.update(f"{name}/{path.relative_to(origin.parent).as_posix()}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters with dotted names, as MLflow shows them in columns."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix + key
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat

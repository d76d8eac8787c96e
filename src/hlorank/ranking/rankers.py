"""Rankers that come with the package, and which of them fits a program: by its configurations and its backend."""

from collections.abc import Iterable
from pathlib import Path

from hlorank.config import ConfigError, Section, parse
from hlorank.data.collection import Collection, Kind, sidecar_path
from hlorank.data.npz import NpzFile
from hlorank.files import DataError, bundled, read_json
from hlorank.hlo.reader import read_records
from hlorank.hlo.stage import dumped_by

CARD = "card.json"
_TRAIN = "--model names one of yours; `hlorank init` starts a project that trains it"


class Card(Section):
    """Facts about a ranker of the package, next to its model."""

    name: str
    """Name of its folder, such as layout.cpu."""
    kind: Kind
    """Kind of the configurations that it ranks."""
    backend: str
    """Hardware whose programs it ranks: cpu or tpu."""
    collections: list[str]
    """Collections that it was trained on."""
    method: str
    """Baseline, or experiment."""
    tau: dict[str, float]
    """Kendall tau by collection, mean of the folds of families that were left out once each."""
    test_tau: float
    """Kendall tau of this very model on the split test, of families that it was not trained on."""
    not_for: str
    """Programs that it should not rank."""
    code: str
    """Digest of the code of features, which must be the installed one's."""
    version: str
    """Version of hlorank that trained it."""

    def __str__(self) -> str:
        about = f"{self.method} of {', '.join(self.collections)}; tau {self.test_tau:.2f} on new families"
        return f"{self.name} ({about}; not for {self.not_for})"


def cards() -> dict[Path, Card]:
    """Return the card of each ranker of the package, by its folder."""
    return {path.parent: parse(Card, read_json(path)) for path in sorted(bundled("rankers").glob(f"*/{CARD}"))}


def fitting_ranker(programs: Iterable[Path]) -> tuple[Path, Card]:
    """Return the only ranker of the package that fits all programs, at least one, and its card; else ConfigError."""
    needs, unreadable = dict[tuple[Kind, str | None], Path](), []
    for path in programs:
        try:
            needs.setdefault(_need(path), path)
        except DataError as error:
            unreadable.append(error)
    if not needs:
        raise unreadable[0]
    wanted = " and ".join(
        f"{kind}s of {backend or 'an unknown backend'} ({path.name})"
        for (kind, backend), path in sorted(needs.items(), key=str)
    )
    known = cards()
    fits = {
        folder: card
        for folder, card in known.items()
        if all(card.kind == kind and backend in (card.backend, None) for kind, backend in needs)
    }
    if len(fits) == 1:
        return next(iter(fits.items()))
    if fits:
        raise ConfigError(f"model: several rankers fit {wanted}; give one: --model {' or '.join(map(str, fits))}")
    found = ", ".join(card.name for card in known.values()) or "none"
    raise ConfigError(f"model: no ranker of hlorank fits {wanted}, there is {found}; {_TRAIN}")


def _need(path: Path) -> tuple[Kind, str | None]:
    """Return the kind of configurations of a program, and its backend, None where nothing says it."""
    if path.suffix != ".npz":
        record = next(read_records(path))
        recorded = None if record.kind is None else "tpu"  # tuning records are those of TpuGraphs
        return record.kind or "layout", dumped_by(path, record.module) or recorded
    with NpzFile(path) as file:
        kind: Kind = "tile" if "config_feat" in file.keys else "layout"
    measured = read_json(sidecar_path(path)) if sidecar_path(path).is_file() else {}
    backend = Collection.parse(measured["collection"]).backend if "collection" in measured else ""
    return kind, backend.partition("-")[0] or None

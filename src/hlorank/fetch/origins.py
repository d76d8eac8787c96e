"""ORIGINS, the extension point: origins of collections, by the names that `data.origin` uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError, DataConfig, ExtensionPoint, Section, find, parse
from hlorank.data.collection import MADE_FROM, Collection, made_from
from hlorank.data.manifest import MANIFEST, manifest_of
from hlorank.fetch import hlo, local, synthetic, tpugraphs
from hlorank.files import write_json


@dataclass(frozen=True)
class Origin:
    """Origin of collections: its settings, and the function that fetches from it.

    Attributes:
        settings: the section that `data.<name>` holds; fields with `exclude=True` change no graph.
        fetch: writes a collection with these settings into a folder, as `<split>/<graph>.npz` of the official tree. A
            second call ends in the same files, also after a kill of the first one.
    """

    settings: type[Section]
    fetch: Callable[[Collection, Any, Path], None]


ORIGINS: ExtensionPoint[Origin] = ExtensionPoint(
    {
        "tpugraphs": Origin(tpugraphs.TpuGraphsConfig, tpugraphs.fetch),
        "local": Origin(local.LocalConfig, local.fetch),
        "hlo": Origin(hlo.HloConfig, hlo.fetch),
        "synthetic": Origin(synthetic.SyntheticConfig, synthetic.fetch),
    },
    "a hlorank.fetch.origins.Origin",
    lambda _, found: found if isinstance(found, Origin) else None,
)


def fetch(collection: Collection, data: DataConfig, output: Path) -> None:
    """Write a collection into a folder, from the configured origin.

    Args:
        collection: its address.
        data: name and settings of the origin.
        output: the collection's folder, such as data/raw/layout/xla/default.

    Raises:
        ConfigError: ORIGINS has no `data.origin`, the settings of the origin are wrong, the origin does not have
            `collection`, or `output` has graphs of another origin.
        DataError: the origin's data break their contract.
    """
    origin = find(ORIGINS, "data.origin", data.origin)
    settings = parse(origin.settings, data.settings, prefix=f"data.{data.origin}")
    made = {"origin": data.origin, data.origin: settings.model_dump(mode="json")}
    if (earlier := made_from(output)) and (_place(earlier) != _place(made)) and any(output.glob("*/*.npz")):
        raise ConfigError(
            f"collection={collection}: {output} has graphs of {_place(earlier)}, which those of {_place(made)} would "
            "replace, and models trained on them, too; give your graphs a source of their own, such as "
            f"collection={Path(collection.kind, 'own', *collection.parts[2:])}, or remove the folder"
        )
    origin.fetch(collection, settings, output)
    (output / MANIFEST).unlink(missing_ok=True)
    if manifest := manifest_of(collection, sorted(output.glob("*/*.npz"))):
        write_json(output / MANIFEST, manifest.model_dump(mode="json"))
    write_json(output / MADE_FROM, made)


def _place(data: Mapping[str, Any]) -> str:
    """Return the origin in a section `data`, with the folder or the address that it reads."""
    settings = data[data["origin"]]
    root = settings.get("root", settings.get("base_url", ""))
    return f"{data['origin']} {root}".strip()

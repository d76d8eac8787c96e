"""Export of a ranked layout configuration: as HLO with layout constraints, and as JSON."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError, write_atomic, write_json, write_text
from hlorank.hlo.forms import hlo_text
from hlorank.hlo.layout_json import apply, to_configuration
from hlorank.hlo.xla_process import INSTALL, has_jaxlib
from hlorank.ranking.inputs import InputGraph
from hlorank.version import __version__

_log = logging.getLogger(__name__)


def export(folder: Path, given: InputGraph, row: dict[str, Any], model: str, collection: str) -> list[Path]:
    """Write a configuration of a graph to `<folder>/<graph>.json`, `.hlo.pb` and, with jaxlib, `.hlo.txt`.

    Args:
        folder: folder of the files; created if it is missing.
        given: the graph, with its module.
        row: the configuration, one of `top` in a ranking.
        model: the model, as the user named it.
        collection: address of the collection that it was trained on.

    Returns:
        The files written.

    Raises:
        DataError: candidates were not drawn for the graph, as its file holds configurations.
    """
    configurations = given.measured.configurations
    if given.module is None or not given.drawn or not isinstance(configurations, LayoutConfigurations):
        raise DataError(
            "--export", "a program, for which candidates are drawn", "measured configurations", file=given.file
        )
    (layouts,) = configurations.values(slice(row["configuration"], row["configuration"] + 1))
    about = {
        "hlorank": __version__,
        "model": model,
        "collection": collection,
        "rank": row["rank"],
        "score": row["score"],
    }
    configuration = to_configuration(given.module, layouts, about)
    module = apply(given.module, configuration).SerializeToString()
    json, protobuf, text = (folder / f"{given.measured.name}{suffix}" for suffix in (".json", ".hlo.pb", ".hlo.txt"))
    write_json(json, configuration.model_dump(mode="json"))
    write_atomic(protobuf, lambda file: file.write(module))
    if not has_jaxlib():
        _log.warning("%s: not written: HLO text needs jaxlib: %s", text, INSTALL)
        return [json, protobuf]
    write_text(text, hlo_text(module))
    return [json, protobuf, text]

"""Plugin of Hydra: `experiment=` and `model=` also choose among the files of this package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class Reproductions(SearchPathPlugin):
    """The folder conf of the package, after the other places of configurations."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder, without an import of the package, which takes seconds."""
        spec = find_spec("reproductions")
        if spec is not None and spec.origin is not None:
            search_path.append("reproductions", f"file://{Path(spec.origin).parent / 'conf'}")

"""hlorank: learned cost models that rank the compiler configurations of XLA programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hlorank.serving.ranker import Ranker

__version__ = "0.1.0"


def load(model: str | Path) -> Ranker:
    """A trained model, to rank and score configurations with.

    Args:
        model: a model folder, an MLflow run id, `runs:/<run id>/model`, or `models:/<name>@<alias>`.

    Raises:
        DataError: there is no such model, or it is damaged, changed, or of another version of hlorank.
    """
    from hlorank.serving.locate import model_folder
    from hlorank.serving.ranker import Ranker

    return Ranker(model_folder(model))

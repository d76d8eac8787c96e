"""hlorank: learned cost models that rank the compiler configurations of XLA programs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hlorank import datasets as datasets
    from hlorank.evaluation.evaluator import Evaluator as Evaluator
    from hlorank.serving.ranker import Ranker

__version__ = "0.1.0"


def load(model: str | Path) -> Ranker:
    """Return a trained model, which ranks and scores configurations.

    Args:
        model: a model folder, an MLflow run id, `runs:/<run id>/model`, or `models:/<name>@<alias>`.

    Raises:
        DataError: `model` does not exist, is damaged or changed, or another version of hlorank wrote it.
    """
    from hlorank.serving.locate import model_folder
    from hlorank.serving.ranker import Ranker

    return Ranker(model_folder(model))


def __getattr__(name: str) -> Any:
    """Import public parts on their first use, so that `import hlorank` is light."""
    if name == "datasets":
        return import_module("hlorank.datasets")
    if name == "Evaluator":
        return import_module("hlorank.evaluation.evaluator").Evaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

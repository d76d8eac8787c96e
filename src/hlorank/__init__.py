"""hlorank: learned cost models that rank the compiler configurations of XLA programs."""

from __future__ import annotations

import os
import sys

# For `python -m hlorank...` without -P: files of the working folder would be imported in place of libraries.
if sys.argv[:1] == ["-m"] and "-m hlorank" in " ".join(sys.orig_argv):  # as long as Python looks for the module
    os.environ["PYTHONSAFEPATH"] = "1"  # of the processes that this one starts
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - without another import
        del sys.path[0]

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hlorank import datasets as datasets
    from hlorank.evaluation.evaluator import Evaluator as Evaluator
    from hlorank.hlo.layout_json import apply_configuration as apply_configuration
    from hlorank.ranking.ranked import Ranking
    from hlorank.ranking.ranker import Ranker

from hlorank.version import __version__ as __version__

# Threads of OpenMP wait without taking the cores of other work; the libraries, PyTorch first, read it when loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_PARTS = {"Evaluator": "hlorank.evaluation.evaluator", "apply_configuration": "hlorank.hlo.layout_json"}
"""Public name -> its module."""


def load(model: str | Path) -> Ranker:
    """Return a trained model, which ranks and scores configurations.

    Args:
        model: a model folder, an MLflow run id, `runs:/<run id>/model`, or `models:/<name>@<alias>`.

    Raises:
        ConfigError: PyTorch is not installed, which the extra `rank` installs.
        DataError: `model` does not exist, is damaged or changed, or another version of hlorank wrote it.
    """
    from hlorank.config.extras import named_extra
    from hlorank.runs.find import model_folder

    with named_extra("hlorank.load"):
        from hlorank.ranking.ranker import Ranker

        return Ranker(model_folder(model))


def rank(
    program: Any, model: str | Path | None = None, *, top: int = 10, candidates: int = 256, seed: int = 0
) -> Ranking:
    """Rank the configurations of a program from fastest to slowest; nothing is run.

    Args:
        program: an npz file; or a program, for which candidates are drawn: a path, HLO text, StableHLO, bytes, or what
            `jax.jit(function).lower(...)` returns.
        model: as of `load`; by default the ranker of the package that fits the program, which the result names.
        top: configurations in the table of the result.
        candidates: layout configurations that are drawn; the first one is the compiler's default.
        seed: seed of the candidates.

    Raises:
        ConfigError: no ranker of the package fits, or several do, or the extra `rank` is not installed.
        DataError: the program or the model cannot be read, or the program has nothing to configure.
    """
    from hlorank.config.extras import named_extra

    with named_extra("hlorank.rank"):
        from hlorank.hlo.program_file import program_file
        from hlorank.ranking.ranked import rank_program
        from hlorank.ranking.ranker import Ranker
        from hlorank.ranking.rankers import fitting_ranker
        from hlorank.runs.find import model_folder

        with program_file(program) as path:
            if model is not None:
                return rank_program(path, Ranker(model_folder(model)), str(model), top, candidates, seed)
            folder, card = fitting_ranker([path])
            return rank_program(path, Ranker(folder), card.name, top, candidates, seed)


def __getattr__(name: str) -> Any:
    """Import public parts on their first use, so that `import hlorank` is light."""
    if name == "datasets":
        return import_module("hlorank.datasets")
    if (module := _PARTS.get(name)) is not None:
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

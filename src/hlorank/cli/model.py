"""The model of a command that scores configurations: its options, and its ranker."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hlorank.files import SPEC, read_json
from hlorank.terminal import add_number

if TYPE_CHECKING:
    from hlorank.ranking.ranker import Ranker

_log = logging.getLogger(__name__)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that scores configurations."""
    help_of_model = "a model folder, an MLflow run id, or models:/<name>@champion"
    parser.add_argument("--model", required=True, metavar="MODEL", help=help_of_model)
    add_number(parser, "--memory", 256, "limit of the memory of activations while scoring", metavar="MIB")
    parser.add_argument(
        "--accelerator",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device; auto is CUDA where PyTorch finds it (default: %(default)s)",
    )


def collection_of(folder: Path) -> str:
    """Return the address of the collection that a model was trained on."""
    return str(read_json(folder / SPEC).get("collection", ""))


def open_ranker(model: str, memory_mib: int, accelerator: str) -> Ranker:
    """Return the ranker of a reference of `model_folder`, with a warning if the model was never trained."""
    from hlorank.runs.find import model_folder

    folder = model_folder(model)  # before PyTorch is imported, which takes seconds
    from hlorank.ranking.ranker import Ranker

    ranker = Ranker(folder, memory_mib * 2**20, accelerator)
    if ranker.spec.steps == 0:
        _log.warning("%s: the model was never trained; its scores are meaningless", model)
    return ranker

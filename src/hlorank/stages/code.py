"""Stage code: a digest of the code of each stage, and the versions of the libraries that it computes with.

DVC compares files, so that a comment in a module would run every stage again that depends on its package. Here a stage
depends on the statements of the modules that it imports, directly or not: comments and docstrings are left out.
"""

import sys
from importlib.metadata import version
from pathlib import Path

from hlorank.code import modules_of
from hlorank.files import write_json

STAGES = ("fetch", "featurize", "partition", "train", "evaluate")
LIBRARIES = {
    "lightning": "lightning",
    "numpy": "numpy",
    "pandas": "pandas",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "torch_geometric": "torch-geometric",
}
"""Distributions whose version may change a result, by the name of their package."""
# Records, the page, which shows other outputs, and graphs for other systems, which no stage computes with.
_OUTSIDE = ("hlorank.runs", "hlorank.evaluation.report", "hlorank.datasets")


def code_of(stage: str) -> dict[str, dict[str, str]]:
    """Return the digest of each module that a stage imports, and the version of each of `LIBRARIES`, by name."""
    modules, imported = modules_of(f"hlorank.stages.{stage}", _OUTSIDE)
    libraries = {LIBRARIES[package]: version(LIBRARIES[package]) for package in imported if package in LIBRARIES}
    return {"modules": modules, "libraries": dict(sorted(libraries.items()))}


def main() -> None:
    """Write the files <stage>.json into the folder that the command names."""
    for stage in STAGES:
        write_json(Path(sys.argv[1]) / f"{stage}.json", code_of(stage))


if __name__ == "__main__":
    main()

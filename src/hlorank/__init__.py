"""hlorank: learned cost models that rank the compiler configurations of XLA programs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hlorank import datasets as datasets
    from hlorank.evaluation.evaluator import Evaluator as Evaluator
    from hlorank.ranking.ranker import Ranker

from hlorank.version import __version__ as __version__


def load(model: str | Path) -> Ranker:
    """Return a trained model, which ranks and scores configurations.

    Args:
        model: a model folder, an MLflow run id, `runs:/<run id>/model`, or `models:/<name>@<alias>`.

    Raises:
        DataError: `model` does not exist, is damaged or changed, or another version of hlorank wrote it.
    """
    from hlorank.ranking.ranker import Ranker
    from hlorank.runs.find import model_folder

    return Ranker(model_folder(model))


def apply_configuration(program: str | Path | bytes, configuration: str | Path | Mapping[str, Any]) -> bytes:
    """Return the module of a program with the layouts of a configuration as constraints, which XLA obeys.

    A module that is not the ranked one is compiled first, as `hlorank rank` does for the module before any pass.

    Args:
        program: the file of a program in any form that hlorank reads, or a serialized HloModuleProto or HloProto.
        configuration: the JSON file that `hlorank rank --export` wrote, or its content.

    Returns:
        A serialized HloModuleProto.

    Raises:
        DataError: the configuration is that of another module; or a file cannot be read, or holds several modules.
        ConfigError: `configuration` is a mapping with wrong keys.
    """
    from contextlib import suppress
    from io import BytesIO

    from hlorank.config.section import parse, read_section
    from hlorank.files import DataError
    from hlorank.hlo.compile import before_layout_assignment, needs_compilation
    from hlorank.hlo.configuration_file import EXPECTED, ModuleConfiguration, apply, module_fingerprint
    from hlorank.hlo.reader import parse_records, read_records

    if isinstance(configuration, Mapping):
        chosen = parse(ModuleConfiguration, configuration)
    else:
        chosen = read_section(ModuleConfiguration, Path(configuration), EXPECTED)
    if isinstance(program, bytes):
        records = [*parse_records(BytesIO(program), Path("program"))]
    else:
        if ":" in str(program) and not Path(program).exists():
            expected = "a file or a serialized module; for a JAX function, hlorank rank --export wrote <graph>.hlo.pb"
            raise DataError("program", f"{expected}, with the layouts", f"{str(program)!r}, no such file")
        records = [*read_records(Path(program))]
    if len(records) != 1:
        raise DataError("program", "one module", f"{len(records):,}")
    path, module = records[0].path, records[0].module
    if module_fingerprint(module) != chosen.fingerprint and needs_compilation(path, module, chosen.collection):
        with suppress(DataError):  # `apply` says in what another module differs
            module = before_layout_assignment(module)
    return apply(module, chosen).SerializeToString()


def __getattr__(name: str) -> Any:
    """Import public parts on their first use, so that `import hlorank` is light."""
    if name == "datasets":
        return import_module("hlorank.datasets")
    if name == "Evaluator":
        return import_module("hlorank.evaluation.evaluator").Evaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

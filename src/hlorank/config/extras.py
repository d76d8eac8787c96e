"""Extras of hlorank, and the packages that each installs: where one is missing, the error names the extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from hlorank.config.section import ConfigError

EXTRAS = {
    "rank": "joblib pymetis safetensors torch torch_geometric",
    "pipeline": "altair dvc hydra jinja2 lightning mlflow omegaconf sklearn sqlalchemy threadpoolctl uvicorn "
    "vl_convert",
    "collect": "jax jaxlib psutil",
    "ray": "ray",
    "sweep": "optuna",
}
"""Packages by extra, by their names in Python; psutil is of the pipeline, too, as the packages of rank need it."""


@contextmanager
def named_extra(work: str) -> Iterator[None]:
    """Raise a ConfigError that names the extra where the block, which does some work, lacks a package of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = next((extra for extra, packages in EXTRAS.items() if error.name in packages.split()), None)
        if extra is None:
            raise
        raise ConfigError(f"{work} needs {error.name}: pip install 'hlorank[{extra}]'") from None

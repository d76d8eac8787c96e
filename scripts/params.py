"""Writer of params.yaml: the composition of conf/ with everything resolved, as `dvc exp run` writes it."""

from pathlib import Path

from dvc.utils.hydra import compose_and_dump


def write_params(output: Path, conf: Path = Path("conf")) -> None:
    """Write the composition of conf/pipeline.yaml, resolved."""
    compose_and_dump(output, str(conf.resolve()), None, "pipeline", str(conf.resolve().parent), [])


if __name__ == "__main__":
    write_params(Path("params.yaml"))

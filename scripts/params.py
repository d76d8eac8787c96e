"""Writer of params.yaml: the composition of conf/ with everything resolved, as `dvc exp run` writes it."""

from pathlib import Path

from dvc.utils.hydra import compose_and_dump

HEAD = (
    "# Composed from conf/ by `make params` and `dvc exp run`, which discard edits: edit conf/, or give -S KEY=VALUE.\n"
)


def write_params(output: Path, conf: Path = Path("conf")) -> None:
    """Write the composition of conf/pipeline.yaml, resolved, below a line that says so."""
    output.unlink(missing_ok=True)  # the composition warns of edits that it replaces
    compose_and_dump(output, str(conf.resolve()), None, "pipeline", str(conf.resolve().parent), [])
    output.write_text(HEAD + output.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    write_params(Path("params.yaml"))

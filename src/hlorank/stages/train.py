"""Stage train: from data/features and data/segments to a model folder and an MLflow run."""

from functools import partial
from pathlib import Path

from hlorank.config import Config
from hlorank.stages.command import stage


def train(config: Config, output: Path) -> float | None:
    """Train a network, an ensemble of them or a baseline; continue an interrupted training of the same settings.

    Args:
        config: the whole configuration.
        output: the model folder: weights.safetensors, spec.json, history.csv, run.json.

    Returns:
        The validation Kendall tau of the model, on every rank; None if no graph can be validated.

    Raises:
        ConfigError, DataError: the settings, the data or a checkpoint do not fit; nothing is written.
        ComputeError: the training diverges before any epoch was validated; nothing is written.
    """
    from hlorank.runs.training import run_training
    from hlorank.training.fit import fit
    from hlorank.training.prepare import prepare
    from hlorank.training.process_group import process_group

    with process_group(config.trainer) as ranks:
        setup = prepare(config, ranks)
        return run_training(config, setup, output, ranks, partial(fit, setup, ranks))


main = stage(
    reads=[
        *("method", "seed", "model", "segments", "loss", "trainer", "ensemble", "baseline"),
        *("evaluate.memory_bytes", "tracking", "sweep"),
    ],
    writes="models",
    lock=False,  # `run_training` takes it
)(train)

if __name__ == "__main__":
    main()

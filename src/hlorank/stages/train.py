"""Stage train: from data/features and data/segments to a model folder and an MLflow run."""

from hlorank.config import Config
from hlorank.stages.hydra_main import own_output, stage


@stage(
    *("layers", "poolings", "losses", "methods"),
    reads=[
        *("method", "seed", "model", "segments", "loss", "trainer", "ensemble", "baseline"),
        *("evaluate.memory_bytes", "tracking", "sweep"),
    ],
)
def main(config: Config) -> float | None:
    """Train `method` on `collection` and return the validation Kendall tau, the objective of sweeps."""
    from hlorank.models.baselines.baseline import BASELINES

    with own_output(config, config.paths.models, config.method) as output:
        if config.method in BASELINES:
            from hlorank.training.baselines.train_baseline import train_baseline

            return train_baseline(config, output)
        from hlorank.training.trainer import train  # imports Lightning, which takes seconds

        return train(config, output)


if __name__ == "__main__":
    main()

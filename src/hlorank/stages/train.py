"""Stage train: from data/features and data/segments to a model folder and an MLflow run."""

from hlorank.config import Config
from hlorank.stages.entry import output_folder, stage


@stage
def main(config: Config) -> float | None:
    """Trains `method` on `collection`; sweeps minimize or maximize the returned validation Kendall tau."""
    from hlorank.training.run import train

    return train(config, output_folder(config, config.paths.models, config.method))


if __name__ == "__main__":
    main()

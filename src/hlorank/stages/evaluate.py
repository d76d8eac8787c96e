"""Stage evaluate: from a model folder to metrics, tables, plots and a submission."""

from hlorank.config import Config
from hlorank.stages.entry import collection_folder, output_folder, stage


@stage
def main(config: Config) -> None:
    """Scores every configuration of `collection` with the model of `method`."""
    from hlorank.evaluation.run import evaluate

    model = collection_folder(config, config.paths.models) / config.method
    evaluate(config, model, output_folder(config, config.paths.reports, config.method))


if __name__ == "__main__":
    main()

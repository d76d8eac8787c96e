"""Stage evaluate: from a model folder to metrics, tables, plots, a submission and a report."""

from pathlib import Path

from hlorank.config import Config
from hlorank.stages.command import collection_folder, own_output, stage


@stage("methods", reads=["method", "evaluate", "compute", "trainer.threads", "trainer.accelerator", "tracking"])
def main(config: Config) -> None:
    """Score every configuration of `collection` with the model of `method`, and write a report."""
    from mlflow.tracking import MlflowClient

    from hlorank.evaluation.evaluate_model import evaluate
    from hlorank.evaluation.report.runs import read_run
    from hlorank.evaluation.report.write_report import REPORT, write_report
    from hlorank.runs.store import tracking_uri

    model = collection_folder(config, config.paths.models) / config.method
    with own_output(config, config.paths.reports, config.method) as output:
        evaluate(config, model, output)
        store = tracking_uri(config.tracking)
        run = read_run(model, output, store)
        write_report([run], output / REPORT, Path(config.paths.features), Path(config.paths.segments))
        if run.tracked is not None:
            MlflowClient(store).log_artifact(run.tracked.run_id, str(output / REPORT), "report")


if __name__ == "__main__":
    main()

"""Stage evaluate: from a model folder to metrics, tables, plots, a submission and a report."""

from pathlib import Path

from hlorank.config import Config
from hlorank.stages.command import collection_folder, stage


@stage(reads=["method", "evaluate", "compute", "trainer.threads", "trainer.accelerator", "tracking"], writes="reports")
def main(config: Config, output: Path) -> None:
    """Score every configuration of `collection` with the model of `method`, and write a report."""
    from hlorank.evaluation.evaluate import evaluate
    from hlorank.evaluation.report.trainings import read_run
    from hlorank.evaluation.report.write_report import REPORT, write_report
    from hlorank.runs.evaluation import log_evaluation
    from hlorank.runs.store import connect

    model = collection_folder(config, "models")
    connect(config.tracking)  # at once, before the scores, which may take hours
    metrics = evaluate(config, model, output)
    write_report([read_run(model, output)], output / REPORT)  # without the run, so that DVC has the same bytes again
    log_evaluation(config, model, metrics, output)


if __name__ == "__main__":
    main()

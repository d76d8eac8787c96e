"""Stage train: from data/features and data/segments to a model folder and an MLflow run."""

import os
from contextlib import nullcontext

from hlorank.config import Config
from hlorank.stages.command import TaskOfJob, output_folder, own_output, stage


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
    from hlorank.training.process_group import launched

    if config.method in BASELINES:
        return _train_baseline(config) if os.environ.get("RANK", "0") == "0" else None
    if config.trainer.devices == 1 or launched():
        return _train_network(config)
    from hlorank.training.launch import start_ranks

    output = output_folder(config, config.paths.models, config.method)
    return start_ranks(TaskOfJob(_train_network), config.model_copy(update={"output": str(output)}))


def _train_baseline(config: Config) -> float | None:
    from hlorank.training.baselines.train_baseline import train_baseline

    with own_output(config, config.paths.models, config.method) as output:
        return train_baseline(config, output)


def _train_network(config: Config) -> float | None:
    """Train alone, or as one of the ranks that a launcher has started."""
    from hlorank.training.process_group import process_group
    from hlorank.training.trainer import train  # imports Lightning, which takes seconds

    place = (config, config.paths.models, config.method)
    with process_group(config.trainer) as ranks:
        folder = own_output(*place) if ranks.first else nullcontext(output_folder(*place))
        with folder as output:
            ranks.wait()  # rank 0 may have waited for another training that writes the folder
            return train(config, output, ranks)


if __name__ == "__main__":
    main()

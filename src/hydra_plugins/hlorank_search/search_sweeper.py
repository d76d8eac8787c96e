"""Hydra sweeper `search`: random or TPE search with Optuna 5, which Hydra's own plugin does not support."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import MISSING, DictConfig, OmegaConf

# conf/hparams_search/ sets these, and SearchSettings checks them.
NODE = dict.fromkeys(("sampler", "seed", "n_trials", "n_jobs"), MISSING)
TARGET = "hydra_plugins.hlorank_search.search_sweeper.SearchSweeper"
ConfigStore.instance().store("search", {"_target_": TARGET, **NODE, "params": {}}, "hydra/sweeper", provider="hlorank")


class SearchSweeper(Sweeper):
    """Sweeper that runs a search as batches of jobs of the launcher.

    Args:
        params: search space and fixed values, as overrides, by key; overrides of the command line take precedence.
        settings: as in `hlorank.runs.search.SearchSettings`.
    """

    def __init__(self, params: Mapping[str, str], **settings: Any) -> None:
        self._params, self._settings = params, settings
        self._jobs = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Run the search; the command of the stage reports a wrong configuration."""
        from hlorank.config import ConfigError, parse
        from hlorank.runs.search import Search, SearchSettings, open_study, split
        from hlorank.runs.store import PARENT_VARIABLE
        from hlorank.runs.sweeps import load_composed

        assert self.config is not None
        assert self.hydra_context is not None
        parent = self.config.hydra.job.env_set.get(PARENT_VARIABLE)
        if parent is None:
            raise ConfigError("hydra/sweeper=search: only trainings can be searched (python -m hlorank.stages.train)")
        settings = parse(SearchSettings, self._settings, prefix="hydra.sweeper")
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        params = [f"{key}={value}" for key, value in self._params.items()]
        fixed, space = split(parser.parse_overrides([*params, *arguments]))
        study = open_study(load_composed(self.config).sweep, parent, create=True)
        Search(study, settings, fixed, space).run(self._launch)

    def _launch(self, jobs: list[list[str]]) -> list[Any]:
        assert self.launcher is not None
        self.validate_batch_is_legal(jobs)
        returned = self.launcher.launch(jobs, initial_job_idx=self._jobs)
        self._jobs += len(jobs)
        return [job.return_value for job in returned]

"""Setup and Trained: the checked input of a training, which `prepare` completes, and the result that `fit` returns."""

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hlorank.config import Config, find
from hlorank.config.extension_point import plugin_digests
from hlorank.data.collection import Collection
from hlorank.files import fingerprint
from hlorank.models.baselines.baseline import BASELINES, BaselineSpec, save_baseline
from hlorank.models.baselines.predictors import Predictor
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import ModelSpec, Spec, save_model
from hlorank.training.methods import METHODS, Method
from hlorank.training.sampling import rankable_graphs
from hlorank.training.step_plans import StepMemory
from hlorank.version import __version__

LIBRARIES = "libraries."  # of names of versions in the identity of a training


@dataclass(frozen=True)
class Member:
    """A network of a training: its seed, and the graphs of train that are held out to choose its best epoch."""

    seed: int
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Setup:
    """A training that has been checked, and can start."""

    config: Config  # whole, with the chosen method in place of auto
    method: Method | None  # None for a baseline
    graphs: GraphLoader
    spec: Spec
    train: Sequence[str]  # the graphs of train that can be trained on
    valid: Sequence[str]  # the graphs of valid that validation ranks
    members: Sequence[Member] = ()  # the networks; empty for a baseline
    memory: StepMemory | None = None  # of a step of any member; None without networks
    settings: Mapping[str, Any] = field(default_factory=dict)  # what the training reads, by section
    identity: Mapping[str, Any] = field(default_factory=dict)  # what its result depends on, data and code included

    @property
    def key(self) -> str:
        """The key by which what the training saved before is found."""
        return fingerprint(self.identity)

    @property
    def libraries(self) -> dict[str, str]:
        """The versions of libraries that the result depends on."""
        return {name: value for name, value in self.identity.items() if name.startswith(LIBRARIES)}


def open_setup(config: Config) -> Setup:
    """Open the graphs of a training, whole or cut into segments, and describe the model that is trained on them."""
    collection = Collection.parse(config.collection)
    method = None if config.method in BASELINES else find(METHODS, "method", config.method)
    whole = method is None or method.whole_graph or collection.kind == "tile"
    segments = None if whole else Path(config.paths.segments) / collection.path
    graphs = GraphLoader(Path(config.paths.features) / collection.path, segments)
    facts: dict[str, Any] = {"collection": str(collection), "method": config.method, "data": graphs.fingerprint}
    facts |= {"steps": 0, "version": __version__, "features": graphs.store.spec}
    train, valid = graphs.store.trainable("train"), graphs.store.trainable("valid")
    valid = rankable_graphs(graphs.store, "valid", valid, config.trainer.validation_configs)
    if method is None:
        return Setup(config, None, graphs, BaselineSpec(**facts, settings=config.baseline), train, valid)
    spec = ModelSpec(
        **facts,
        model=config.model,
        aggregation=config.segments.aggregation,
        whole_graph=whole,
        partition=graphs.options or config.partition,
        partition_fingerprint=graphs.partition,
        members=config.ensemble.seeds * config.ensemble.folds,
        plugins=plugin_digests(config.plugin_modules),
    )
    return Setup(config, method, graphs, spec, train, valid, members=[Member(config.seed)])


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a training, or of one of its members."""

    members: Sequence[CostModel] = ()  # networks, with the weights of their best epochs
    predictors: Sequence[tuple[str, Predictor]] = ()  # by name: the trained baseline, or the baselines of a blend
    weights: Sequence[float] = ()  # of the mean of the networks and of each baseline; empty for equal ones
    steps: int = 0  # of the optimizer, trees or iterations of a solver; 1 for a rule
    history: Sequence[Mapping[str, Any]] = ()  # a row for each epoch of each member, or each candidate of a baseline
    tau: float | None = None  # validation Kendall tau of the model, None if no graph can be validated
    seconds: float = 0.0

    def save(self, folder: Path, spec: Spec) -> None:
        """Write weights and specification of the model."""
        if isinstance(spec, BaselineSpec):
            ((_, predictor),) = self.predictors
            save_baseline(folder, predictor, spec.model_copy(update={"steps": self.steps}))
            return
        assert isinstance(spec, ModelSpec)
        names = [name for name, _ in self.predictors]
        arrays = {
            f"{name}.{number}.{key}": array
            for number, (name, predictor) in enumerate(self.predictors)
            for key, array in vars(predictor).items()
        }
        fitted = {"steps": self.steps, "baselines": names, "weights": list(self.weights)}
        save_model(folder, self.members, spec.model_copy(update=fitted), arrays)


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far; on CUDA the largest allocation on the device."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

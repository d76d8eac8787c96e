"""The whole configuration, and its validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from hlorank.config.data_sections import (
    Address,
    ComputeConfig,
    DataConfig,
    EvaluateConfig,
    FeaturizeConfig,
    PartitionConfig,
    PipelineConfig,
    TrackingConfig,
)
from hlorank.config.extension_point import import_plugin, module_of, registered
from hlorank.config.section import Registries, Section, mistakes, parse, refused, refused_lines
from hlorank.config.train_sections import (
    BaselineConfig,
    EnsembleConfig,
    LossTerm,
    ModelConfig,
    SegmentsConfig,
    SweepConfig,
    TrainerConfig,
    arguments_section,
)

_MISSING = "???"  # Hydra's mark of a value that must be given


def _import(name: str, info: ValidationInfo) -> str:
    """Import a plugin that the user's own configuration names, which has a validation context."""
    if info.context is not None:
        import_plugin(name)
    return name


def _local(path: str) -> str:
    if "://" in path:  # a folder of that name would be made
        raise refused("a folder of a file system: mount the store, or fetch its files with dvc pull")
    return path


Folder = Annotated[str, AfterValidator(_local)]


class PathsConfig(Section):
    """Folders that the stages read and write."""

    raw: Folder
    """Fetched graphs, npz files."""
    features: Folder
    """Feature stores."""
    segments: Folder
    """Segments of the graphs."""
    models: Folder
    """Models, a folder for each method."""
    reports: Folder
    """Reports, a folder for each method."""
    downloads: Folder
    """Archives and partial downloads; outside what DVC deletes."""
    state: Folder
    """Checkpoints to resume from; outside what DVC deletes."""


class Config(Section):
    """The whole configuration, as passed to the stages."""

    plugins: list[Annotated[str, AfterValidator(_import)]]
    """Modules of other packages that are imported before the other names are checked, as they may register some."""
    collection: Address
    """Address of the collection: layout/<source>/<default, random or models>, or tile/<source>."""
    kind: Literal["layout", "tile"] | None
    """Kind of collection that the file of `experiment` is for; null is any."""
    method: Annotated[str, registered("methods", "baselines", also=("auto",))]
    """Method of training segments, auto for the one of full, gst and gst_e that suits the data, or a baseline."""
    output: Folder | None
    """Folder that a stage writes; null is the stage's folder in `paths`, in a multirun the run folder of Hydra."""
    seed: int = Field(ge=0)
    """Seed of initial weights, sampling, dropout and trees."""
    paths: PathsConfig
    pipeline: PipelineConfig
    data: DataConfig
    featurize: FeaturizeConfig
    partition: PartitionConfig
    compute: ComputeConfig
    model: ModelConfig
    segments: SegmentsConfig
    loss: dict[Annotated[str, registered("losses")], LossTerm] = Field(min_length=1)
    """Training losses by name, each with its weight; the loss is their weighted sum."""
    trainer: TrainerConfig
    ensemble: EnsembleConfig
    baseline: BaselineConfig
    tracking: TrackingConfig
    sweep: SweepConfig
    evaluate: EvaluateConfig

    @property
    def plugin_modules(self) -> set[str]:
        """The plugins of a training: those listed, and the modules of names `module:attribute`."""
        layers = {*self.model.stem, *self.model.block, *self.model.post_layers, *self.model.pooling}
        names = {self.method, self.partition.algorithm, *self.loss, *layers}
        return {*self.plugins, *filter(None, map(module_of, names))}

    @field_validator("loss")
    @classmethod
    def _check_arguments(cls, terms: dict[str, LossTerm], info: ValidationInfo) -> dict[str, LossTerm]:
        wrong = list[str]()
        if losses := (info.context or {}).get("losses"):
            for name, term in terms.items():
                wrong += mistakes(arguments_section(losses[name]), term.arguments, f"loss.{name}")
        if wrong:
            raise refused_lines(wrong)
        return terms

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        kind = self.collection.partition("/")[0].partition(":")[0]
        expected = f"a {self.kind} collection, as the chosen experiment needs; change one of them"
        return self.require(self.kind in {None, kind}, "collection", expected)


def load(composed: object, registries: Registries | None = None) -> Config:
    """Validate a configuration of plain values; a ConfigError has a line for each wrong key.

    Names of the given extension points are checked, with the settings of an origin and the arguments of losses; names
    of the others are checked where they are used. Plugins that the configuration names are imported in any case.
    """
    return parse(Config, _given(composed), registries=registries or {})


def _given(values: Any) -> Any:
    """Return nested mappings, of whatever type, as dicts without the values that are missing."""
    if not isinstance(values, Mapping):
        return values
    return {str(key): _given(value) for key, value in values.items() if value != _MISSING}

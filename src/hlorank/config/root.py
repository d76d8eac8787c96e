"""The whole configuration and its validation, and the sections of the data and of their places."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from hlorank.config import train_sections
from hlorank.config.extension_point import import_named, module_of
from hlorank.config.section import MainFolder, Section, StoreAddress, available_cores, parse, refused
from hlorank.config.train_sections import LossTerm
from hlorank.files import SPEC, bundled

_MISSING = "???"  # Hydra's mark of a value that must be given
Split = Literal["train", "valid", "test"]

ADDRESS = re.compile(
    r"layout[:/.](?P<layout>[\w-]+)[:/.](?P<search>default|random|outputs|models)|tile[:/.](?P<tile>[\w-]+)", re.ASCII
)
"""Address of a collection; paths have `/` where addresses have `:`, and names of models `.`."""


def path_of_address(address: str) -> str:
    """Return the address of a collection as a path, the form that names folders and stages."""
    if not ADDRESS.fullmatch(address):
        raise refused("layout/<source>/<default, random, outputs or models>, or tile/<source>")
    return re.sub("[:.]", "/", address)


Address = Annotated[str, AfterValidator(path_of_address)]


class DataConfig(Section):
    """An origin, and below its name the settings that the origin's own module declares."""

    model_config = ConfigDict(extra="allow")

    origin: str
    """Origin of the graphs, by its name in ORIGINS; the choice of the group sets it."""

    @property
    def settings(self) -> Any:
        """The settings of the chosen origin, as composed."""
        return (self.model_extra or {}).get(self.origin, {})


Derived = Literal["tile_shares", "tile_remainders", "tile_runs", "tile_loops", "layout_costs"]


class FeaturizeConfig(Section):
    """Stage featurize."""

    scaling: Literal["standard", "minmax"]
    """standard (mean 0, variance 1) or minmax (0 to 1), fitted on the train split."""
    log_range: float = Field(ge=0)
    """Columns whose values on the train split span more than this are first transformed by sign(x) log(1 + |x|)."""
    opcode_width: int = Field(ge=1)
    """Width of the opcode embeddings computed from co-occurrence along edges."""
    prune_hops: int | None = Field(ge=0)
    """Keep the nodes within this many edges of a configurable node; null keeps all."""
    prune_edges: bool
    """Leave out the edges that touch no configurable node."""
    operand_layouts: bool
    """Models read the configured layouts of operands, too, not only those of outputs."""
    derived: list[Derived]
    """Groups of columns derived from shapes. Of tiles: tile_shares (sizes, and shares of the dimensions that they cut),
    tile_remainders (padding), tile_runs (contiguous bytes), tile_loops (the innermost loop). Of layouts: layout_costs
    (copies to other layouts than the graph's own; on TPUs padding to tiles; see model.layout_costs)."""


class PartitionConfig(Section):
    """Stage partition."""

    algorithm: str
    """topological (contiguous blocks), metis (few cut edges) or computation (whole computations where they fit)."""
    max_nodes: int = Field(ge=1)
    """Bound of a segment's nodes. The default is for the small programs of the bundled sample; use about 1000 for
    graphs of thousands of nodes."""


class EvaluateConfig(Section):
    """Stage evaluate."""

    splits: list[Split] = Field(min_length=1)
    """Splits to score."""
    memory_bytes: int = Field(ge=1)
    """Bound of the activations held while scoring, in train's validation too."""
    index_file: str | None
    """JSON of graph -> configuration indices (the paper's 1,000-index protocol); null skips the protocol."""

    @model_validator(mode="after")
    def _check_index_file(self) -> Self:
        expected = f"valid among them, of which index_file={self.index_file} lists graphs"
        return self.require(self.index_file is None or "valid" in self.splits, "splits", expected)


class ComputeConfig(Section):
    """Place where the work on each graph runs; results do not depend on it."""

    form: Literal["serial", "processes", "ray"]
    """serial (this process), processes (of this machine) or ray (a Ray cluster, which needs the extra `ray`)."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Graphs in progress at the same time; auto is one for each core of this machine, or as many as the cluster has
    room for. Each takes its own memory: use fewer if it runs out. serial ignores it."""
    retries: int = Field(ge=0)
    """Times that work on a graph is repeated whose process died or whose node was lost, at least once without ray."""
    address: str | None
    """Ray cluster: auto (on this machine), `host:port`, or `ray://host:port` of its client server; only for ray."""
    cpus: float = Field(gt=0)
    """CPUs that a graph's task takes of its node, and its threads of BLAS; only for ray."""
    gpus: float = Field(ge=0)
    """GPUs that a graph's task takes of its node: above 0, evaluate scores on them; only for ray."""
    memory_bytes: int | None = Field(ge=1)
    """Memory that a graph's task takes of its node, so that fewer run at once; null counts CPUs only; only for ray."""

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        valid = self.form != "ray" or self.address is not None
        return self.require(valid, "address", "auto, host:port or ray://host:port")

    @property
    def process_count(self) -> int:
        """The number of worker processes on this machine."""
        return self.workers if self.workers != "auto" else available_cores()


class TrackingConfig(Section):
    """Tracking of runs in MLflow."""

    uri: StoreAddress
    """Tracking store; the variable MLFLOW_TRACKING_URI overrides it."""
    experiment: str
    """Name of the experiment that runs belong to."""
    artifacts: MainFolder
    """Artifact folder of a sqlite store; a server has its own."""


class Training(Section):
    """One training of the pipeline."""

    collection: str
    """Collection, as a path."""
    method: str
    """Method or baseline."""
    reads: list[str]
    """Sections that it reads besides those of all trainings: model for networks, baseline for baselines."""


class PipelineConfig(Section):
    """Collections that `dvc repro` runs, as paths, and the methods of each kind of collection."""

    layout: list[Address]
    """Layout collections."""
    tile: list[Address]
    """Tile collections."""
    methods: list[str]
    """Methods and baselines of layout collections."""
    tile_methods: list[str]
    """Methods of tile collections: full, as a kernel is one segment, and baselines other than default_configuration."""
    omit: list[str]
    """Trainings that are left out, as `<collection>-<method>`, such as a training that equals another."""
    collections: list[str]
    """All collections; computed from `layout` and `tile`."""
    trainings: dict[str, Training]
    """Trainings by their name in dvc.yaml, computed: each collection with each method of its kind, without `omit`."""


def _local(path: str) -> str:
    if "://" in path:  # a folder of that name would be made
        raise refused("a folder of a file system: mount the store, or fetch its files with dvc pull")
    return path


def bundled_ranker(name: str) -> Path | None:
    """Return the folder of a ranker of the package by its name, such as layout.cpu; a file here hides it."""
    folder = bundled("rankers") / name
    return folder if name and (folder / SPEC).is_file() and not Path(name).exists() else None


def _model(path: str) -> str:
    return str(bundled_ranker(path) or _local(path))


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
    state: Annotated[MainFolder, AfterValidator(_local)]
    """Checkpoints to resume from; outside what DVC deletes."""
    pretrained: Annotated[str, AfterValidator(_model)] | None
    """Model with whose weights the training of networks or `analytical` starts, a folder or a ranker of the package
    such as layout.cpu; featurize takes its feature specification, which networks need; null is none."""


class Config(Section):
    """The whole configuration, as passed to the stages."""

    plugins: list[str]
    """Modules of other packages that are imported first, as they may register names."""
    collection: Address
    """Address of the collection: layout/<source>/<default, random, outputs or models>, or tile/<source>."""
    kind: Literal["layout", "tile"] | None
    """Kind of collection that the file of `experiment` is for; null is any."""
    method: str
    """Method of training segments, or a baseline."""
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
    model: train_sections.ModelConfig
    segments: train_sections.SegmentsConfig
    loss: dict[str, LossTerm] = Field(min_length=1)
    """Training losses by name, each with its weight; the loss is their weighted sum."""
    trainer: train_sections.TrainerConfig
    ensemble: train_sections.EnsembleConfig
    baseline: train_sections.BaselineConfig
    tracking: TrackingConfig
    sweep: train_sections.SweepConfig
    evaluate: EvaluateConfig

    @property
    def plugin_modules(self) -> dict[str, str]:
        """The plugins of a training, `plugins` and the modules of `module:attribute`, with the keys that name them."""
        model = self.model
        names = {"method": [self.method], "partition.algorithm": [self.partition.algorithm], "loss": self.loss}
        names |= {f"model.{key}": getattr(model, key) for key in ("stem", "block", "post_layers", "pooling")}
        modules = {module: key for key, found in names.items() for module in map(module_of, found) if module}
        return dict.fromkeys(self.plugins, "plugins") | modules

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        kind = self.collection.partition("/")[0]
        expected = f"a {self.kind} collection, as the chosen experiment needs; change one of them"
        return self.require(self.kind in {None, kind}, "collection", expected)


def load(composed: object) -> Config:
    """Validate a configuration of plain values, and import the plugins that it names.

    A ConfigError has a line for each wrong key. Names of extension points are checked by what uses them.
    """
    config = parse(Config, _given(composed))
    origin = module_of(config.data.origin)
    for module, key in (config.plugin_modules | ({origin: "data.origin"} if origin else {})).items():
        import_named(key, module)
    return config


def _given(values: Any) -> Any:
    """Return nested mappings, of whatever type, as dicts without the values that are missing."""
    if not isinstance(values, Mapping):
        return values
    return {str(key): _given(value) for key, value in values.items() if value != _MISSING}

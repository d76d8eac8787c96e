"""The schema of the configuration.

Values live in conf/ (and, resolved, in params.yaml); the classes here hold names, types and meanings, no second set
of defaults. Every entry function calls `load`, so a misspelled key, a wrong type or a missing value fails with its
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


@dataclass
class TpuGraphsConfig:
    """Origin `tpugraphs`: the official archives."""

    base_url: str = MISSING
    """http(s) address of the archives, or a folder that holds archives or the unpacked (Kaggle) tree."""
    splits: list[str] = MISSING
    keep_archives: bool = MISSING
    retries: int = MISSING
    timeout_seconds: float = MISSING


@dataclass
class LocalConfig:
    """Origin `local`: a user's own npz tree, optionally split anew by graph."""

    root: str = MISSING
    """The folder that holds layout/ or tile/; $HLORANK_SHARED stands for the shared data."""
    split_file: str | None = MISSING
    """JSON file of the fold of each model family or graph, the latter written where missing; null keeps the splits."""
    folds: int = MISSING
    """Folds in the split file; model families stay together."""
    fold: int = MISSING
    """The fold used as valid; the next one is test, the others are train."""


@dataclass
class PbConfig:
    """Origin `pb`: HLO protobufs, the dataset's own or a compiler's dumps."""

    root: str = MISSING
    """The folder that holds layout/ or tile/, or the files themselves; $HLORANK_SHARED stands for the shared data."""
    split: str = MISSING
    """The split that the protobufs of a flat folder go to."""
    extra: bool = MISSING
    """Also write the features beyond the 140, to <graph>.extra.npz."""


@dataclass
class SyntheticConfig:
    """Origin `synthetic`: a seeded generator with an analytic runtime."""

    seed: int = MISSING
    train: int = MISSING
    """Graphs in the train split."""
    valid: int = MISSING
    test: int = MISSING
    min_nodes: int = MISSING
    max_nodes: int = MISSING
    configurable_nodes: int | None = MISSING
    """Configurable nodes per layout graph; null places as many as real graphs of that size have."""
    configurations: int = MISSING
    """Configurations per graph, repeated ones included."""
    repeated: float = MISSING
    """Share of the configurations that repeat another one."""
    noise: float = MISSING
    """Standard deviation of the multiplicative log-normal noise of a measurement."""


@dataclass
class DataConfig:
    """Where fetch gets a collection; only the chosen origin's subtree is present."""

    origin: str = MISSING
    tpugraphs: TpuGraphsConfig | None = None
    local: LocalConfig | None = None
    pb: PbConfig | None = None
    synthetic: SyntheticConfig | None = None


@dataclass
class FeaturizeConfig:
    """Stage featurize."""

    scaling: str = MISSING
    """standard or minmax, fitted on the train split."""
    log_range: float = MISSING
    """Columns whose values on the train split span more than this get sign(x) log(1 + |x|) first."""
    opcode_width: int = MISSING
    """Width of the opcode embeddings computed from co-occurrence along edges."""
    prune_hops: int | None = MISSING
    """Keep only nodes within this many edges of a configurable node; null keeps all."""
    dims_128: bool = MISSING
    """Add each dimension mod 128 and div 128: the registers of a TPU are 128 wide."""
    walk_steps: int = MISSING
    """Add random-walk positional encodings of this many steps; 0 adds none."""
    protobuf: bool = MISSING
    """Add what <graph>.extra.npz beside each graph holds: dot, gather and scatter dimensions, operand shapes."""
    workers: int = MISSING


@dataclass
class PartitionConfig:
    """Stage partition."""

    algorithm: str = MISSING
    """topological, metis or computation."""
    max_nodes: int = MISSING
    halo: int = MISSING
    """Hops around a segment that are computed with it, but not pooled; 0 drops the edges between segments."""
    workers: int = MISSING


@dataclass
class ModelConfig:
    """The cost model."""

    width: int = MISSING
    layers: int = MISSING
    opcode_width: int = MISSING
    """Width of the learned opcode embedding."""
    opcode_init: bool = MISSING
    """Start the opcode embedding from featurize's co-occurrence embeddings (then the widths must agree)."""
    layout_width: int = MISSING
    """Width of the embedding of one layout value, shared by nodes and configurations."""
    layout_sizes: bool = MISSING
    """Configured layouts come with the sizes of the dimensions in the order that they put them in."""
    dropout: float = MISSING
    pooling: list[str] = MISSING
    """Concatenated poolings over a segment's nodes: mean, sum, max."""
    squeeze_excite: bool = MISSING
    """Channel attention over the nodes of a segment after each layer of message passing."""
    configuration_attention: bool = MISSING
    """Attention over the configurations ranked together after each layer of message passing."""


@dataclass
class SegmentsConfig:
    """How segments are trained; shared by all methods."""

    sampled: int = MISSING
    """Segments with gradients per graph and step; graphs of fewer segments train all of theirs."""
    aggregation: str = MISSING
    """mean or sum over a graph's segments."""
    keep_probability: float = MISSING
    """With which a stale embedding is kept by the methods that drop some, above 0 and at most 1."""
    table_bytes: int = MISSING
    """Bound of the historical table."""
    table_dtype: str = MISSING
    """float32 or float16."""
    configs_per_graph: int | None = MISSING
    """Working set: configurations of a graph that are trained on at a time; null is all of them."""
    redraw_epochs: int = MISSING
    """Epochs after which the working sets are drawn anew."""
    finetune_epochs: int = MISSING
    """Epochs of the methods that finetune the head."""


@dataclass
class LossConfig:
    """The training loss."""

    name: str = MISSING
    """hinge, listmle or mse."""
    margin: float = MISSING
    """Margin of the pairwise hinge."""


@dataclass
class TrainerConfig:
    """Optimization, sampling and hardware."""

    max_epochs: int = MISSING
    steps_per_epoch: int = MISSING
    graphs_per_step: int = MISSING
    configs_per_step: int = MISSING
    sampling: str = MISSING
    """uniform, fast (Gumbel top-k towards fast configurations) or quantile (stratified)."""
    learning_rate: float = MISSING
    weight_decay: float = MISSING
    warmup: float = MISSING
    """Share of the steps over which the learning rate rises."""
    gradient_clip: float = MISSING
    patience: int = MISSING
    """Epochs without a better validation Kendall tau before training stops."""
    validation_configs: int = MISSING
    """Configurations per graph scored in validation (evaluate scores all)."""
    precision: str = MISSING
    """32-true, bf16-mixed, or 16-mixed on CUDA."""
    accelerator: str = MISSING
    """auto, cpu or cuda."""
    threads: int = MISSING


@dataclass
class BaselineConfig:
    """The baseline `gradient_boosting`: regression trees on pooled features."""

    iterations: int = MISSING
    """Trees at most; valid chooses how many of them are kept."""
    learning_rate: float = MISSING
    """By which the values of each tree are multiplied."""
    leaves: int = MISSING
    """Leaves of a tree, at most."""
    min_leaf: int = MISSING
    """Training rows in a leaf, at least."""
    l2: float = MISSING
    """Shrinks the values of leaves."""
    rows_per_graph: int = MISSING
    """Configurations of a graph that are trained on, at most."""


@dataclass
class TrackingConfig:
    """MLflow."""

    uri: str = MISSING
    """Tracking store; the variable MLFLOW_TRACKING_URI overrides it."""
    experiment: str = MISSING
    artifacts: str = MISSING
    """Artifact folder of a sqlite store; a server has its own."""


@dataclass
class EvaluateConfig:
    """Stage evaluate."""

    splits: list[str] = MISSING
    memory_bytes: int = MISSING
    """Bound of the activations held while scoring."""
    index_file: str | None = MISSING
    """JSON of graph -> configuration indices (the paper's 1,000-index protocol); null skips the protocol."""


@dataclass
class PathsConfig:
    """Folders that the stages read and write."""

    raw: str = MISSING
    features: str = MISSING
    segments: str = MISSING
    models: str = MISSING
    reports: str = MISSING
    downloads: str = MISSING
    """Archives and partial downloads; outside what DVC deletes."""
    state: str = MISSING
    """Checkpoints to resume from; outside what DVC deletes."""


@dataclass
class PipelineConfig:
    """What `dvc repro` runs: the matrix of dvc.yaml, collections as paths."""

    layout: list[str] = MISSING
    tile: list[str] = MISSING
    methods: list[str] = MISSING
    """Of layout collections."""
    tile_methods: list[str] = MISSING


@dataclass
class Config:
    """The whole configuration, as every entry function sees it."""

    collection: str = MISSING
    method: str = MISSING
    output: str | None = MISSING
    """Folder that a stage writes; null = the stage's place under `paths` (train, evaluate: Hydra's run folder)."""
    seed: int = MISSING
    paths: PathsConfig = field(default_factory=PathsConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    featurize: FeaturizeConfig = field(default_factory=FeaturizeConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)


class ConfigError(ValueError):
    """A configuration with an unknown key, a wrong type, a missing value or one out of range."""


def check_least(config: Config, least: Mapping[str, int]) -> None:
    """Checks that numbers, by dotted key, are not below their least values.

    Raises:
        ConfigError: one is.
    """
    for key, value in least.items():
        if (found := attrgetter(key)(config)) < value:
            raise ConfigError(f"{key}={found}: set it to at least {value}")


def load(composed: DictConfig) -> Config:
    """Validates a composed configuration.

    Raises:
        ConfigError: names the key and what is wrong with it.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), composed)
        if missing := OmegaConf.missing_keys(merged):
            raise ConfigError(f"configuration: no value for {', '.join(sorted(missing))}")
        return cast("Config", OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        # OmegaConf knows no key where a whole group is replaced; its message then names the group's class.
        place = f"configuration: {error.full_key}" if error.full_key else "configuration"
        raise ConfigError(f"{place}: {(error.msg or str(error)).splitlines()[0]}") from None


def to_plain(config: object) -> dict[str, Any]:
    """A configuration class as plain dicts and lists, for JSON, fingerprints and MLflow parameters."""
    return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.structured(config)))

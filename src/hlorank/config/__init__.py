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
    """Some of train, valid, test."""
    keep_archives: bool = MISSING
    """Keep the archives after they are unpacked."""
    retries: int = MISSING
    """Failures in a row, without a byte gained, after which a download gives up."""
    timeout_seconds: float = MISSING
    """Wait for a connection, and for each piece of the answer."""


@dataclass
class LocalConfig:
    """Origin `local`: a user's own npz tree, optionally split anew by graph."""

    root: str = MISSING
    """The folder that holds layout/ or tile/; $HLORANK_SHARED stands for the shared data."""
    split_file: str | None = MISSING
    """JSON file of the fold of each model family or graph, the latter written where missing; null keeps the splits."""
    folds: int = MISSING
    """Folds in the split file, at least 3; model families stay together."""
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
    """Of the generator."""
    train: int = MISSING
    """Graphs in the train split."""
    valid: int = MISSING
    """Graphs in the valid split."""
    test: int = MISSING
    """Graphs in the test split; their labels are known."""
    min_nodes: int = MISSING
    """Nodes of the smallest layout graph, at least 50; kernels of tile collections have 2 to 60."""
    max_nodes: int = MISSING
    """Nodes of the largest layout graph."""
    configurable_nodes: int | None = MISSING
    """Configurable nodes per layout graph; null places as many as real graphs of that size have."""
    configurations: int = MISSING
    """Configurations per graph, repeated ones included; kernels get an eighth."""
    repeated: float = MISSING
    """Share of the configurations that repeat another one."""
    noise: float = MISSING
    """Standard deviation of the multiplicative log-normal noise of a measurement."""


@dataclass
class DataConfig:
    """Where fetch gets a collection; only the chosen origin's subtree is present."""

    origin: str = MISSING
    """tpugraphs, local, pb or synthetic; the choice of the group sets it."""
    tpugraphs: TpuGraphsConfig | None = None
    local: LocalConfig | None = None
    pb: PbConfig | None = None
    synthetic: SyntheticConfig | None = None


@dataclass
class FeaturizeConfig:
    """Stage featurize."""

    scaling: str = MISSING
    """standard (mean 0, variance 1) or minmax (0 to 1), fitted on the train split."""
    log_range: float = MISSING
    """Columns whose values on the train split span more than this get sign(x) log(1 + |x|) first."""
    opcode_width: int = MISSING
    """Width of the opcode embeddings computed from co-occurrence along edges."""
    prune_hops: int | None = MISSING
    """Keep the nodes within this many edges of a configurable node; null and no prune_paths keep all."""
    prune_paths: bool = MISSING
    """Keep the nodes on short paths that connect the configurable nodes, also beside those of prune_hops."""
    virtual_nodes: bool = MISSING
    """Merge the nodes that are not kept into virtual nodes, instead of leaving them out."""
    dims_128: bool = MISSING
    """Add each dimension mod 128 and div 128: the registers of a TPU are 128 wide."""
    walk_steps: int = MISSING
    """Add random-walk positional encodings of this many steps; 0 adds none."""
    protobuf: bool = MISSING
    """Add what <graph>.extra.npz beside each graph holds: dot, gather and scatter dimensions, operand shapes."""
    workers: int = MISSING
    """Processes; the result does not depend on it."""


@dataclass
class PartitionConfig:
    """Stage partition."""

    algorithm: str = MISSING
    """topological (contiguous blocks), metis (few cut edges) or computation (whole computations where they fit)."""
    max_nodes: int = MISSING
    """Bound of a segment's nodes, its halo not counted."""
    halo: int = MISSING
    """Hops around a segment that are computed with it, but not pooled; 0 drops the edges between segments."""
    workers: int = MISSING
    """Processes; the result does not depend on it."""


@dataclass
class ModelConfig:
    """The cost model: an encoder, a stem, a block of layers that is repeated, a readout, pooling, a head."""

    width: int = MISSING
    """Of node states."""
    stem: list[str] = MISSING
    """Layers by name, between the encoder and the first block."""
    blocks: int = MISSING
    """How often the block is repeated, each time with weights of its own."""
    block: list[str] = MISSING
    """Layers by name, in their order; `residual` adds what came into the block."""
    readout: list[str] = MISSING
    """Layers by name, between the last block and the pooling."""
    pooling: list[str] = MISSING
    """Concatenated poolings over a segment's nodes: mean, sum, max; sums of unit length: unit_sum, and of configurable
    nodes unit_configurable_sum."""
    head: str = MISSING
    """mlp, or linear, which with sum pooling is the sum of a number for each node."""
    directions: str = MISSING
    """separate or shared weights for the edges from operands and those from users."""
    join: str = MISSING
    """early: the configuration joins its nodes before the stem; late: after the blocks; every: early, and before each
    block but the first."""
    override_layout: bool = MISSING
    """The output layout of a configuration takes the place of the node's own (early join)."""
    opcode_width: int = MISSING
    """Width of the learned opcode embedding."""
    opcode_init: bool = MISSING
    """Start the opcode embedding from featurize's co-occurrence embeddings (then the widths must agree)."""
    layout_width: int = MISSING
    """Width of the embedding of one layout value, shared by nodes and configurations."""
    layout_sizes: bool = MISSING
    """Configured layouts come with the sizes of the dimensions in the order that they put them in."""
    heads: int = MISSING
    """Of layers with multi-head attention; divides the width."""
    dropout: float = MISSING
    """Of the layers `dropout`; one mask serves all configurations of a step."""
    drop_edge: float = MISSING
    """Share of the edges that a training step leaves out (DropEdge, Rong et al., arXiv 1907.10903)."""
    permutations: int = MISSING
    """Orders of the configurations over which a trained model averages, if it mixes configurations."""

    @property
    def shared_directions(self) -> bool:
        """Whether edges from operands and from users have the same weights."""
        return self.directions == "shared"


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
    """Bound of the historical table, which must hold the working set of any one graph."""
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
    """The weights of the training losses; the loss is the weighted sum of those whose weight is above 0."""

    hinge: float = MISSING
    """Pairwise hinge: mean over pairs with y_i > y_j of max(0, margin - (s_i - s_j))."""
    logistic: float = MISSING
    """Pairwise logistic loss (RankNet): mean over the same pairs of log(1 + exp(-(s_i - s_j)))."""
    listmle: float = MISSING
    """ListMLE: negative log likelihood of the measured order, per configuration."""
    differences: float = MISSING
    """Mean over all pairs of |(s_i - s_j) - (log y_i - log y_j)|."""
    mse: float = MISSING
    """Mean of r^2, with r = s - log y, both centred over the configurations."""
    mape: float = MISSING
    """Mean of |exp(r) - 1|, the relative error of the runtime; above r = 1 its tangent, e r - 1."""
    margin: float = MISSING
    """Of the pairwise hinge; the other losses ignore it."""


@dataclass
class TrainerConfig:
    """Optimization, sampling and hardware."""

    max_epochs: int = MISSING
    """Epochs at most."""
    steps_per_epoch: int = MISSING
    """Optimizer steps of an epoch."""
    graphs_per_step: int = MISSING
    """Graphs whose gradients are added up in one step."""
    configs_per_step: int = MISSING
    """Configurations of a graph in a step, at least 2."""
    sampling: str = MISSING
    """uniform, fast (Gumbel top-k towards fast configurations) or quantile (one from each of equal strata of
    runtimes)."""
    learning_rate: float = MISSING
    """Highest learning rate of AdamW."""
    weight_decay: float = MISSING
    """Of AdamW."""
    warmup: float = MISSING
    """Share of the steps over which the learning rate rises; then it falls along a cosine."""
    gradient_clip: float = MISSING
    """Bound of the gradient's norm."""
    patience: int = MISSING
    """Epochs without a better validation Kendall tau before training stops."""
    validation_configs: int = MISSING
    """Distinct configurations per graph ranked in validation, at least 2; evaluate ranks all."""
    precision: str = MISSING
    """32-true, bf16-mixed, or 16-mixed on CUDA."""
    accelerator: str = MISSING
    """auto (CUDA if PyTorch finds a device), cpu or cuda."""
    threads: int = MISSING
    """Of PyTorch, in evaluate too."""
    averaging: str = MISSING
    """Of weights over the steps: none, ema (exponential moving average) or swa (equal, over the second half)."""
    averaging_decay: float = MISSING
    """What a step leaves of the exponential moving average: it looks back about 1 / (1 - decay) steps."""
    cpu_seconds: float | None = MISSING
    """Bound of the CPU time of all processors that the steps and validations of a training take, shared equally by the
    members of an ensemble; null sets none. What a model learns in that time depends on the machine, and so do all
    figures of it."""


@dataclass
class EnsembleConfig:
    """Models that are trained one by one, seeds times folds of them, and rank together."""

    seeds: int = MISSING
    """Models that differ in their seed, for each fold."""
    folds: int = MISSING
    """Folds of train, model families together, of which each model keeps another one to choose its best epoch on;
    1 trains on all of train and chooses on valid."""


@dataclass
class BaselineConfig:
    """The baselines on pooled features: `gradient_boosting` fits trees, `linear_ranking` weights."""

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
    """Configurations of a graph that trees are fitted to, at most."""
    pairs_per_graph: int = MISSING
    """Pairs of configurations of a graph that weights are fitted to."""
    strengths: list[float] = MISSING
    """L2 strengths of the weights that are tried; valid chooses one."""


@dataclass
class TrackingConfig:
    """MLflow."""

    uri: str = MISSING
    """Tracking store; the variable MLFLOW_TRACKING_URI overrides it."""
    experiment: str = MISSING
    """Name of the experiment that runs belong to."""
    artifacts: str = MISSING
    """Artifact folder of a sqlite store; a server has its own."""


@dataclass
class SweepConfig:
    """Multiruns of trainings."""

    name: str | None = MISSING
    """A sweep that is started again under its name goes on where it ended; null starts a new one."""
    storage: str = MISSING
    """Where searches keep their trials: a database, as Optuna and SQLAlchemy write its address."""
    trial: int | None = MISSING
    """Number of the training in its search, which sets it."""
    prune: bool = MISSING
    """Give up trainings whose best validation Kendall tau is below the median of those before, at the same epoch."""
    prune_after_trials: int = MISSING
    """Trainings of a search that no comparison is made before."""
    prune_after_epochs: int = MISSING
    """Epochs that each training gets."""


@dataclass
class EvaluateConfig:
    """Stage evaluate."""

    splits: list[str] = MISSING
    """Splits to score: some of train, valid, test."""
    memory_bytes: int = MISSING
    """Bound of the activations held while scoring, in train's validation too."""
    index_file: str | None = MISSING
    """JSON of graph -> configuration indices (the paper's 1,000-index protocol); null skips the protocol."""


@dataclass
class PathsConfig:
    """Folders that the stages read and write."""

    raw: str = MISSING
    """npz files."""
    features: str = MISSING
    """Features."""
    segments: str = MISSING
    """Segments."""
    models: str = MISSING
    """Models, a folder for each method."""
    reports: str = MISSING
    """Reports, a folder for each method."""
    downloads: str = MISSING
    """Archives and partial downloads; outside what DVC deletes."""
    state: str = MISSING
    """Checkpoints to resume from; outside what DVC deletes."""


@dataclass
class PipelineConfig:
    """What `dvc repro` runs: the matrix of dvc.yaml, collections as paths."""

    layout: list[str] = MISSING
    """Layout collections."""
    tile: list[str] = MISSING
    """Tile collections."""
    methods: list[str] = MISSING
    """Of layout collections."""
    tile_methods: list[str] = MISSING
    """Of tile collections: full, which all ways to train segments are for them, and baselines other than
    default_configuration."""


@dataclass
class Config:
    """The whole configuration, as every entry function sees it."""

    collection: str = MISSING
    """Address of the collection: layout/<source>/<default or random>, or tile/<source>."""
    method: str = MISSING
    """How segments are trained, or a baseline."""
    output: str | None = MISSING
    """Folder that a stage writes; null = the stage's place under `paths` (train, evaluate: Hydra's run folder)."""
    seed: int = MISSING
    """Of initial weights, sampling, dropout and trees."""
    paths: PathsConfig = field(default_factory=PathsConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    featurize: FeaturizeConfig = field(default_factory=FeaturizeConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
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

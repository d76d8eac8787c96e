"""Sections of the stage train: model, segments, loss, trainer, ensemble, baseline, sweep."""

import inspect
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_serializer, model_validator

from hlorank.config.section import Section, StoreAddress, available_cores, refused

LayerNames = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Rate = Annotated[float, Field(ge=0, lt=1)]
MAX_LAYERS = 1000
Directions = Literal["separate", "shared", "users"]


class ModelConfig(Section):
    """The cost model: an encoder, a stem, a block of layers that is repeated, layers after it, pooling, a head."""

    width: int = Field(ge=1)
    """Width of node states."""
    stem: LayerNames
    """Layers by name, between the encoder and the first block."""
    blocks: int = Field(ge=0)
    """Number of blocks, each with weights of its own."""
    block: LayerNames
    """Layers by name, in their order, or one name; `residual` adds the input of the block."""
    post_layers: LayerNames
    """Layers by name, between the last block and the pooling."""
    pooling: list[str] = Field(min_length=1)
    """Poolings over a segment's nodes, concatenated: mean, sum, max, l2_configurable_sum (the sum over the
    configurable nodes, scaled to unit L2 norm)."""
    head: Literal["mlp", "linear"]
    """Map from the embedding of a graph to its score; linear with the pooling sum adds up one number for each node."""
    directions: Directions
    """Separate or shared weights for the edges from operands and from users; users: messages pass only from users."""
    join: Literal["early", "late", "every"]
    """early: the configuration joins its nodes before the stem; late: after the blocks; every: early, and before each
    block but the first."""
    opcode_width: int = Field(ge=1)
    """Width of the learned opcode embedding."""
    opcode_init: bool
    """Start the opcode embedding from featurize's co-occurrence embeddings (then the widths must agree)."""
    layout_width: int = Field(ge=1)
    """Width of the embedding of one layout value, shared by nodes and configurations."""
    layout_sizes: bool
    """Configured layouts come with the sizes of the dimensions in the order of the layout."""
    layout_costs: bool
    """Configured layouts come with what they cost (layout_costs of featurize.derived)."""
    tile_bins: int = Field(ge=0)
    """Bins of the piecewise linear encoding of each column of tiles; 0 reads the columns as they are."""
    heads: int = Field(ge=1)
    """Heads of layers with multi-head attention; divides the width."""
    dropout: Rate
    """Rate of the layers `dropout`; all configurations of a step share one mask."""
    drop_edge: Rate
    """Share of the edges that a training step leaves out (DropEdge, Rong et al., arXiv 1907.10903)."""
    operators: dict[str, dict[str, bool | int | float | str | None]]
    """Arguments of operators of PyTorch Geometric and of layers of plugins, by their names, besides the widths; all
    operators take self_loops, and operators with edge weights edge_weight: sum, mean or symmetric."""
    permutations: int = Field(ge=1)
    """Orders of the configurations over which a trained model averages, if it mixes configurations."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        layers = len(self.stem) + self.blocks * len(self.block) + len(self.post_layers)
        expected = f"at most {MAX_LAYERS} layers with those of stem and post_layers"
        return self.require(layers <= MAX_LAYERS, "blocks", expected)


class SegmentsConfig(Section):
    """Training of segments; shared by all methods."""

    sampled: int = Field(ge=1)
    """Segments with gradients per graph and step; graphs of fewer segments train all of theirs."""
    aggregation: Literal["mean", "sum"]
    """Aggregation of the embeddings of a graph's segments."""
    missing: Literal["compute", "reweight"]
    """Segments that the table lacks: embed them without gradient, or leave them out and weigh the sampled ones more."""
    keep_probability: float = Field(gt=0, le=1)
    """Probability that a stale embedding is kept, for methods with stale-embedding dropout."""
    table_bytes: int = Field(ge=1)
    """Bound of the embedding table, which must hold the working set of any one graph."""
    table_dtype: Literal["float32", "float16"]
    """Type of the embeddings in the table."""
    configs_per_graph: int | None = Field(ge=2)
    """Working set: configurations of a graph that are trained on at a time; null is all of them."""
    redraw_epochs: int = Field(ge=1)
    """Epochs after which the working sets are drawn again."""
    finetune_epochs: int = Field(ge=1)
    """Epochs of head finetuning, for methods that have it."""


class LossTerm(Section):
    """One training loss; a number alone is its weight. Further keys are arguments of the loss, such as `margin`."""

    model_config = ConfigDict(extra="allow")

    weight: float = Field(ge=0)
    """Factor of the loss in the weighted sum of all; 0 leaves it out."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the loss function."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"weight": value}
        if not isinstance(value, dict | cls):
            raise refused("a number, which is the weight, or a group of keys")
        return value

    @model_serializer
    def _plain(self) -> Any:
        return {"weight": self.weight, **self.arguments} if self.arguments else self.weight


@cache
def arguments_section(loss: Callable[..., Any]) -> type[Section]:
    """Return the section of the arguments of a loss function after scores and labels, with its signature's types."""
    _, _, *names = inspect.signature(loss).parameters
    hints = get_type_hints(loss)
    arguments: dict[str, Any] = {name: (hints[name], ...) for name in names}
    return create_model(loss.__name__, __base__=Section, weight=(Any, None), **arguments)


def _cores() -> int:
    """Return the number of cores that this process may use, its share of those of the ranks of this machine."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in os.environ else "1"
    return max(1, available_cores() // int(ranks))


class TrainerConfig(Section):
    """Optimization, sampling and hardware."""

    max_epochs: int = Field(ge=1)
    """Epochs at most."""
    steps_per_epoch: int = Field(ge=1)
    """Optimizer steps of an epoch."""
    graphs_per_step: int = Field(ge=1)
    """Graphs whose gradients are added up in one step."""
    configs_per_step: int = Field(ge=2)
    """Configurations of a graph in a step."""
    sampling: Literal["uniform", "gumbel_top_k"]
    """Sampler of the configurations of a step: uniform, or gumbel_top_k, towards fast configurations."""
    learning_rate: float = Field(gt=0)
    """Highest learning rate of AdamW."""
    weight_decay: float = Field(ge=0)
    """Weight decay of AdamW."""
    warmup: float = Field(ge=0, le=1)
    """Share of the steps over which the learning rate rises; then it falls along a cosine."""
    gradient_clip: float = Field(gt=0)
    """Bound of the gradient's norm."""
    patience: int = Field(ge=1)
    """Epochs without a better validation Kendall tau before training stops."""
    validation_configs: int = Field(ge=2)
    """Distinct configurations of a graph that validation ranks, the same in all trainings; evaluate ranks all."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"]
    """Precision of the training steps, as named by Lightning; 16-mixed needs CUDA."""
    accelerator: Literal["auto", "cpu", "cuda"]
    """Device; auto is CUDA where PyTorch finds it, otherwise the CPU."""
    devices: int = Field(ge=1)
    """Ranks that torchrun must have started to train one model, with the steps of one process; 1 takes any number."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Threads of PyTorch and other libraries, which change rounding and so results; of evaluate in each process. auto
    is one for each core that no worker uses, and one in evaluate, whose processes take the other cores."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0)]
    """Processes that plan training steps ahead, to the same results; auto is one for every four cores, 0 is none."""
    memory_bytes: int = Field(ge=1)
    """Bound of the states and gradients that a training step holds, besides model, optimizer and table: what needs
    more is computed in parts, of the segments and then of their configurations, and again for their gradients."""
    averaging: Literal["none", "ema", "swa"]
    """Average of the weights over the steps: ema (exponential moving average) or swa (plain, over the second half)."""
    averaging_decay: float = Field(gt=0, lt=1)
    """Decay of the exponential moving average, which spans about 1 / (1 - decay) steps."""

    @property
    def worker_count(self) -> int:
        """The number of worker processes on this machine."""
        return self.workers if self.workers != "auto" else _cores() // 4

    @property
    def thread_count(self) -> int:
        """The number of threads on this machine."""
        return self.threads if self.threads != "auto" else max(1, _cores() - self.worker_count)


class EnsembleConfig(Section):
    """Models that are trained one after another, seeds times folds of them, and baselines that are blended with them.

    Scores are standardized and averaged: first of the models, with equal weights; then their mean with the scores of
    each baseline, with weights that follow from the Kendall tau of each on valid.
    """

    seeds: int = Field(ge=1)
    """Models that differ in their seed, for each fold."""
    folds: int = Field(ge=1)
    """Folds of train, model families together; each model holds out one of them, on which its best epoch is chosen. 1
    trains on all of train and chooses on valid."""
    baselines: list[str]
    """Baselines that are blended with the models; a baseline that is named twice has two seeds."""


class BaselineConfig(Section):
    """The baselines: trees of two libraries, and the weights of `linear_ranking` and `analytical`."""

    iterations: int = Field(ge=1)
    """Trees at most; valid chooses how many of them are kept."""
    learning_rate: float = Field(gt=0)
    """Factor of the values of each tree."""
    leaves: int = Field(ge=2)
    """Leaves of a tree, at most."""
    min_leaf: int = Field(ge=1)
    """Training rows in a leaf, at least; for `xgboost` see `min_hessian`."""
    min_hessian: float = Field(ge=0)
    """Sum of the second derivatives of the loss in a leaf, at least; of `xgboost`, which counts no rows."""
    l2: float = Field(ge=0)
    """L2 regularization of the values of leaves."""
    columns: float = Field(gt=0, le=1)
    """Share of the columns that each tree may use, drawn at random; of `xgboost`."""
    grades: int = Field(ge=2)
    """Quantiles of the runtimes of a graph, whose order `xgboost` is fitted to."""
    rows_per_graph: int = Field(ge=2)
    """Configurations of a graph that trees and `analytical` are fitted to, at most; 250,000 of all graphs. The time of
    `xgboost`, which compares each two, grows with the square."""
    pairs_per_graph: int = Field(ge=2)
    """Pairs of configurations of a graph that weights are fitted to, at most; 250,000 of all graphs."""
    strengths: list[Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """L2 strengths of the weights that are tried; valid chooses one."""


SWEEP_NAME = re.compile(r"[\w.-][\w .-]*")
"""Names that a sweep may have; they are part of queries of MLflow."""


class SweepConfig(Section):
    """Multiruns of trainings."""

    name: str | None
    """A sweep started again under its name continues; null continues only an interrupted sweep of the same command."""
    storage: StoreAddress
    """Database in which searches keep their trials, as an address of Optuna and SQLAlchemy."""
    trial: int | None
    """Number of the training in its search; set by the search."""
    prune: bool
    """Stop trainings whose best validation Kendall tau is below the median of earlier ones at the same epoch."""
    prune_after_trials: int = Field(ge=0)
    """Trainings of a search before the first comparison."""
    prune_after_epochs: int = Field(ge=0)
    """Epochs that each training gets."""

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        valid = self.name is None or SWEEP_NAME.fullmatch(self.name) is not None
        return self.require(valid, "name", "letters, digits, spaces, dots, dashes and underscores")

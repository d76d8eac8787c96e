"""Sections of the stage train: `segments`, `trainer` and `ensemble`."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from hlorank.config.compute import available_cores
from hlorank.config.section import Section


def _cores() -> int:
    """Return the number of cores that this process may use: ranks share them, and OMP_NUM_THREADS bounds them."""
    cores = available_cores()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        cores = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) else cores


class SegmentsConfig(Section):
    """Training of segments; shared by all methods."""

    sampled: int = Field(ge=1)
    """Segments with gradients per graph and step; graphs of fewer segments train all of theirs."""
    aggregation: Literal["mean", "sum"]
    """Aggregation of the embeddings of a graph's segments."""
    missing: Literal["compute", "reweight"]
    """Segments whose embedding the table lacks: compute it without gradient, or leave the segment out and weigh the
    sampled ones more."""
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
    sampling: Literal["uniform", "gumbel_top_k", "stratified"]
    """uniform, gumbel_top_k (towards fast configurations) or stratified (one from each of equal strata of runtimes)."""
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
    """Distinct configurations per graph ranked in validation; evaluate ranks all."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"]
    """Precision of the training steps, as named by Lightning; 16-mixed needs CUDA."""
    accelerator: Literal["auto", "cpu", "cuda"]
    """Device; auto is CUDA where PyTorch finds it, otherwise the CPU."""
    devices: int = Field(ge=1)
    """Number of ranks that torchrun must have started to train one model together; 1 takes any number. The steps are
    those of one process."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Threads of PyTorch, in each process of evaluate too; auto is one for each core that no worker uses, and one in
    evaluate, whose processes take the other cores; OMP_NUM_THREADS bounds the cores."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0)]
    """Processes that plan training steps ahead; auto is one for every four cores, none for fewer; 0 plans them between
    the steps. The results are the same."""
    memory_bytes: int = Field(ge=1)
    """Bound of the states and gradients that a training step holds, besides model, optimizer and table: what needs
    more is computed in parts, of the segments and then of their configurations, and again for their gradients."""
    averaging: Literal["none", "ema", "swa"]
    """Average of the weights over the steps: ema is the exponential moving average, swa the unweighted average over the
    second half."""
    averaging_decay: float = Field(gt=0, lt=1)
    """Decay of the exponential moving average, which spans about 1 / (1 - decay) steps."""
    cpu_seconds: float | None = Field(gt=0)
    """Bound of the CPU time of all processors that the steps and validations of a training take, shared equally by the
    members of an ensemble; null sets none. Results under this bound depend on the speed of the machine."""

    @property
    def worker_count(self) -> int:
        """The number of worker processes on this machine."""
        if self.workers != "auto":
            return self.workers
        return _cores() // 4

    @property
    def thread_count(self) -> int:
        """The number of threads on this machine."""
        if self.threads != "auto":
            return self.threads
        return max(1, _cores() - self.worker_count)


class EnsembleConfig(Section):
    """Models that are trained one after another, seeds times folds of them, and baselines that join them.

    Scores are standardized and averaged: first those of the models, with equal weights; then their mean with those of
    each baseline, with weights that follow from the Kendall tau of each on valid.
    """

    seeds: int = Field(ge=1)
    """Models that differ in their seed, for each fold."""
    folds: int = Field(ge=1)
    """Folds of train, model families together; each model holds out one of them, on which its best epoch is chosen. 1
    trains on all of train and chooses on valid."""
    baselines: list[str]
    """Baselines that join the models; one that is named twice joins with two seeds."""

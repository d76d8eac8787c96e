"""Section `data`: the origin of the raw graphs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hlorank.config.section import Section

Split = Literal["train", "valid", "test"]
Count = Annotated[int, Field(ge=0)]


class TpuGraphsConfig(Section):
    """Origin `tpugraphs`: the official archives."""

    base_url: str
    """http(s) address of the archives, or a folder that holds archives or the unpacked (Kaggle) tree."""
    splits: list[Split] = Field(min_length=1)
    """Some of train, valid, test."""
    keep_archives: bool
    """Keep the archives after they are unpacked."""
    retries: int = Field(ge=0)
    """Consecutive failures without a byte gained after which a download stops."""
    timeout_seconds: float = Field(gt=0)
    """Time limit for a connection, and for each piece of the answer."""


class LocalConfig(Section):
    """Origin `local`: a user's own npz tree, optionally split anew by graph."""

    root: str
    """The folder that holds layout/ or tile/; $HLORANK_SHARED stands for the shared data."""
    split_file: str | None
    """JSON file of the fold of each model family or graph, written where missing; null keeps the tree's splits."""
    folds: int = Field(ge=3)
    """Folds in the split file; model families stay together."""
    fold: int = Field(ge=0)
    """The fold used as valid; the next one is test, the others are train."""

    @model_validator(mode="after")
    def _check_fold(self) -> Self:
        if self.fold >= self.folds:
            raise ValueError(f"fold={self.fold}: expected a number below folds={self.folds}")
        return self


class HloConfig(Section):
    """Origin `hlo`: HLO protobufs, the dataset's own or a compiler's dumps."""

    root: str
    """The folder that holds layout/ or tile/, or the files themselves; $HLORANK_SHARED stands for the shared data."""
    split: Split
    """The split that the protobufs of a flat folder go to."""
    extra: bool
    """Also write the features beyond the 140, to <graph>.extra.npz."""


class SyntheticConfig(Section):
    """Origin `synthetic`: a seeded generator with an analytic runtime."""

    seed: int
    """Seed of the generator."""
    train: Count
    """Graphs in the train split."""
    valid: Count
    """Graphs in the valid split."""
    test: Count
    """Graphs in the test split; their labels are known."""
    min_nodes: int = Field(ge=50)
    """Nodes of the smallest layout graph; kernels of tile collections have 2 to 60."""
    max_nodes: int
    """Nodes of the largest layout graph."""
    configurable_nodes: int | None
    """Configurable nodes per layout graph; null places as many as real graphs of that size have."""
    configurations: int = Field(ge=1)
    """Configurations per graph, repeated ones included; kernels get an eighth."""
    repeated: float = Field(ge=0, le=1)
    """Share of the configurations that repeat another one."""
    noise: float = Field(ge=0)
    """Standard deviation of the multiplicative log-normal noise of a measurement."""

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"max_nodes={self.max_nodes}: expected at least min_nodes={self.min_nodes}")
        return self


class DataConfig(Section):
    """Where fetch gets a collection; only the chosen origin's subtree is present."""

    origin: str
    """tpugraphs, local, hlo or synthetic; the choice of the group sets it."""
    tpugraphs: TpuGraphsConfig | None = None
    local: LocalConfig | None = None
    hlo: HloConfig | None = None
    synthetic: SyntheticConfig | None = None

"""Section `baseline`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hlorank.config.section import Section


class BaselineConfig(Section):
    """The baselines: trees of three libraries, and the weights of `linear_ranking` and `analytical`."""

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
    """Share of the columns that each tree may use, drawn at random; of `lightgbm` and `xgboost`."""
    grades: int = Field(ge=2)
    """Quantiles of the runtimes of a graph, whose order `lightgbm` and `xgboost` are fitted to."""
    rows_per_graph: int = Field(ge=2)
    """Configurations of a graph that trees and `analytical` are fitted to, at most; 250,000 of all graphs. The time of
    `lightgbm` and `xgboost`, which compare each two, grows with the square."""
    pairs_per_graph: int = Field(ge=2)
    """Pairs of configurations of a graph that weights are fitted to, at most; 250,000 of all graphs."""
    strengths: list[Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """L2 strengths of the weights that are tried; valid chooses one."""

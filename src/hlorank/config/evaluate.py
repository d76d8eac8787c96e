"""Section `evaluate`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from hlorank.config.data import Split
from hlorank.config.section import Section


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
        return self.require(
            self.index_file is None or "valid" in self.splits,
            "splits",
            f"valid among them, of which index_file={self.index_file} lists graphs",
        )

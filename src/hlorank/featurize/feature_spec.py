"""What featurization learned from the train split, and needs to featurize any other graph alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError, FeaturizeConfig
from hlorank.data.collection import Collection, Kind
from hlorank.data.graph import LAYOUT_DIMS, MAX_OPCODE, NODE_FEATURES, TILE_FEATURES
from hlorank.featurize.transform import SCALINGS, ColumnTransform, Scaling
from hlorank.files import DataError, fingerprint
from hlorank.hlo.extra import EXTRA_SHAPES

NUMERIC_COLUMNS = NODE_FEATURES - LAYOUT_DIMS  # the last six are minor_to_major, which node_layout holds
VIRTUAL_OPCODE = MAX_OPCODE + 1
"""The opcode of virtual nodes, which no instruction has."""

_VERSION = 4  # raise it when the same spec gives other features, or has other keys
_KEYS = {
    *("version", "fingerprint", "inputs", "collection", "options"),
    *("extra_columns", "node_columns", "tile_columns", "opcodes", "opcode_embedding"),
}


@dataclass(frozen=True)
class FeaturizeOptions:
    """The settings of featurize that change its result; their meaning is in `config.FeaturizeConfig`.

    Raises:
        ConfigError: a value out of range.
    """

    scaling: Scaling
    log_range: float
    opcode_width: int
    prune_hops: int | None
    prune_paths: bool = False
    virtual_nodes: bool = False
    dims_128: bool = False
    walk_steps: int = 0
    protobuf: bool = False

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ConfigError(f"featurize.scaling={self.scaling}: choose {' or '.join(SCALINGS)}")
        if not 0 <= self.log_range < float("inf"):
            raise ConfigError(f"featurize.log_range={self.log_range}: set it to a number of at least 0")
        if self.opcode_width < 1:
            raise ConfigError(f"featurize.opcode_width={self.opcode_width}: set it to at least 1")
        if self.prune_hops is not None and self.prune_hops < 0:
            raise ConfigError(f"featurize.prune_hops={self.prune_hops}: set it to at least 0, or null to keep all")
        if self.walk_steps < 0:
            raise ConfigError(f"featurize.walk_steps={self.walk_steps}: set it to at least 1, or 0 for none")
        if self.virtual_nodes and not self.reduces:
            remedy = "set featurize.prune_hops or featurize.prune_paths, as they say which nodes are not merged"
            raise ConfigError(f"featurize.virtual_nodes={self.virtual_nodes}: {remedy}")

    @classmethod
    def from_config(cls, config: FeaturizeConfig) -> FeaturizeOptions:
        """The options of a configuration."""
        return cls(**{option.name: getattr(config, option.name) for option in fields(cls)})

    @property
    def reduces(self) -> bool:
        """Whether layout graphs lose nodes."""
        return self.prune_hops is not None or self.prune_paths

    @property
    def extra_columns(self) -> list[str]:
        """The names of the numeric columns beyond the 134, in order; those of the protobuf index its arrays."""
        names: list[str] = []
        if self.dims_128:
            names += [f"dims[{i}] {operation} 128" for operation in ("mod", "div") for i in range(LAYOUT_DIMS)]
        names += [f"return_probability[{step}]" for step in range(1, self.walk_steps + 1)]
        if self.protobuf:
            names += [
                key + "".join(f"[{i}]" for i in index)
                for key, shape in EXTRA_SHAPES.items()
                for index in np.ndindex(shape)
            ]
        return names + ["merged"] * self.virtual_nodes


@dataclass(frozen=True, eq=False)
class FeatureSpec:
    """The transformation of raw graphs into what a model reads, fitted on the train split only.

    Attributes:
        collection: the collection that it was fitted on.
        options: the settings that it was fitted with.
        node_columns: the transform of the first 134 node features and the extra columns; the other six are layouts.
        tile_columns: the transform of the 24 tile configuration features; None for layouts.
        opcodes: (vocabulary,) uint8, increasing, the known opcodes seen in train, with that of virtual nodes; index 0
            is kept for all others.
        opcode_embedding: (vocabulary + 1, opcode_width) float32; zeros for an opcode without edges in train, so for
            unknown ones too unless the train split holds some.
        inputs: fingerprint of the options and the raw files that it was fitted on.

    Raises:
        DataError: the parts do not fit together.
    """

    collection: Collection
    options: FeaturizeOptions
    node_columns: ColumnTransform
    tile_columns: ColumnTransform | None
    opcodes: NDArray[np.uint8]
    opcode_embedding: NDArray[np.float32]
    inputs: str

    def __post_init__(self) -> None:
        opcodes = self.opcodes.astype(np.int64)
        last = VIRTUAL_OPCODE if self.options.virtual_nodes else MAX_OPCODE
        if (np.diff(opcodes, prepend=0) <= 0).any() or (opcodes > last).any():
            raise DataError("opcodes", f"increasing opcodes in 1..{last}", opcodes.tolist())
        shape = (len(opcodes) + 1, self.options.opcode_width)
        if self.opcode_embedding.shape != shape or not np.isfinite(self.opcode_embedding).all():
            raise DataError("opcode_embedding", f"finite numbers of shape {shape}", self.opcode_embedding.shape)
        if (self.tile_columns is None) != (self.kind == "layout"):
            raise DataError("tile_columns", f"a transform for tiles only ({self.collection})", self.tile_columns)
        for key, columns, limit in (
            ("node_columns", self.node_columns, NUMERIC_COLUMNS + len(self.options.extra_columns)),
            ("tile_columns", self.tile_columns, TILE_FEATURES),
        ):
            if columns is not None and (columns.columns >= limit).any():
                raise DataError(key, f"columns below {limit}", int(columns.columns[-1]))

    @property
    def kind(self) -> Kind:
        """What the configurations are."""
        return self.collection.kind

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the content: equal ones featurize alike, whatever they were fitted on."""
        return fingerprint(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "collection": str(self.collection),
            "options": asdict(self.options),
            "extra_columns": self.options.extra_columns,
            "node_columns": self.node_columns.to_json(),
            "tile_columns": None if self.tile_columns is None else self.tile_columns.to_json(),
            "opcodes": self.opcodes.tolist(),
            "opcode_embedding": self.opcode_embedding.tolist(),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, from which `from_json` makes an equal spec."""
        return {**self._content(), "inputs": self.inputs, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FeatureSpec:
        """The inverse of `to_json`.

        Raises:
            DataError: a key is missing or unknown, a value is out of range, or the content does not have the
                fingerprint that it states.
        """
        if value.keys() != _KEYS:
            raise DataError("keys", f"{sorted(_KEYS)}", sorted(value))
        if value["version"] != _VERSION:
            raise DataError("version", f"{_VERSION}; re-run the stage featurize", value["version"])
        tile = value["tile_columns"]
        try:
            options = FeaturizeOptions(**value["options"])
            spec = cls(
                Collection.parse(value["collection"]),
                options,
                ColumnTransform.from_json(value["node_columns"]),
                None if tile is None else ColumnTransform.from_json(tile),
                np.array(value["opcodes"], dtype=np.uint8),
                np.array(value["opcode_embedding"], dtype=np.float32).reshape(-1, options.opcode_width),
                str(value["inputs"]),
            )
        except DataError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError("spec", "values of the right types", error) from None
        if spec.options.extra_columns != value["extra_columns"]:
            raise DataError("extra_columns", f"{spec.options.extra_columns}, as options say", value["extra_columns"])
        if spec.fingerprint != value["fingerprint"]:
            raise DataError("fingerprint", spec.fingerprint, value["fingerprint"])
        return spec

    def opcode_index(self, opcodes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The vocabulary index of each opcode, uint8, 0 where it is unknown."""
        table = np.zeros(VIRTUAL_OPCODE + 1, dtype=np.uint8)
        table[self.opcodes] = np.arange(1, len(self.opcodes) + 1)
        return table[opcodes]

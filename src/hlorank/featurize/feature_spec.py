"""Specification of features: values fitted on the train split that featurize any graph in the same way."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ModelWrapValidatorHandler, PlainSerializer, PlainValidator, computed_field, model_validator

from hlorank import files
from hlorank.config import FeaturizeConfig, Section
from hlorank.data.collection import Collection, Kind
from hlorank.data.configurations import LAYOUT_DIMS, TILE_FEATURES
from hlorank.data.graph import MAX_OPCODE
from hlorank.featurize.columns import NUMERIC_COLUMNS
from hlorank.featurize.tile_columns import tile_names
from hlorank.featurize.transform import ColumnTransform, Float32Array, UInt8Array
from hlorank.hlo.extra import EXTRA_SHAPES

VIRTUAL_OPCODE = MAX_OPCODE + 1
"""Opcode of virtual nodes, which no instruction has."""

_COMPUTED = ("extra_columns", "fingerprint")


def extra_columns(options: FeaturizeConfig) -> list[str]:
    """Return the names of the numeric columns beyond the 134, in order; those of the protobuf index its arrays."""
    names: list[str] = []
    if options.dims_128:
        names += [f"dims[{i}] {operation} 128" for operation in ("mod", "div") for i in range(LAYOUT_DIMS)]
    names += [f"return_probability[{step}]" for step in range(1, options.walk_steps + 1)]
    if options.protobuf:
        names += [
            key + "".join(f"[{i}]" for i in index) for key, shape in EXTRA_SHAPES.items() for index in np.ndindex(shape)
        ]
    return names + ["merged"] * options.virtual_nodes


def _address(value: object) -> Collection:
    return value if isinstance(value, Collection) else Collection.parse(str(value))


class FeatureSpec(Section):
    """Transformation of raw graphs into model inputs, fitted on the train split only: the content of spec.json."""

    version: Literal[6] = 6
    """Version of the format; increment it if equal specifications would give other features, or if keys change."""
    collection: Annotated[Collection, PlainValidator(_address), PlainSerializer(str)]
    """Collection that it was fitted on."""
    options: FeaturizeConfig
    """Settings that it was fitted with."""
    node_columns: ColumnTransform
    """Transform of the first 134 node features and the extra columns; the other six are layouts."""
    tile_columns: ColumnTransform | None
    """Transform of the 24 features of tile configurations and the columns derived from them; None for layouts."""
    opcodes: UInt8Array
    """(vocabulary,) increasing, the known opcodes seen in train, with that of virtual nodes; index 0 of the vocabulary
    is kept for all others."""
    opcode_embedding: Float32Array
    """(vocabulary + 1, opcode_width) the embeddings, in row 0 that of unknown opcodes; zeros for opcodes without
    edges in train."""
    inputs: str
    """Fingerprint of the options and the raw files that it was fitted on."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        opcodes = self.opcodes.astype(np.int64)
        last = VIRTUAL_OPCODE if self.options.virtual_nodes else MAX_OPCODE
        if opcodes.ndim != 1 or (np.diff(opcodes, prepend=0) <= 0).any() or (opcodes > last).any():
            raise ValueError(f"opcodes={opcodes.tolist()}: expected increasing opcodes in 1..{last}")
        shape = (len(opcodes) + 1, self.options.opcode_width)
        if self.opcode_embedding.shape != shape or not np.isfinite(self.opcode_embedding).all():
            found = self.opcode_embedding.shape
            raise ValueError(f"opcode_embedding: expected finite numbers of shape {shape}, found shape {found}")
        if (self.tile_columns is None) != (self.kind == "layout"):
            raise ValueError(f"tile_columns: expected a transform for tiles only, found another in {self.collection}")
        for key, columns, limit in (
            ("node_columns", self.node_columns, NUMERIC_COLUMNS + len(self.extra_columns)),
            ("tile_columns", self.tile_columns, TILE_FEATURES + len(tile_names(self.options.derived))),
        ):
            if columns is not None and (columns.columns >= limit).any():
                raise ValueError(f"{key}.columns: expected columns below {limit}, found {columns.columns[-1]}")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _check_computed(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Check that the computed values in spec.json agree with the values that they are computed from."""
        stated = {key: values[key] for key in _COMPUTED if key in values} if isinstance(values, dict) else {}
        spec = validate({key: value for key, value in values.items() if key not in stated} if stated else values)
        for key, value in stated.items():
            if value != (expected := getattr(spec, key)):
                raise ValueError(f"{key}={value}: expected {expected}, computed from the other values")
        return spec

    @property
    def kind(self) -> Kind:
        """Kind of the configurations."""
        return self.collection.kind

    @computed_field  # type: ignore[prop-decorator]  # mypy supports no decorator above a property
    @property
    def extra_columns(self) -> list[str]:
        """Names of the numeric columns beyond the 134."""
        return extra_columns(self.options)

    @computed_field  # type: ignore[prop-decorator]  # mypy supports no decorator above a property
    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content: specifications of equal fingerprint give equal features."""
        return files.fingerprint(self.model_dump(mode="json", exclude={"inputs", "fingerprint"}))

    def opcode_index(self, opcodes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the vocabulary index of each opcode, uint8, 0 for unknown ones."""
        table = np.zeros(VIRTUAL_OPCODE + 1, dtype=np.uint8)
        table[self.opcodes] = np.arange(1, len(self.opcodes) + 1)
        return table[opcodes]

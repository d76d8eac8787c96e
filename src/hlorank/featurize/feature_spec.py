"""Specification of features: values fitted on the train split that featurize any graph in the same way."""

from contextlib import suppress
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from hlorank import files
from hlorank.config import FeaturizeConfig, Section
from hlorank.config.section import refused
from hlorank.data.collection import Collection, Kind
from hlorank.data.configurations import TILE_FEATURES
from hlorank.data.graph import MAX_OPCODE
from hlorank.featurize.columns import NUMERIC_COLUMNS
from hlorank.featurize.tile_columns import tile_names


def _array(dtype: type[np.generic]) -> PlainValidator:
    """Return a validator that makes an array of a list of numbers, and leaves arrays as they are."""

    def check(value: object) -> NDArray[Any]:
        if isinstance(value, list | np.ndarray):
            with suppress(TypeError, ValueError, OverflowError):
                return np.asarray(value, dtype=dtype)
        raise PydanticCustomError("array", f"expected a list of {np.dtype(dtype).name} numbers")

    return PlainValidator(check)


_AS_LIST = PlainSerializer(lambda array: array.tolist(), when_used="json")
Float32Array = Annotated[NDArray[np.float32], _array(np.float32), _AS_LIST]
Float64Array = Annotated[NDArray[np.float64], _array(np.float64), _AS_LIST]
Int64Array = Annotated[NDArray[np.int64], _array(np.int64), _AS_LIST]
UInt8Array = Annotated[NDArray[np.uint8], _array(np.uint8), _AS_LIST]
BoolArray = Annotated[NDArray[np.bool_], _array(np.bool_), _AS_LIST]


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute sign(x) log(1 + |x|), which keeps order, sign and zero."""
    return np.sign(values) * np.log1p(np.abs(values))


class ColumnTransform(Section):
    """Selection of columns, and the affine map of each to numbers near zero: (f(x) - center) / scale."""

    columns: Int64Array  # (kept,) increasing, the raw columns kept
    logarithmic: BoolArray  # (kept,) f is `signed_log` where true, the identity elsewhere
    center: Float64Array  # (kept,) the number subtracted from each column
    scale: Float64Array  # (kept,) positive, the divisor of each column

    @model_validator(mode="after")
    def _check_arrays(self) -> Self:
        shapes = [array.shape for array in (self.columns, self.logarithmic, self.center, self.scale)]
        if len(set(shapes)) != 1 or self.columns.ndim != 1:
            raise ValueError(f"columns, logarithmic, center, scale: expected lists of one length, found {shapes}")
        if (np.diff(self.columns, prepend=-1) <= 0).any():
            raise ValueError(f"columns={self.columns.tolist()}: expected increasing column numbers")
        if not np.isfinite(self.center).all():
            raise ValueError(f"center={self.center.tolist()}: expected finite numbers")
        if not (np.isfinite(self.scale) & (self.scale > 0)).all():
            raise ValueError(f"scale={self.scale.tolist()}: expected positive numbers")
        return self

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform raw values (rows, raw columns) to (rows, kept) float32."""
        kept = values[:, self.columns].astype(np.float64, order="C")
        kept[:, self.logarithmic] = signed_log(kept[:, self.logarithmic])
        return ((kept - self.center) / self.scale).astype(np.float32)


def _collection(value: object) -> Collection:
    return value if isinstance(value, Collection) else Collection.parse(str(value))


class FeatureSpec(Section):
    """Transformation of raw graphs into model inputs, fitted on the train split only: the content of spec.json."""

    # version of the format; increment it if equal specifications would give other features, or if keys change
    version: Literal[7] = 7
    # collection that it was fitted on
    collection: Annotated[Collection, PlainValidator(_collection), PlainSerializer(str)]
    backend: str = ""  # backend of its programs, which the collection's name or its manifest says; else empty
    runtimes: str = ""  # what its runtimes are, such as "measured on cpu, ..."; empty where it is not known
    options: FeaturizeConfig  # settings that it was fitted with
    # transform of the first 134 node features; the other six are layouts
    node_columns: ColumnTransform
    # transform of the 24 features of tile configurations and the columns derived from them; None for layouts
    tile_columns: ColumnTransform | None
    # (vocabulary,) increasing, the known opcodes seen in train; index 0 of the vocabulary is kept for all others
    opcodes: UInt8Array
    # (vocabulary + 1, opcode_width) the embeddings, row 0 for unknown opcodes; zeros for opcodes without edges in train
    opcode_embedding: Float32Array
    # (graphs, features) of the graphs of train, and the distance beyond which a graph is unlike them, see `likeness`;
    # none and 0 where it is not known
    trained_graphs: Float64Array = Field(default_factory=lambda: np.zeros((0, 0)))
    trained_limit: float = 0.0
    inputs: str  # fingerprint of the options and the raw files that it was fitted on

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        opcodes = self.opcodes.astype(np.int64)
        if opcodes.ndim != 1 or (np.diff(opcodes, prepend=0) <= 0).any() or (opcodes > MAX_OPCODE).any():
            raise ValueError(f"opcodes={opcodes.tolist()}: expected increasing opcodes in 1..{MAX_OPCODE}")
        shape = (len(opcodes) + 1, self.options.opcode_width)
        if self.opcode_embedding.shape != shape or not np.isfinite(self.opcode_embedding).all():
            found = self.opcode_embedding.shape
            raise ValueError(f"opcode_embedding: expected finite numbers of shape {shape}, found shape {found}")
        if (self.tile_columns is None) != (self.kind == "layout"):
            raise ValueError(f"tile_columns: expected a transform for tiles only, found another in {self.collection}")
        for key, columns, limit in (
            ("node_columns", self.node_columns, NUMERIC_COLUMNS),
            ("tile_columns", self.tile_columns, TILE_FEATURES + len(tile_names(self.options.derived))),
        ):
            if columns is not None and (columns.columns >= limit).any():
                raise ValueError(f"{key}.columns: expected columns below {limit}, found {columns.columns[-1]}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_earlier(cls, values: Any) -> Any:
        """Read specifications without a backend, with `protobuf`, or of 0.2, in which `layout_moves` were costs."""
        if not isinstance(values, dict) or not isinstance(options := values.get("options"), dict):
            return values
        if options.get("protobuf"):
            expected = "false, as features beyond the 140 are no longer read; train the model again"
            raise refused(expected, key="options.protobuf", value=options["protobuf"])
        backend = values.get("backend") or _collection(values.get("collection", "")).backend
        options = {key: value for key, value in options.items() if key != "protobuf"}
        if values.get("version") == 6:
            if "layout_moves" in options.get("derived", []) and backend.startswith("tpu"):
                raise ValueError("version=6: of a TPU, layout_moves were costs of copies; train the model again")
            derived = ["layout_costs" if name == "layout_moves" else name for name in options.get("derived", [])]
            options |= {"operand_layouts": True, "derived": derived}
            values = {key: value for key, value in values.items() if key not in ("extra_columns", "fingerprint")}
            values |= {"version": 7}
        return values | {"options": options, "backend": backend}

    @property
    def on_tpu(self) -> bool:
        """True if its programs run on TPUs."""
        return self.backend.startswith("tpu")

    @property
    def kind(self) -> Kind:
        """Kind of the configurations."""
        return self.collection.kind

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content: specifications of equal fingerprint give equal features."""
        return files.fingerprint(
            self.model_dump(mode="json", exclude={"inputs", "runtimes", "trained_graphs", "trained_limit"})
        )

    def opcode_index(self, opcodes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the vocabulary index of each opcode, uint8, 0 for unknown ones."""
        table = np.zeros(MAX_OPCODE + 1, dtype=np.uint8)
        table[self.opcodes] = np.arange(1, len(self.opcodes) + 1)
        return table[opcodes]

"""Trained models on disk: weights as safetensors, the rest as JSON; nothing is pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

import torch
from safetensors.torch import load_file, save
from torch import nn

from hlorank import __version__
from hlorank.config import ConfigError, ModelConfig, PartitionConfig, Section, parse
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, sha256_file, write_atomic, write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import InputSizes

_WEIGHTS_DIGEST, _SPEC_DIGEST = "weights_sha256", "spec_sha256"


@dataclass(frozen=True)
class Spec:
    """What a trained model of any kind is, and what it needs to score a graph.

    Attributes:
        version: of hlorank.
        collection: address of the collection that it was trained on.
        method: how it was trained.
        data: fingerprint of the data that it was trained on.
        steps: optimizer steps taken, trees, or iterations of a solver; 1 for a rule, which takes none; 0 for a model
            that found nothing to train on.
        features: how raw graphs become inputs.
    """

    version: str
    collection: str
    method: str
    data: str
    steps: int
    features: FeatureSpec

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["features"] = self.features.to_json()
        return {
            name: value.model_dump(mode="json") if isinstance(value, Section) else value
            for name, value in plain.items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            DataError: a key is missing, unknown or of a wrong type.
        """
        if value.keys() != cls.__dataclass_fields__.keys():
            raise DataError("keys", f"{sorted(cls.__dataclass_fields__)}", sorted(value))
        parts = dict(value)
        for key, kind in get_type_hints(cls).items():
            plain = kind if kind in (str, int, bool) else dict
            if type(value[key]) is not plain:
                raise DataError(key, f"JSON that Python reads as {plain.__name__}", value[key])
            if kind is FeatureSpec:
                parts[key] = FeatureSpec.from_json(value[key])
            elif plain is dict:
                try:
                    parts[key] = parse(kind, value[key])
                except ConfigError as error:
                    raise DataError(key, f"the values of a {kind.__name__}", error) from None
        return cls(**parts)


@dataclass(frozen=True)
class ModelSpec(Spec):
    """What a trained cost model is.

    Attributes:
        model: widths, layers and pooling.
        aggregation: of segment embeddings.
        whole_graph: graphs are scored as one segment; otherwise as the segments of `partition`.
        partition: fingerprint of the partition, empty for whole graphs.
        cut: how to cut a graph that is in no store, as those of `partition` were; of no use for whole graphs.
        members: models of this kind in the folder, an ensemble if there are several.
    """

    model: ModelConfig
    aggregation: str
    whole_graph: bool
    partition: str
    cut: PartitionConfig
    members: int


AnySpec = TypeVar("AnySpec", bound=Spec)


def input_sizes(spec: FeatureSpec) -> InputSizes:
    """The sizes of the inputs that a feature specification makes."""
    tile_columns = 0 if spec.tile_columns is None else len(spec.tile_columns.columns)
    return InputSizes(spec.kind, len(spec.node_columns.columns), len(spec.opcodes) + 1, tile_columns)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """What spec.json holds: a JSON object with the SHA-256 of the rest of it, as JSON with sorted keys and no blanks.

    Args:
        value: the object; a digest that it holds already is replaced.
    """
    content = {key: part for key, part in value.items() if key != _SPEC_DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**content, _SPEC_DIGEST: hashlib.sha256(text.encode()).hexdigest()}


def save_folder(folder: Path, weights: bytes, spec: Spec) -> None:
    """Writes weights and specification, each file in one step; the latter holds the SHA-256 of both."""
    write_atomic(folder / WEIGHTS, lambda file: file.write(weights))
    write_json(folder / SPEC, sealed({**spec.to_json(), _WEIGHTS_DIGEST: sha256_file(folder / WEIGHTS)}))


def _check_origin(value: Mapping[str, Any]) -> None:
    """Raises DataError for what another minor version of hlorank wrote, and for what was changed since."""
    version = str(value.get("version"))
    if version.split(".")[:2] != __version__.split(".")[:2]:
        remedy = f"{version}; train it again, or install hlorank {version}"
        raise DataError("version", f"that of this hlorank, {__version__}, but for the patch level", remedy)
    if (expected := sealed(value)[_SPEC_DIGEST]) != (found := value.get(_SPEC_DIGEST)):
        changed = f"{found}: it was changed since the training; take the original, or train again"
        raise DataError(_SPEC_DIGEST, f"{expected}, as the rest of the file says", changed)


def read_folder(folder: Path, kind: type[AnySpec]) -> tuple[AnySpec, Path]:
    """The specification of a model folder, and the path of its weights, which are what `save_folder` wrote.

    Raises:
        DataError: a file is missing, damaged or changed, another version of hlorank wrote it, or the specification is
            of another kind.
    """
    value, path = read_json(folder / SPEC), folder / WEIGHTS
    try:
        _check_origin(value)
        spec = kind.from_json({key: part for key, part in value.items() if key not in (_WEIGHTS_DIGEST, _SPEC_DIGEST)})
    except DataError as error:
        raise error.in_file(folder / SPEC) from None
    if not path.is_file():
        raise DataError("file", "the weights of a model", "no such file", file=path)
    if (found := sha256_file(path)) != (expected := value.get(_WEIGHTS_DIGEST)):
        raise DataError("sha256", f"{expected}, as {SPEC} says", found, file=path)
    return spec, path


def save_model(folder: Path, members: Sequence[CostModel], spec: ModelSpec) -> None:
    """Writes a cost model, or several as an ensemble; the names of weights begin with the number of their member."""
    weights = nn.ModuleList(members).state_dict()
    save_folder(folder, save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}), spec)


def load_model(folder: Path, device: torch.device) -> tuple[list[CostModel], ModelSpec]:
    """Reads what `save_model` wrote: the members, of which a model alone is the only one.

    Raises:
        DataError: a file is missing or damaged, or the weights do not fit the specification.
    """
    spec, path = read_folder(folder, ModelSpec)
    try:
        sizes = input_sizes(spec.features)
        members = [CostModel(spec.model, sizes, spec.aggregation).to(device) for _ in range(spec.members)]
    except ConfigError as error:
        raise DataError("model", "a model that can be built", error, file=folder / SPEC) from None
    try:
        nn.ModuleList(members).load_state_dict(load_file(path))
    except RuntimeError as error:
        raise DataError("weights", f"the weights that {SPEC} describes", error, file=path) from None
    return [member.eval() for member in members], spec

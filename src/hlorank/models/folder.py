"""Trained models on disk: weights as safetensors, the rest as JSON; nothing is pickled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import load_file, save

from hlorank.config import ConfigError, ModelConfig
from hlorank.featurize.spec import FeatureSpec
from hlorank.io import DataError, read_json, sha256_file, write_atomic, write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import InputSizes

WEIGHTS, SPEC = "weights.safetensors", "spec.json"
_SHA256 = "weights_sha256"


@dataclass(frozen=True)
class ModelSpec:
    """What a trained model is, and what it needs to score a graph.

    Attributes:
        version: of hlorank.
        collection: address of the collection that it was trained on.
        method: how its segments were trained.
        model: widths, layers and pooling.
        aggregation: of segment embeddings.
        whole_graph: graphs are scored as one segment; otherwise as the segments of `partition`.
        partition: fingerprint of the partition, empty for whole graphs.
        data: fingerprint of the data that it was trained on.
        steps: optimizer steps taken; 0 for a model that found nothing to train on.
        features: how raw graphs become inputs.
    """

    version: str
    collection: str
    method: str
    model: ModelConfig
    aggregation: str
    whole_graph: bool
    partition: str
    data: str
    steps: int
    features: FeatureSpec

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"model": asdict(self.model), "features": self.features.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelSpec:
        """The inverse of `to_json`.

        Raises:
            DataError: a key is missing, unknown or of a wrong type.
        """
        if value.keys() != cls.__dataclass_fields__.keys():
            raise DataError("keys", f"{sorted(cls.__dataclass_fields__)}", sorted(value))
        for key, kind in get_type_hints(cls).items():
            plain = kind if kind in (str, int, bool) else dict
            if type(value[key]) is not plain:
                raise DataError(key, f"JSON that Python reads as {plain.__name__}", value[key])
        try:
            model = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), value["model"]))
        except OmegaConfBaseException as error:
            raise DataError("model", "the values of a model configuration", error) from None
        return cls(**value | {"model": model, "features": FeatureSpec.from_json(value["features"])})


def input_sizes(spec: FeatureSpec) -> InputSizes:
    """The sizes of the inputs that a feature specification makes."""
    tile_columns = 0 if spec.tile_columns is None else len(spec.tile_columns.columns)
    return InputSizes(spec.kind, len(spec.node_columns.columns), len(spec.opcodes) + 1, tile_columns)


def save_model(folder: Path, model: CostModel, spec: ModelSpec) -> None:
    """Writes weights and specification, each file in one step; the specification holds the weights' SHA-256."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomic(folder / WEIGHTS, lambda file: file.write(save(weights)))
    write_json(folder / SPEC, {**spec.to_json(), _SHA256: sha256_file(folder / WEIGHTS)})


def load_model(folder: Path, device: torch.device) -> tuple[CostModel, ModelSpec]:
    """Reads what `save_model` wrote.

    Raises:
        DataError: a file is missing or damaged, or the weights do not fit the specification.
    """
    value, path = read_json(folder / SPEC), folder / WEIGHTS
    expected = value.pop(_SHA256, None)
    try:
        spec = ModelSpec.from_json(value)
        model = CostModel(spec.model, input_sizes(spec.features), spec.aggregation)
    except ConfigError as error:
        raise DataError("model", "a model that can be built", error, file=folder / SPEC) from None
    except DataError as error:
        raise error.in_file(folder / SPEC) from None
    if not path.is_file():
        raise DataError("file", "the weights of a model", "no such file", file=path)
    if (found := sha256_file(path)) != expected:
        raise DataError("sha256", f"{expected}, as {SPEC} says", found, file=path)
    try:
        model.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise DataError("weights", f"the weights that {SPEC} describes", error, file=path) from None
    return model.to(device), spec

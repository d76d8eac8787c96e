"""Trained models on disk: weights as safetensors, the rest as JSON; nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StrictBool, StrictInt, model_validator

from hlorank.config import ConfigError, ModelConfig, PartitionConfig, Section, parse
from hlorank.config.extension_point import import_plugins_of_model
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, sha256_file, write_atomic, write_json
from hlorank.models.graph_inputs import InputSizes
from hlorank.version import __version__

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hlorank.models.cost_model import CostModel

log = logging.getLogger(__name__)

_DIGESTS = _WEIGHTS_DIGEST, _SPEC_DIGEST = "weights_sha256", "spec_sha256"
_READABLE = "0.2"
"""Minor versions of hlorank whose models are read."""
_AGAIN = "train it again, or install hlorank"


class Spec(Section):
    """The specification of a trained model of any kind: its origin, and all that scoring a graph needs."""

    model_config = ConfigDict(coerce_numbers_to_str=False)

    version: str  # version of hlorank
    collection: str  # address of the collection that it was trained on
    method: str  # training method or baseline
    data: str  # fingerprint of the data that it was trained on
    steps: StrictInt  # optimizer steps, trees, or iterations of a solver; 1 for a rule
    # modules of other packages that the training named, each with the digest of its source code
    plugins: dict[str, str] = Field(default_factory=dict)
    features: FeatureSpec  # transformation of raw graphs into inputs


class ModelSpec(Spec):
    """The specification of a trained cost model."""

    model: ModelConfig  # widths, layers and pooling
    aggregation: Literal["mean", "sum"]  # aggregation of segment embeddings
    whole_graph: StrictBool  # graphs are scored as one segment; otherwise as the segments of `partition`
    partition: PartitionConfig  # options of the partition of graphs; without meaning for whole graphs
    partition_fingerprint: str  # fingerprint of the partition of the training, empty for whole graphs
    members: StrictInt = Field(ge=1)  # number of models of this kind in the folder, above 1 for an ensemble
    baselines: list[str] = Field(default_factory=list)  # baselines in the folder that are blended with the models
    # the weights of the mean of the models, 0 where baselines alone rank better, and of each baseline; empty for equal
    weights: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _rename_keys(cls, value: Any) -> Any:
        """Read one of 0.2 in which `layout_costs` are `layout_moves`, and segments have a halo of no hops."""
        if isinstance(value, dict) and "layout_moves" in (model := value.get("model") or {}):
            value = value | {"model": {"layout_costs" if key == "layout_moves" else key: model[key] for key in model}}
        if isinstance(value, dict) and isinstance(cut := value.get("partition"), dict) and cut.get("halo") == 0:
            value = value | {"partition": {key: cut[key] for key in cut if key != "halo"}}
        return value


AnySpec = TypeVar("AnySpec", bound=Spec)


def input_sizes(spec: FeatureSpec) -> InputSizes:
    """Return the sizes of the inputs that a feature specification makes."""
    tile_columns = 0 if spec.tile_columns is None else len(spec.tile_columns.columns)
    columns, opcodes = len(spec.node_columns.columns), len(spec.opcodes) + 1
    return InputSizes(spec.kind, columns, opcodes, tile_columns, spec.on_tpu)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its other entries, as JSON with sorted keys and no spaces."""
    content = {key: part for key, part in value.items() if key != _SPEC_DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**content, _SPEC_DIGEST: hashlib.sha256(text.encode()).hexdigest()}


def save_folder(folder: Path, weights: bytes, spec: Spec) -> None:
    """Write weights and specification, each file atomically; the latter holds the SHA-256 of both."""
    write_atomic(folder / WEIGHTS, lambda file: file.write(weights))
    write_json(folder / SPEC, sealed({**spec.model_dump(mode="json"), _WEIGHTS_DIGEST: sha256_file(folder / WEIGHTS)}))


def checked_spec(folder: Path) -> dict[str, Any]:
    """Return spec.json of a model folder of any kind; a file of another version, or changed since, is a DataError."""
    value, path = read_json(folder / SPEC), folder / SPEC
    version = str(value.get("version"))
    if version.split(".")[:2] != _READABLE.split("."):
        known = f"a version that hlorank {__version__} reads, {_READABLE}"
        raise DataError("version", known, f"{version}; {_AGAIN} {version}", file=path)
    try:
        expected = sealed(value)[_SPEC_DIGEST]
    except (ValueError, RecursionError) as error:  # a number that is not finite, values nested too deeply
        raise DataError("file", "the specification of a model", error, file=path) from None
    if expected != (found := value.get(_SPEC_DIGEST)):
        changed = f"{found}: the file was changed after training; take the original, or train again"
        raise DataError(_SPEC_DIGEST, f"{expected}, the digest of the rest of the file", changed, file=path)
    return value


def read_folder(folder: Path, kind: type[AnySpec]) -> tuple[AnySpec, Path]:
    """Return the specification of a model folder, and the path of its weights, whose digest is checked."""
    value, path = checked_spec(folder), folder / WEIGHTS
    try:
        spec = parse(kind, {key: part for key, part in value.items() if key not in _DIGESTS})
        changed = import_plugins_of_model(spec.plugins)
    except ConfigError as error:
        found = "; ".join([*str(error).splitlines(), f"{_AGAIN} {value['version']}"])
        raise DataError("keys", f"the keys of a {kind.__name__}", found, file=folder / SPEC) from None
    except DataError as error:
        raise error.in_file(folder / SPEC) from None
    if not path.is_file():
        raise DataError("file", "the weights of a model", "no such file", file=path)
    if (found := sha256_file(path)) != (expected := value.get(_WEIGHTS_DIGEST)):
        raise DataError("sha256", f"{expected}, as in {SPEC}", found, file=path)
    for name in changed:
        log.warning("%s: trained with other source code of %s than the installed code", folder, name)
    return spec, path


def save_model(
    folder: Path, members: Sequence[CostModel], spec: ModelSpec, baselines: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Write an ensemble; names of weights begin with the number of a member, or the name and number of a baseline."""
    import torch
    from safetensors.torch import save

    weights = torch.nn.ModuleList(members).state_dict()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    tensors |= {name: torch.from_numpy(array) for name, array in (baselines or {}).items()}
    save_folder(folder, save(tensors), spec)


def load_model(folder: Path, device: torch.device) -> tuple[list[CostModel], ModelSpec]:
    """Read the members of a model folder, one or more, and its specification."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from hlorank.models.cost_model import CostModel

    spec, path = read_folder(folder, ModelSpec)
    sizes = input_sizes(spec.features)
    try:
        # Without memory, as the specification may ask for any width. Constructors avoid what makes PyTorch import its
        # compiler for this device, which takes a second: torch.arange, torch.stack, nn.Embedding.
        with torch.device("meta"):
            expected = CostModel(spec.model, sizes, spec.aggregation).state_dict()
    except (ConfigError, RuntimeError, TypeError, OverflowError) as error:
        raise DataError("model", "a model that can be built", error, file=folder / SPEC) from None
    try:
        weights = load_file(path)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise DataError("file", "weights as safetensors", error, file=path) from None
    weights = {name: tensor for name, tensor in weights.items() if name.partition(".")[0] not in spec.baselines}
    _check_weights(weights, expected, spec.members, path)
    members = [CostModel(spec.model, sizes, spec.aggregation).to(device) for _ in range(spec.members)]
    torch.nn.ModuleList(members).load_state_dict(weights)
    return [member.eval() for member in members], spec


def _check_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], members: int, path: Path) -> None:
    """Check weights, which are finite, against `expected`, of one member, before the members are built."""
    if (count := members * len(expected)) != len(weights):
        described = f"the weights that {SPEC} describes, {count:,} tensors of {members:,} members"
        raise DataError("weights", described, f"{len(weights):,}", file=path)
    for member, (name, tensor) in product(range(members), expected.items()):
        found = weights.get(f"{member}.{name}")
        if found is None or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            described = f"the weights that {SPEC} describes, {tensor.dtype} of shape {[*tensor.shape]}"
            shown = "none" if found is None else f"{found.dtype} of shape {[*found.shape]}"
            raise DataError(f"weights {member}.{name}", described, shown, file=path)
        if not found.isfinite().all():
            raise DataError(f"weights {member}.{name}", "finite numbers", "others; train again", file=path)

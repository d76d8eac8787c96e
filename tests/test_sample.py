"""The committed collections agree with their documentation: complete, split by model family, measured, small."""

from pathlib import Path
from typing import NamedTuple

import pytest

from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph, sidecar_path
from hlorank.data.splits import family_of
from hlorank.fetch.origins import fetch
from hlorank.files import read_json
from hlorank.stages.command import load_composed
from tests.sections import composed

ROOT = Path(__file__).parents[1]


class Committed(NamedTuple):
    """A committed tree of collections, and what its documentation promises."""

    folder: str
    """In data; that of its file in conf/data as well."""
    overrides: tuple[str, ...]
    """Of the pipeline that runs on all of it."""
    least: dict[str, int]
    """Smallest number of graphs of each collection."""
    least_tau: float
    """Smallest split-half tau."""
    valid: set[str]
    test: set[str]
    """Families in valid and in test, of those that are measured."""
    least_held_out: int
    """Smallest number of families in valid and test together."""


LEAST = {"layout/cpu/random": 40, "layout/cpu/default": 20, "tile/cpu": 120}
LEAST |= {
    "layout/tpu-v3/random": 120,
    "layout/tpu-v3/default": 120,
    "layout/tpu-v3/outputs": 120,
    "layout/tpu-v5e/outputs": 60,
}
VALID = {"densenet", "gru", "dlrm", "inception", "squeeze", "nerf", "superres", "triangles"}
TEST = {"unet", "unet1d", "unet2d", "unet3d", "causal", "mixer", "experts", "speech"}
TREES = [
    Committed("sample", (), LEAST, 0.7, VALID, TEST, 6),
    # The tau is only reported: another core was in use.
    Committed("models", ("experiment=models",), {"layout/cpu/models": 1}, -1, VALID, TEST | {"gpt", "mlp_mixer"}, 1),
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.folder)
def test_a_tree_is_small_measured_well_and_split_by_family_and_its_pipeline_runs_on_all_of_it(
    tree: Committed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ROOT / "data" / tree.folder
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < 8e6
    config = load_composed(composed(*tree.overrides))
    present = {path.parent.relative_to(root).as_posix() for path in root.rglob("*.npz")}
    assert {*config.pipeline.layout, *config.pipeline.tile} <= tree.least.keys() == present
    assert config.collection in config.pipeline.layout
    monkeypatch.chdir(ROOT)  # the folder that its paths are relative to
    for address, least in tree.least.items():
        collection = Collection.parse(address)
        graphs = graph_files(root, collection, None)
        assert len(graphs) >= least
        assert sorted((root / collection.path).glob("*.json")) == sorted(map(sidecar_path, graphs))
        for path in graphs:
            measured, about = read_graph(path, collection.kind), read_json(sidecar_path(path))
            assert not measured.measurements.withheld, path.stem
            assert len(measured.measurements.runtime) == about["measured"], path.stem
            assert tree.least_tau <= about["split_half_tau"] <= 1, path.stem
            assert (about.get("cpu") or about["device"]).strip(), path.stem
            assert path.stem.split(".")[0] == about["family"], path.stem
        fetch(collection, config.data, tmp_path / collection.path)
        train, valid, test = ({*map(family_of, graph_files(tmp_path, collection, split))} for split in SPLITS)
        assert train
        assert len(valid | test) >= tree.least_held_out
        assert valid <= tree.valid
        assert test <= tree.test
        assert not train & (tree.valid | tree.test)

"""Data and models are used in place on a file system that can only be read: no locks, no caches, no records."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.config import Config
from hlorank.data.collection import SPLITS
from hlorank.fetch.tpugraphs import MANIFEST
from hlorank.files import write_json
from hlorank.stages.train import train
from tests.data.npz_files import save, tile_arrays

_STORE = r"""
import contextlib, json, sys
from pathlib import Path
import numpy as np
from omegaconf import OmegaConf
from hlorank import Evaluator, datasets
from hlorank.cli.main import main
from hlorank.config import load
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.local import LocalConfig, fetch
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train

config, store, output = load(OmegaConf.create(json.loads(sys.argv[1]))), Path(sys.argv[2]), Path(sys.argv[3])
collection = Collection.parse(config.collection)
raw = store / "raw" / collection.path
file = next(raw.rglob("*.npz"))
for write in ((raw / "new").touch, lambda: file.open("ab"), file.unlink):
    with contextlib.suppress(PermissionError):
        write()
        sys.exit("the store can be written")

data = datasets.load(config.collection, store / "raw")
assert [len(graph.configurations([0])) for graph in data.train] == [1] * len(data.train)
tpu = datasets.load("tile/xla", cache=store / "cache")
assert [graph.name for graph in tpu.valid] == ["valid"]
evaluator = Evaluator(config.collection, store / "raw")
evaluator.eval({name: np.arange(rows) for name, rows in evaluator.configurations.items()})
local = LocalConfig(root=str(store / "raw"), split_file=None, folds=3, fold=0, collections=[])
fetch(collection, local, output / "raw")
featurize_collection(store / "raw", collection, config.featurize, output / "features")
partition_collection(store / "features" / collection.path, config.partition, output / "segments")
train(config, output / "model")
evaluate(config, store / "model", output / "report")
assert main(["rank", "--model", str(store / "model"), *map(str, raw.rglob("*.npz"))]) == 0
"""


@pytest.mark.slow
def test_a_store_is_read_in_place(tiny_collections: Path, settings: Callable[..., Config], tmp_path: Path) -> None:
    """The kernel refuses writes, to root too: without the right to ignore permissions of files."""
    store, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(tiny_collections, store)
    folders = {f"paths__{name}": store / name for name in ("raw", "features", "segments")}
    config = settings(method="gst", trainer__max_epochs=1, paths__state=output / "state", **folders)
    train(config, store / "model")
    (store / "model" / "run.json").unlink()  # the model of somebody else, whose run another store has
    contents = dict[str, Any]()
    for split in SPLITS:
        (store / "cache" / "tile" / "xla" / split).mkdir(parents=True)
        save(store / "cache" / "tile" / "xla" / split / f"{split}.npz", tile_arrays())
        contents[split] = {"archive": None, "files": {f"{split}.npz": ""}}
    write_json(store / "cache" / "tile" / "xla" / MANIFEST, contents)
    files = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}
    for path in (store, *files):
        path.chmod(path.stat().st_mode & ~0o222)
    rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*rights, sys.executable, "-c", _STORE, json.dumps(config.model_dump(mode="json")), store, output],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")} == files
        assert {path.name for path in output.iterdir()} == {"features", "model", "raw", "report", "segments", "state"}
    finally:
        for path in (store, *files):
            path.chmod(path.stat().st_mode | 0o200)

"""The embedding table within its budget, at the size of layout:xla.

There are 69 graphs of 14,000 nodes, 1,000 configurations of each, and segments of 500 nodes.
Graphs, configurations, segments and the draws of the steps are those of a training of gst_e with one segment that has
gradient; only the embeddings are zeros, as no model runs. So hits, ages and bytes are those of the training, by search,
width and number type: over the whole training and in its last tenth, where the table is warm. The resident bytes of the
process that the table adds are measured next to those by which it keeps its budget.

A row of the figures is not measured again. Each takes about 15 minutes of CPU time, the quick form one in all.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from hydra import compose, initialize_config_dir
from rich.progress import track

from hlorank.config import Config, load
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.origins import fetch
from hlorank.files import read_json, write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.serialization import input_sizes
from hlorank.partition.partition_collection import partition_collection
from hlorank.training.gst.embedding_table import EmbeddingTable, entry_keys
from hlorank.training.methods import METHODS
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import StepPlanner

ROOT = Path(__file__).resolve().parents[1]
TABLES = ((64, "float32"), (256, "float16"), (256, "float32"))
"""Width and number type of the embeddings."""


@dataclass
class Use:
    """Use of a table over some steps.

    Attributes:
        looked_up: embeddings that were looked up.
        found: those among them that the table had.
        used: stale embeddings in the aggregates.
        staleness: sum of their ages in steps.
    """

    looked_up: int = 0
    found: int = 0
    used: int = 0
    staleness: int = 0

    def figures(self) -> dict[str, float]:
        """Return the hit rate, and the mean age in steps."""
        rate = self.found / self.looked_up
        return {"hit_rate": round(rate, 4), "staleness_steps": round(self.staleness / self.used)}


def resident_bytes() -> int:
    """Return the resident bytes of this process, without those of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def settings(search: str, root: Path, *, quick: bool) -> Config:
    """Compose the configuration of a training."""
    nodes = 1400 if quick else 14_000
    values: dict[str, Any] = {
        "experiment": "synthetic", "collection": f"layout/synthetic/{search}", "method": "gst_e",
        "data.synthetic.train": 69, "data.synthetic.valid": 0, "data.synthetic.test": 0,
        "data.synthetic.min_nodes": nodes, "data.synthetic.max_nodes": nodes,
        "data.synthetic.configurations": 100 if quick else 1000, "data.synthetic.repeated": 0,
        "featurize.prune_hops": "null", "partition.max_nodes": nodes // 28,
        "segments.configs_per_graph": 1000, "trainer.configs_per_step": 16,
    }  # fmt: skip
    values |= {f"paths.{name}": root / name for name in ("raw", "features", "segments")}
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load(compose("config", overrides=[f"{key}={value}" for key, value in values.items()]))


def steps_of(config: Config) -> StepData:
    """Make the collection, and return the steps of a training on it."""
    collection, paths = Collection.parse(config.collection), config.paths
    features, segments = (Path(place) / collection.path for place in (paths.features, paths.segments))
    fetch(collection, config.data, Path(paths.raw) / collection.path)
    featurize_collection(Path(paths.raw), collection, config.featurize, features)
    partition_collection(features, config.partition, segments)
    graphs = GraphLoader(features, segments)
    model = CostModel(config.model, input_sizes(graphs.store.spec), config.segments.aggregation)
    return StepData(graphs, StepPlanner.of(model, METHODS["gst_e"]), config.trainer, config.segments, config.seed)


def simulate(data: StepData, table: EmbeddingTable, width: int, steps: int, title: str) -> dict[str, Any]:
    """Read and write the table as the steps of gst_e do, and return its use."""
    before, whole, last = resident_bytes(), Use(), Use()
    for now in track(range(steps), description=title, transient=True):
        step = data.step(*divmod(now, data.graphs_per_epoch))
        local = np.asarray(step.graph.partition.local_codes[step.rows]).T
        keys = entry_keys(step.number, np.arange(len(local))[:, None], local)
        present = np.stack([table.look_up(row) for row in keys.tolist()])
        stale = np.ones(present.shape, dtype=np.bool_)
        stale[step.with_gradient] = False
        computed = np.unique(keys[stale & ~present])
        table.write(computed.tolist(), torch.zeros(len(computed), width), now)
        used = np.unique(keys[stale])
        _, written = table.read(used.tolist())
        for use in (whole, last) if now >= steps * 9 // 10 else (whole,):
            use.looked_up += present.size
            use.found += int(present.sum())
            use.used += len(used)
            use.staleness += int((now - written).sum())
        fresh = np.unique(keys[step.with_gradient])
        table.write(fresh.tolist(), torch.zeros(len(fresh), width), now)
    return {
        **whole.figures(),
        **{f"warm_{key}": value for key, value in last.figures().items()},
        "entries": len(table),
        "bytes": table.bytes,
        "resident_bytes": resident_bytes() - before,
    }


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the nodes, configurations and steps")
    parser.add_json()
    arguments = parser.parse_args()
    steps = 2000 if arguments.quick else 20_000
    kept = read_json(arguments.json) if arguments.json and arguments.json.exists() else {}
    rows = kept["rows"] if kept.get("steps") == steps else []
    for search in ("random", "default"):
        done = {(row["width"], row["dtype"]) for row in rows if row["search"] == search}
        if done.issuperset(TABLES):
            continue
        with tempfile.TemporaryDirectory() as folder:
            config = settings(search, Path(folder), quick=arguments.quick)
            data = steps_of(config)
            entries, budget = sum(data.table_entries().values()), config.segments.table_bytes
            for width, dtype in TABLES:
                if (width, dtype) in done:
                    continue
                table = EmbeddingTable(width, budget // (10 if arguments.quick else 1), dtype)
                use = simulate(data, table, width, steps, f"{search}, width {width}, {dtype}")
                rows.append({"search": search, "width": width, "dtype": dtype, "working_sets": entries, **use})
                print(rows[-1], flush=True)
                if arguments.json:
                    write_json(arguments.json, {"graphs": 69, "steps": steps, "rows": rows})


if __name__ == "__main__":
    run(main)

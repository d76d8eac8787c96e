r"""Kendall tau of experiments by cross-validation over model families, and which of each two is ahead.

A cell is an experiment on a collection with one fold left out and one seed. It is trained on the other folds but one;
its epoch, and the settings of boosted trees, are chosen on that one, the fold before; its figures are those of the fold
left out. The folds of data/sample and data/models are those of their split files; the generated graphs of
layout/synthetic/random are each a family. In tile/xla one of 15 kernels is left out at a time, and three others choose.
layout/joined/random is the three collections of layout/cpu in one, on which one model trains, layout/tpu-v3/models
those of layout/tpu-v3; the tables of these have its figures, too, as those of "..., joined".

The layout/tpu-... ones are estimates of the compiler for TPUs, and the tables have two marks of what compiling each
configuration would tell, the padded bytes and the copies of the optimized module. layout/xla/outputs trains on those of
layout/tpu-v3/outputs and ranks the real programs that are published outside the archives of TpuGraphs; in
layout/xla/random each of these is left out once. After @ is the number of a collection's graphs that train beside
estimates of layout/tpu-v3/outputs: networks begin with the model of those and go on with these alone; after % is the
share of train, in percent. layout/keras/models trains on those of layout/cpu and ranks data/keras. "networks" is the
best experiment without the baselines blended with it.

Boosted trees (gradient_boosting, xgboost) have their settings chosen in each fold by Optuna, in the space of
conf/hparams_search/trees.yaml, once for all seeds. Networks have those of their file, and the same number of epochs of
80 steps, so that a busy machine changes no figure.

The first fold is done first, with one seed. Networks that are not among the first five on its valid, or are more than
0.05 behind the best, leave; the table says so. Valid decides, so no fold that is reported is looked at. Then the rest,
all folds with one seed, then with the next. A seed counts when it has all of an experiment's folds.

--try is for choosing: it scores the graphs of valid, not those left out.

A finished cell is a row of the results, by default benchmarks/results/folds.csv, whose key is its settings and a
fingerprint of its data; the figures of its graphs are rows of folds_graphs.csv next to it. It is not computed again.
Rows with another budget (CPU seconds, before commit 42ca19e) are shown too.

    python benchmarks/quality.py
    python benchmarks/quality.py --show --plot quality.svg
    python benchmarks/quality.py --collection tile/cpu --experiment best_tile \
        --fold 2 --seed 1 --results again.csv
    python benchmarks/quality.py --collection layout/cpu/random \
        --experiment best_layout --try loss=hinge model.width=32
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import comparison
import harness
import numpy as np
import pandas as pd
from folds import BUNDLED, COLLECTIONS, JOINED, NO_OPERANDS, TPU, Fold, address_of, available, folds_of, prepared

from hlorank.config import ConfigError, Split
from hlorank.data.collection import Collection, graph_files, read_graph, sidecar_path
from hlorank.files import fingerprint, read_json, write_json
from hlorank.metrics import kendall_tau
from hlorank.terminal import min_int

TREES = ("gradient_boosting", "xgboost")
NETWORKS = "networks"
RULES = ("linear_ranking", "analytical", "default_configuration", "random")
EXPERIMENTS = {
    "layout": (
        *("official_layout", "kaggle_1", "kaggle_1_random", "kaggle_2", "kaggle_4", "kaggle_5", "kaggle_6"),
        *("gst_paper", "best_layout", NETWORKS, *TREES, *RULES),
    ),
    "tile": (
        *("official_tile", "official_tile_late", "official_tile_resgcn", "official_tile_resgcn_late"),
        *("official_tile_mlp", "kaggle_1_tile", "kaggle_2_tile", "kaggle_5_tile", "kaggle_6_tile", "best_tile"),
        *(*TREES, "linear_ranking", "random"),
    ),
}
"""By the kind of collection that they are for."""
ALONE = ("ensemble.baselines=[]",)
CELL = ["collection", "experiment", "fold", "seed"]
COLUMNS = [
    *(*CELL, "split", "fingerprint", "parameters", "steps", "cpu_seconds", "valid_tau", "settings"),
    "machine_gflops",
]
FIGURES = ["kendall_tau", "opa", "slowdown_1", "slowdown_5", "slowdown_10", "noise_ceiling", "somers_d"]
SLOWDOWNS = ("slowdown_1", "slowdown_5", "slowdown_10")
MARKS = ("padded", "copies")
"""Of a TPU's optimized module, as the JSON file of an estimated graph has them."""
GRAPH_COLUMNS = ["fingerprint", "graph", "family", *FIGURES]
STAYING, MARGIN = 5, 0.05
"""Networks that stay after the first folds, at most, and how far behind the best valid tau they may be."""
FIRST = {"tile/xla": 3}
"""Number of the first folds, where it is not 1."""
FURTHER = ("trainer.max_epochs=2", "trainer.learning_rate=0.0003")
"""Of networks that go on from another collection's: 160 steps, at a third of their learning rate."""
TRIALS = 20
"""Trials of the search for the settings of boosted trees."""


class Cell(NamedTuple):
    """A row of the results: an experiment with its overrides on a fold; `split` is scored, test or valid."""

    fold: Fold
    experiment: str
    overrides: tuple[str, ...]
    seed: int
    split: Split
    work: Path

    def __str__(self) -> str:
        return f"{self.fold.collection} {self.experiment} {self.fold.number} {self.seed}"

    @property
    def place(self) -> tuple[Path, str]:
        """The folder of its prepared data, and their fingerprint."""
        found: tuple[Path, str] = prepared(self.fold, self.overrides, self.work)
        return found

    def config(self, *further: str) -> Any:
        """Return its configuration."""
        overrides = (*self.overrides, *further, f"evaluate.splits=[{self.split}]")
        collection = address_of(self.fold.collection).path.as_posix()
        return harness.composed(collection, overrides, self.seed, self.place[0], self.fold.data(self.work))

    @property
    def key(self) -> str:
        """The key of its row."""
        found: str = harness.training_key(self.config(), self.place[1])
        return found


def tuned(cell: Cell) -> Cell:
    """Return a cell of boosted trees with the settings that rank the valid of its fold best, and whole graphs."""
    import optuna
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from hlorank.runs.search import split
    from hlorank.stages.train import train

    if cell.experiment not in TREES:
        return cell
    file = cell.work / "searches" / f"{fingerprint([cell.experiment, cell.place[1]])}.json"
    if not file.exists():
        params = OmegaConf.load(harness.ROOT / "conf/hparams_search/trees.yaml").hydra.sweeper.params
        _, space = split(OverridesParser.create().parse_overrides([f"{key}={text}" for key, text in params.items()]))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        for _ in range(TRIALS):
            trial = study.ask(space)
            config = cell._replace(seed=0).config(*_settings(trial.params))
            tau = train(config, cell.place[0] / f"trial-{cell.experiment}")
            study.tell(trial, -1.0 if tau is None else tau)
        write_json(file, {"settings": _settings(study.best_params)})
    return cell._replace(overrides=(*cell.overrides, *read_json(file)["settings"]))


def _settings(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def started(cell: Cell) -> Cell:
    """Return a cell of networks that go on from another fold's, on the few graphs of its own, after that is trained."""
    if cell.fold.start is None or cell.experiment in (*TREES, *RULES):
        return cell
    start = cell._replace(fold=cell.fold.start)
    model, report = (start.place[0] / name / start.key for name in ("models", "reports"))
    harness.train_and_evaluate(start.config(), model, report)
    return cell._replace(fold=cell.fold.of_networks, overrides=(*cell.overrides, f"paths.pretrained={model}", *FURTHER))


def run_cell(cell: Cell) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train and evaluate, unless that is done; return the cell's row, and one for each graph.

    `NETWORKS` are those of the best experiment, which trains once for both.
    """
    key, own = cell.key, cell
    if cell.experiment == NETWORKS:
        kept = tuple(text for text in cell.overrides if text not in ALONE)
        own = cell._replace(experiment="best_layout", overrides=kept)
    model, report = (own.place[0] / name / own.key for name in ("models", "reports"))
    own = tuned(started(own))
    figures, graphs = harness.train_and_evaluate(own.config(), model, report)
    if cell.experiment == NETWORKS:
        figures["valid_tau"], graphs = harness.networks_alone(own.config(), model, report)
    settings = " ".join(own.overrides) if cell.experiment in TREES else ""
    named = (cell.fold.collection, cell.experiment, cell.fold.number, cell.seed)
    row = {**dict(zip(CELL, named, strict=True)), **figures, "split": cell.split, "fingerprint": key}
    graphs["family"], graphs["fingerprint"] = graphs["graph"].map(cell.fold.families), key
    records = graphs.reindex(columns=GRAPH_COLUMNS).to_dict("records")
    return row | {"settings": settings}, [{str(key): value for key, value in record.items()} for record in records]


def graphs_file(results: Path) -> Path:
    """Return the file of the figures of graphs that belongs to a file of results."""
    return results.with_name(f"{results.stem}_graphs.csv")


def rows_of(cells: Sequence[Cell], arguments: argparse.Namespace) -> pd.DataFrame:
    """Return the rows of cells, after those that are missing are computed; those that failed are left out."""
    known = set(harness.read_rows(arguments.results, COLUMNS)["fingerprint"])
    keys = {cell: cell.key for cell in cells}
    missing = [cell for cell, key in keys.items() if key not in known]
    for _, (row, graphs) in harness.in_processes(run_cell, missing, arguments.jobs, str):
        # First: a row without does not count.
        harness.append_rows(graphs_file(arguments.results), graphs, GRAPH_COLUMNS)
        harness.append_rows(arguments.results, [row], COLUMNS)
    rows: pd.DataFrame = harness.read_rows(arguments.results, COLUMNS)
    return rows[rows["fingerprint"].isin(keys.values())].drop_duplicates(CELL, keep="last")


def chosen(arguments: argparse.Namespace, collection: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each experiment that is asked for on a collection, by its name."""
    kind = address_of(collection).kind
    names = [name for name in arguments.experiment or EXPERIMENTS[kind] if name in EXPERIMENTS[kind]]
    data = ("featurize.operand_layouts=false",) if collection in NO_OPERANDS else ()
    budget = (f"trainer.max_epochs={arguments.epochs}", f"trainer.patience={arguments.epochs}", *data)
    if arguments.tried and names:
        tries = ([], *arguments.tried)
        return {" ".join([names[0], *tried]): (f"experiment={names[0]}", *budget, *tried) for tried in tries}
    # Baselines on whole graphs: the pooled features of pruned ones ranked valid worse.
    best = "experiment=best_layout_tpu" if collection in NO_OPERANDS else "experiment=best_layout"
    of_best = {"best_layout": (best, *budget), NETWORKS: (best, *ALONE, *budget)}
    return {
        name: (f"method={name}", "featurize.prune_hops=null", *data)
        if name in (*TREES, *RULES)
        else of_best.get(name, (f"experiment={name}", *budget))
        for name in names
    }


def scored(arguments: argparse.Namespace) -> Split:
    """Return the split whose graphs are scored: valid where something is chosen by it."""
    return "valid" if arguments.tried else "test"


def staying(valid_taus: Mapping[str, float]) -> list[str]:
    """Return the experiments that are continued after the first folds, by their mean Kendall tau on valid there.

    Networks stay if they are among the best and near the front; hlorank's own, trees and rules stay in any case.
    """
    others = (*TREES, *RULES)
    networks = sorted((name for name in valid_taus if name not in others), key=lambda name: -valid_taus[name])
    front = [name for name in networks[:STAYING] if valid_taus[name] >= max(valid_taus.values()) - MARGIN]
    return [name for name in valid_taus if name in (*others, *front, NETWORKS) or name.startswith("best_")]


def computed(arguments: argparse.Namespace, work: Path) -> pd.DataFrame:
    """Return the rows of all cells that are asked for, after those that are missing are done."""
    harness.output_file(arguments.results)
    seeds = [arguments.seed] if arguments.seed is not None else list(range(arguments.seeds))
    places = {collection: folds_of(collection, work) for collection in arguments.collection}
    split = scored(arguments)

    def cells(collection: str, folds: Sequence[Fold], names: Sequence[str], seed: int) -> list[Cell]:
        experiments = chosen(arguments, collection)
        return [Cell(fold, name, experiments[name], seed, split, work) for fold in folds for name in names]

    if arguments.fold is not None:
        wanted = [
            cell
            for collection, folds in places.items()
            for seed in seeds
            for cell in cells(collection, folds[arguments.fold :][:1], [*chosen(arguments, collection)], seed)
        ]
        return rows_of(wanted, arguments)
    remaining = {}
    for collection, folds in places.items():
        first = cells(collection, folds[: FIRST.get(collection, 1)], [*chosen(arguments, collection)], seeds[0])
        found = rows_of(first, arguments)
        taus = found.groupby("experiment", sort=False)["valid_tau"].mean()
        remaining[collection] = staying({str(name): float(tau) for name, tau in taus.items()})
    for seed in seeds:
        wanted = [cell for name, folds in places.items() for cell in cells(name, folds, remaining[name], seed)]
        rows_of(wanted, arguments)
    return recorded(arguments)


def recorded(arguments: argparse.Namespace) -> pd.DataFrame:
    """Return the newest row of each cell that is asked for.

    Raises:
        ConfigError: there is none.
    """
    rows: pd.DataFrame = harness.read_rows(arguments.results, COLUMNS)
    rows = rows[rows["split"] == scored(arguments)].drop_duplicates(CELL, keep="last")
    wanted = [(place, name) for place in arguments.collection for name in chosen(arguments, place)]
    rows = rows[pd.MultiIndex.from_frame(rows[["collection", "experiment"]]).isin(wanted)]
    rows = rows[rows["fold"] == arguments.fold] if arguments.fold is not None else rows
    rows = rows[rows["seed"] < arguments.seeds] if arguments.seed is None else rows[rows["seed"] == arguments.seed]
    if rows.empty:
        raise ConfigError(f"{arguments.results}: no row of what is asked for; without --show it is computed")
    return rows


def with_graphs(rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return a row for each cell and graph, of the seeds that have all folds of an experiment.

    A model of joined collections has its graphs in the collection of each, as the experiment "..., joined".
    """
    rows = rows.assign(folds=rows.groupby(["collection", "experiment"])["fold"].transform("nunique"))
    rows = rows[rows.groupby(["collection", "experiment", "seed"])["fold"].transform("nunique") == rows["folds"]]
    graphs = rows.merge(harness.read_rows(graphs_file(results), GRAPH_COLUMNS), on="fingerprint")
    for joined, part in ((joined, part) for joined, parts in JOINED.items() for part in parts):
        prefix = f"{Collection.parse(part).model_name}."
        own = (graphs["collection"] == joined) & graphs["graph"].str.startswith(prefix)
        graphs.loc[own, "graph"] = graphs.loc[own, "graph"].str.removeprefix(prefix)
        graphs.loc[own, "experiment"] += ", joined"
        graphs.loc[own, "valid_tau"] = np.nan  # that of all parts
        graphs.loc[own, "collection"] = part
    return graphs


def table(place: str, graphs: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the figures of experiments as Markdown, and the names of those that are finished, the best first.

    Experiments that left, or are not finished, are at the end.
    """
    lines = [
        f"| {place} | folds | seeds | tau | Somers' D | slowdown@1, % | @5, % | @10, % | valid tau | CPU s |",
        "|---" * 10 + "|",
    ]
    each = ["experiment", "collection"]  # graphs of a collection count alike, and so do collections
    means = graphs.groupby(each)[FIGURES].mean()
    cells = graphs.drop_duplicates([*each, "fold", "seed"]).groupby(each)[["valid_tau", "cpu_seconds"]].mean()
    means = means.join(cells).groupby("experiment").mean()
    means["folds"] = graphs.groupby(each)["folds"].first().groupby("experiment").sum()
    seeds = graphs.groupby([*each, "seed"])["kendall_tau"].mean().groupby(["experiment", "seed"]).mean()
    most = means["folds"].max()
    means = means.assign(left=means["folds"] < most).sort_values(["left", "kendall_tau"], ascending=[True, False])
    for name, row in means.iterrows():
        taus = seeds.loc[str(name)]
        deviation = f" ± {taus.std():.3f}" if len(taus) > 1 else ""
        slowdowns = ["" if np.isnan(row[key]) else f"{100 * row[key]:.1f}" for key in SLOWDOWNS]
        tail = [f"{row['valid_tau']:.3f}", f"{row['cpu_seconds']:.0f}"]
        shown = [str(name), f"{row['folds']:.0f} of {most:.0f}", str(len(taus)), f"{taus.mean():.3f}{deviation}"]
        shown.append("" if np.isnan(row["somers_d"]) else f"{row['somers_d']:.3f}")
        lines.append(f"| {' | '.join([*shown, *slowdowns, *tail])} |")
    whole = means[~means["left"]]
    ceiling = whole["noise_ceiling"].mean()
    lines += [f"| *compiled: {mark}* | | | {tau:.3f} |" + " |" * 6 for mark, tau in compiled(place).items()]
    text = "\n".join(lines) + ("" if np.isnan(ceiling) else f"\n\nNoise ceiling: {ceiling:.3f}")
    return text, [str(name) for name in whole.index]


def compiled(place: str) -> dict[str, float]:
    """Return the mean Kendall tau with the estimates of what a compilation tells, for a collection of estimates."""
    if place not in TPU:
        return {}
    taus = []
    for path in graph_files(harness.ROOT / "data" / BUNDLED[place], Collection.parse(place), None):
        runtime, parts = read_graph(path, "layout").measurements.runtime, read_json(sidecar_path(path))["parts"]
        taus.append([kendall_tau(parts[mark], runtime) for mark in MARKS])
    return dict(zip(MARKS, np.mean(taus, axis=0), strict=True))


def looks(results: Path, collections: Sequence[str]) -> str:
    """Return how many models were scored on each fold left out, by any experiment of the results."""
    rows = harness.read_rows(results, COLUMNS)
    rows = rows[rows["split"] == "test"]
    for joined, parts in JOINED.items():
        own = rows["collection"] == joined
        rows = pd.concat([rows[~own], *(rows[own].assign(collection=part) for part in parts)])
    lines = ["Models scored on each fold left out, of all rows of the results:"]
    for collection in collections:
        counts = rows[rows["collection"] == collection]["fold"].value_counts().sort_index()
        lines.append(f"- {collection}: {', '.join(f'{count} on {fold}' for fold, count in counts.items())}")
    return "\n".join(lines)


def report(rows: pd.DataFrame, arguments: argparse.Namespace) -> str:
    """Return the tables of figures and verdicts, and draw them where asked."""
    graphs = with_graphs(rows, arguments.results)
    graphs = graphs[graphs["kendall_tau"].notna()]
    places = {str(place): part for place, part in graphs.groupby("collection", sort=False)}
    layouts = [place for place in places if place.startswith("layout/")]
    if len(layouts) > 1:
        common = set.intersection(*(set(table(place, places[place])[1]) for place in layouts))
        of_all = graphs[graphs["collection"].isin(layouts) & graphs["experiment"].isin(common)]
        if not of_all.empty:
            places[f"mean of {len(layouts)} collections of layouts"] = _of_common_seeds(of_all)
    parts, drawn = list[str](), {}
    for place, part in places.items():
        text, names = table(place, part)
        taus = part.groupby(["experiment", "collection", "graph"])["kendall_tau"].mean()
        of_graph = {name: taus[name].to_dict() for name in names}
        family = {(str(row.collection), str(row.graph)): str(row.family) for row in part.itertuples()}
        pairs = comparison.compare(of_graph, family)
        parts += [text, comparison.verdicts(names, pairs)]
        seeds = part.groupby(["experiment", "collection", "seed"])["kendall_tau"].mean()
        seeds = seeds.groupby(["experiment", "seed"]).mean()
        drawn[place] = names, {name: seeds[name].to_numpy() for name in names}, pairs
    if arguments.plot:
        comparison.draw(drawn, arguments.plot)
    return "\n\n".join([*parts, looks(arguments.results, [*dict.fromkeys(graphs["collection"])])])


def _of_common_seeds(graphs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that an experiment has on each collection."""
    collections = graphs.groupby(["experiment", "seed"])["collection"].transform("nunique")
    return graphs[collections == graphs["collection"].nunique()]


def main() -> None:
    parser = harness.Parser(__doc__)
    parser.add_argument(
        "--collection", nargs="+", default=[*COLLECTIONS], metavar="PATH",
        help=f"some of {', '.join(COLLECTIONS).replace('%', '%%')} (default: all)",
    )  # fmt: skip
    names = tuple(dict.fromkeys(name for kind in EXPERIMENTS.values() for name in kind))
    parser.add_argument("--experiment", nargs="+", choices=names, metavar="NAME",
                        help=f"each on the collections of its kind, by default all: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--epochs", type=min_int(1), default=10, metavar="N",
                        help="epochs of 80 steps of each network (default: 10)")  # fmt: skip
    parser.add_argument("--seeds", type=min_int(1), default=3, metavar="N", help="seeds 0 to N - 1 (default: 3)")
    parser.add_argument("--fold", type=min_int(0), metavar="N", help="only this fold, of every experiment")
    parser.add_argument("--seed", type=min_int(0), metavar="N", help="only this seed")
    parser.add_argument("--jobs", type=min_int(1), default=2, metavar="N", help="trainings at a time (default: 2)")
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar="KEY=VALUE",
                        help="the first experiment with these overrides; may be repeated")  # fmt: skip
    parser.add_argument("--work", type=Path, default=harness.ROOT / ".hlorank/quality", metavar="FOLDER",
                        help="features, models and runs (default: .hlorank/quality)")  # fmt: skip
    parser.add_argument("--results", type=Path, default=harness.RESULTS / "folds.csv", metavar="CSV",
                        help="rows (default: benchmarks/results/folds.csv)")  # fmt: skip
    parser.add_argument("--show", action="store_true", help="only show the newest rows of the results")
    parser.add_argument("--plot", type=harness.output_file, metavar="SVG", help="draw what is shown")
    arguments = parser.parse_args()
    arguments.collection = [name.replace(":", "/") for name in arguments.collection]
    harness.expect("--collection", arguments.collection, COLLECTIONS)
    known = {name for place in arguments.collection for name in EXPERIMENTS[address_of(place).kind]}
    harness.expect(f"--experiment for {' '.join(arguments.collection)}:", arguments.experiment or (), known)
    for absent in [place for place in arguments.collection if not arguments.show and not available(place)]:
        print(f"skipped {absent}: its files are not there", file=sys.stderr)
        arguments.collection.remove(absent)
    print(report(recorded(arguments) if arguments.show else computed(arguments, arguments.work.resolve()), arguments))


if __name__ == "__main__":
    harness.run(main)

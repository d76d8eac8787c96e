"""Preparation of a training: everything is opened, resolved and checked, and nothing is written."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from hlorank.config import Config, ConfigError
from hlorank.data.splits import make_folds
from hlorank.files import WEIGHTS, DataError, code_digest, counted, flatten, sha256_file
from hlorank.models.baselines.baseline import BASELINES, XGBOOST
from hlorank.training.baselines.fit_baseline import RECIPES, check_baseline, pretrained_weights
from hlorank.training.losses import make_loss
from hlorank.training.methods import Method
from hlorank.training.process_group import ALONE, ProcessGroup
from hlorank.training.sampling import Stream, seed_sequence
from hlorank.training.setup import LIBRARIES, Member, Setup, open_setup
from hlorank.training.step_plans import StepMemory, measure_step
from hlorank.version import __version__

log = logging.getLogger(__name__)

# Code that can change the result of a training: featurize reads columns of hlo, and metrics choose the epoch.
CODE = tuple(f"hlorank.{part}" for part in ("data", "featurize", "hlo", "metrics", "models", "partition", "training"))
# Keys of the section `trainer` that change no more than the order of sums. Two of them change dropout masks, too.
_HARDWARE, _MASKS = frozenset({"devices", "workers"}), frozenset({"accelerator", "memory_bytes"})


def prepare(config: Config, ranks: ProcessGroup) -> Setup:
    """Open the data of a training on all of its ranks, and check all that can be wrong before it starts.

    Raises:
        DataError: features or segments are missing or do not belong together, or ranks have other data or code.
        ConfigError: a name in the configuration does not exist, or values do not fit the data or each other.
    """
    threads = ranks.broadcast(config.trainer.thread_count)
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # of the libraries of baselines
    with ranks.agreed():
        found = {"devices": ranks.count, "threads": threads}
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update=found)})
        setup = _prepare_baseline(config) if config.method in BASELINES else _prepare_networks(config, ranks)
        for name, reason in setup.graphs.store.skipped("train").items():
            log.warning("%s: training skips the graph %s: %s", setup.spec.collection, name, reason)
    ranks.check_equal({"hlorank": __version__, "code of hlorank": code_digest("hlorank")[:16], **setup.identity})
    return setup


def _prepare_baseline(config: Config) -> Setup:
    check_baseline(config.method, config.collection)
    setup, read = open_setup(config), set(RECIPES[config.method].settings)
    if read:
        _check_train(setup)
    pretrained_weights(setup)
    settings = {
        **config.model_dump(mode="json", include={"collection", "method", "seed"}),
        "baseline": config.baseline.model_dump(mode="json", include=read),
        "trainer": config.trainer.model_dump(mode="json", include={"validation_configs", "threads"}),
        **_pretrained(config),
    }
    return replace(setup, settings=settings, identity={**flatten(settings), **_origin(setup)})


def _prepare_networks(config: Config, ranks: ProcessGroup) -> Setup:
    if config.trainer.precision == "16-mixed" and ranks.device.type == "cpu":
        raise ConfigError("trainer.precision=16-mixed: needs CUDA; set it to bf16-mixed or 32-true on a CPU")
    for name in config.ensemble.baselines:
        if name not in BASELINES:
            raise ConfigError(f"ensemble.baselines: expected some of {', '.join(BASELINES)}, found {name}")
        check_baseline(name, config.collection)
    setup = open_setup(config)
    _check_train(setup)
    setup = replace(setup, members=_members(setup))
    _check_graphs(setup, ranks)
    method, memory = _check_networks(setup)
    sections = {"collection", "method", "seed", "model", "loss", "trainer", "ensemble"}
    sections |= {"baseline"} if config.ensemble.baselines else set()
    segments = method.segment_settings(whole_graph=setup.graphs.options is None)
    settings = {
        **config.model_dump(mode="json", include=sections),
        "segments": config.segments.model_dump(mode="json", include=segments),
        **_pretrained(config),
    }
    hardware = _HARDWARE if config.model.dropout > 0 else _HARDWARE | _MASKS
    trainer = {key: value for key, value in settings["trainer"].items() if key not in hardware}
    identity = {"partition": setup.graphs.partition, **flatten({**settings, "trainer": trainer}), **_origin(setup)}
    settings["evaluate"] = config.evaluate.model_dump(mode="json", include={"memory_bytes"})
    return replace(setup, memory=memory, settings=settings, identity=identity)


def _pretrained(config: Config) -> dict[str, str]:
    return {"pretrained": sha256_file(Path(folder) / WEIGHTS)} if (folder := config.paths.pretrained) else {}


def _check_train(setup: Setup) -> None:
    """Raise DataError if there is nothing to train on."""
    if not setup.train:
        expected = "a graph with labels that are not all equal"
        raise DataError("train", expected, "none", file=setup.graphs.store.root)


def _members(setup: Setup) -> list[Member]:
    """Return the members, seeds times folds of model families (GroupKFold), the first with the configuration's seed."""
    ensemble, seed = setup.config.ensemble, setup.config.seed
    held_out: list[tuple[str, ...]] = [()]
    if ensemble.folds > 1:
        entries = setup.graphs.store.entries("train")
        families = {name: entries[name].family for name in setup.train}
        if (count := len(set(families.values()))) < ensemble.folds:
            raise ConfigError(
                f"ensemble.folds={ensemble.folds}: the {counted(len(families), 'graph')} of train are of only {count} "
                "model families, which stay together; set it to at most that, or to 1"
            )
        fold_of = make_folds(families, ensemble.folds)
        held_out = [tuple(name for name in families if fold_of[name] == fold) for fold in range(ensemble.folds)]

    def seed_of(number: int) -> int:
        return int(seed_sequence(seed, Stream.ENSEMBLE, number).generate_state(1)[0]) if number else seed

    count = ensemble.seeds * ensemble.folds
    return [Member(seed_of(number), held_out[number % ensemble.folds]) for number in range(count)]


def _check_graphs(setup: Setup, ranks: ProcessGroup) -> None:
    """Check that every rank has something to compute, and warn of graphs that have few segments."""
    trainer, sampled = setup.config.trainer, setup.config.segments.sampled
    fewest = min(len(setup.train) - len(member.held_out) for member in setup.members)
    if ranks.count > fewest:
        graphs = counted(fewest, "training graph")
        raise ConfigError(f"{ranks.count} ranks: the collection has {graphs}; start at most one rank for each")
    if ranks.count > trainer.graphs_per_step:
        raise ConfigError(
            f"trainer.graphs_per_step={trainer.graphs_per_step}: {ranks.count} ranks share the graphs of a step; set "
            f"it to at least {ranks.count}, or start fewer ranks"
        )
    partitions = (setup.graphs.open_partition("train", name) for name in setup.train)  # open one by one
    if fewer := sum(partition is not None and partition.segments < sampled for partition in partitions):
        log.warning(
            "segments.sampled=%d: %d of %d training graphs have fewer segments, and train all of theirs; lower it, "
            "or lower partition.max_nodes to cut more segments",
            *(sampled, fewer, len(setup.train)),
        )


def _check_networks(setup: Setup) -> tuple[Method, StepMemory]:
    """Build a network and all that its steps need, and measure a step on the largest graph, for all members."""
    from hlorank.training.fit import build
    from hlorank.training.gst.aggregator import Aggregator

    config, method = setup.config, setup.method
    assert method is not None
    model, data = build(setup, Member(config.seed), ALONE)
    make_loss(config.loss)
    if (table := Aggregator(model, method, config.segments).table) is not None:
        table.check_budget(data.table_entries())
    return method, measure_step(model, data.planner, data.largest_graph, config.trainer)


def _origin(setup: Setup) -> Mapping[str, Any]:
    """Return what a result depends on besides settings: the data, and the code of hlorank, plugins and libraries."""
    config, code = setup.config, code_digest(*CODE)[:16]
    names = ["numpy", "scikit-learn", "scipy"]
    names += [] if config.method in BASELINES else ["lightning", "torch", "torch-geometric"]
    libraries = {f"{LIBRARIES}{name}": version(name) for name in names}
    if XGBOOST in {config.method, *config.ensemble.baselines}:  # of one of several distributions
        libraries[f"{LIBRARIES}xgboost"] = import_module("xgboost").__version__
    return {"data": setup.spec.data, "version": __version__, "code": code, **setup.spec.plugins, **libraries}

"""Ensembles: members are the trainings of their seeds, folds hold graphs out, and baselines join them."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.tracking import MlflowClient
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from hlorank.files import DataError, read_json, write_json
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.baseline import load_blended
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Linear
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import load_trained
from hlorank.models.serialization import input_sizes, load_model, sealed
from hlorank.stages.train import train
from hlorank.training.baselines.fit_baseline import blend, fit_baseline
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.sampling import validation_targets
from hlorank.training.setup import Trained
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import Step
from tests.training.training_helpers import CPU, WEIGHTS, Runs, Settings, open_graphs

MEMORY = 2**28
NAMES = ["linear_ranking", "gradient_boosting", "linear_ranking"]


def weights_of(folder: Path, member: int = 0) -> dict[str, Tensor]:
    weights = load_file(folder / WEIGHTS)
    return {name.partition(".")[2]: value for name, value in weights.items() if name.startswith(f"{member}.")}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("method", ["gst", "gst_efd"])
def test_members_are_the_trainings_of_their_seeds(method: str, settings: Settings, tmp_path: Path, runs: Runs) -> None:
    config, both = settings(method=method, ensemble__seeds=2), tmp_path / "both"
    best = train(config, both)
    ((run,), client) = runs(config), MlflowClient(config.tracking.uri)
    members, spec = load_model(both, CPU)
    assert (len(members), spec.members, spec.steps) == (2, 2, 24)
    rows, taus, metrics = pd.read_csv(both / "history.csv"), list[float | None](), run.data.metrics
    for number, member in enumerate(prepare(config, ALONE).members):
        alone = tmp_path / str(number)
        taus.append(train(settings(method=method, seed=member.seed), alone))
        assert same(weights_of(both, number), weights_of(alone))
        own = rows[rows["member"] == number].drop(columns="member").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, pd.read_csv(alone / "history.csv").drop(columns="member"))
        logged = client.get_metric_history(run.info.run_id, f"member_{number}/curves/train_loss")
        assert [metric.value for metric in logged] == pytest.approx(own["train_loss"])
        assert {f"member_{number}/{name}" for name in ("train/step_seconds", "curves/valid_kendall_tau")} <= {*metrics}
    assert not same(weights_of(both, 0), weights_of(both, 1))
    assert best == pytest.approx(np.mean(np.array(taus, dtype=np.float64))) == metrics["valid/best_kendall_tau"]
    assert not {"curves/train_loss", "curves/valid_kendall_tau"} & {*metrics}
    assert metrics["train/parameters"] == 2 * sum(parameter.numel() for parameter in members[0].parameters())


def test_folds_choose_on_held_out_graphs(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, ranked = dict[int, dict[str, int]](), dict[int, set[str]]()
    draw, validate = StepData.step, RankingModule.validation_step

    def step(self: StepData, epoch: int, index: int) -> Step:
        drawn = draw(self, epoch, index)
        trained.setdefault(self.seed, {})[drawn.graph.features.name] = drawn.number
        return drawn

    def validation_step(self: RankingModule, batch: Any, index: int) -> None:
        ranked.setdefault(self.seed, set()).add(batch.graph.features.name)
        validate(self, batch, index)

    monkeypatch.setattr(StepData, "step", step)
    monkeypatch.setattr(RankingModule, "validation_step", validation_step)
    train(settings(trainer__workers=0), tmp_path / "alone")
    names, valid = trained.pop(0).keys(), ranked.pop(0)
    assert not names & valid
    # Names of generated graphs name no family, so that each graph is one of its own.
    train(settings(ensemble__folds=3, trainer__workers=0), tmp_path / "model")
    assert len(trained) == 3
    assert set().union(*ranked.values()) == names
    for seed, own in trained.items():
        assert (len(ranked[seed]), {*own}) == (1, names - ranked[seed])
        assert sorted(own.values()) == [0, 1]  # numbers of the graphs in the embedding table


def standardized(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((scores - scores.mean()) / scores.std())


def test_models_and_baselines_are_saved_and_scored_together(settings: Settings, tmp_path: Path) -> None:
    config = settings(ensemble__baselines=f"[{','.join(NAMES)}]")
    tau = train(config, tmp_path / "joined")
    train(settings(), tmp_path / "alone")
    assert same(weights_of(tmp_path / "joined"), weights_of(tmp_path / "alone"))
    (_,), spec = load_model(tmp_path / "joined", CPU)
    assert spec.members == 1
    assert 1 <= len(spec.baselines) <= len(NAMES)
    weights = load_file(tmp_path / "joined" / WEIGHTS)
    others = {tuple(name.split(".")[:2]) for name in weights if not name.startswith("0.")}
    assert others == {(name, str(number)) for number, name in enumerate(spec.baselines)}

    scorer, model = load_trained(tmp_path / "joined", MEMORY), load_trained(tmp_path / "alone", MEMORY)
    graphs, taus, parts = open_graphs(config), [], []
    for name in graphs.store.trainable("valid"):
        features, cut = graphs.store.open("valid", name), graphs.open_partition("valid", name)
        baselines = [one.score(features, MEMORY) for one in load_blended(tmp_path / "joined", spec)]
        every = [model.score(features, cut), *baselines]
        expected = np.average([standardized(one) for one in every], axis=0, weights=spec.weights)
        np.testing.assert_allclose(standardized(scorer.score(features, cut)), standardized(expected), atol=1e-6)
        rows, labels = validation_targets(features, config.trainer.validation_configs)
        joined = np.average([standardized(one[rows]) for one in every], axis=0, weights=spec.weights)
        taus.append(kendall_tau(joined, labels))
        parts.append([kendall_tau(one[rows], labels) for one in every])
    assert tau == pytest.approx(np.mean(taus))
    alone = np.mean(parts, axis=0)
    assert spec.weights[0] == 0  # networks of two epochs
    np.testing.assert_allclose(spec.weights[1:], np.exp((alone[1:] - alone.max()) / 0.03))
    assert np.mean(taus) >= alone.max()

    path, content, scores = tmp_path / "joined" / "spec.json", read_json(tmp_path / "joined" / "spec.json"), []
    count = 1 + len(spec.baselines)
    for given in ([1.0] * count, [], [3.0] + [1.0] * (count - 1)):
        write_json(path, sealed({**content, "weights": given}))
        scores.append(load_trained(tmp_path / "joined", MEMORY).score(features, cut))
    np.testing.assert_array_equal(scores[0], scores[1])
    expected = np.average([standardized(one) for one in every], axis=0, weights=given)
    np.testing.assert_allclose(scores[2], expected, atol=1e-6)
    wrong: list[dict[str, Any]] = [{"baselines": [name] * (count - 1)} for name in ("xgboost", "no_baseline")]
    wrong += [
        {"baselines": [], "weights": []},
        {"weights": [1.0, 0.0] + [1.0] * (count - 2)},
        {"weights": [1.0] * (count + 1)},
    ]
    for changed in wrong:
        write_json(path, sealed({**content, **changed}))
        with pytest.raises(DataError):
            load_trained(tmp_path / "joined", MEMORY)


@pytest.mark.parametrize(
    ("graphs", "networks", "weights"),
    [(1, "none", [1]), (2, "none", [0, 1]), (2, "equal", [0, 1]), (2, "perfect", [1])],
)
def test_only_supported_parts_join(
    graphs: int, networks: str, weights: list[float], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One baseline ranks the graphs of valid well, the other in its reverse; networks do not, as well, or perfectly."""
    config = settings(ensemble__baselines="[linear_ranking,linear_ranking]")
    setup = prepare(config, ALONE)
    good = fit_baseline(setup, "linear_ranking", 0).predictors[0][1]
    assert isinstance(good, Linear)
    parts = {0: good, 1: Linear(-good.weight, good.scale)}
    fits = "hlorank.training.baselines.fit_baseline"
    monkeypatch.setattr(f"{fits}.fit_baseline", lambda _, name, seed: Trained(predictors=[(name, parts[seed])]))

    def score(_: CostModel, graph: GraphInputs, rows: NDArray[np.int64], __: int) -> NDArray[np.float64]:
        pooled = PooledGraph(graph.features, input_sizes(setup.graphs.store.spec))
        labels = validation_targets(graph.features, config.trainer.validation_configs)[1]
        return {"none": 0 * labels, "equal": good.score(pooled, rows), "perfect": labels}[networks]

    monkeypatch.setattr(f"{fits}.score_configurations", score)
    setup = dataclasses.replace(setup, train=setup.train[:graphs])
    blended = blend(setup, Trained(members=[cast("CostModel", None)]))
    assert [predictor for _, predictor in blended.predictors] == [good] * (len(weights) - 1)
    assert blended.weights == weights

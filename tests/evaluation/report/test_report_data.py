from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.report.groups import Group
from hlorank.evaluation.report.report_data import Data, open_data
from hlorank.evaluation.report.runs import Run
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import fingerprint
from hlorank.partition.partition_store import PartitionStore

MakeRun = Callable[..., Run]
LAYOUT = Collection.parse("layout:synthetic:random")


@pytest.fixture
def opened(make_run: MakeRun, tiny_collections: Path) -> Callable[[str], Data | str]:
    """Opens the data of a run that was trained on data of this fingerprint."""

    def open_it(data: str) -> Data | str:
        group = Group("gst", 0, (make_run(collection=LAYOUT, spec={"data": data}),))
        return open_data([group], tiny_collections / "features", tiny_collections / "segments")

    return open_it


def test_graphs_are_cut_as_they_were_trained(opened: Callable[[str], Data | str], tiny_collections: Path) -> None:
    features = FeatureStore(tiny_collections / "features" / LAYOUT.path)
    cut = PartitionStore(tiny_collections / "segments" / LAYOUT.path).spec.fingerprint
    segmented = opened(fingerprint([features.fingerprint, cut]))
    whole = opened(fingerprint([features.fingerprint, ""]))
    assert isinstance(segmented, Data)
    assert isinstance(whole, Data)
    (graph,) = segmented.largest(set())
    assert features.entries(graph[0])[graph[1]].nodes == max(
        entry.nodes for split in ("train", "valid", "test") for entry in features.entries(split).values()
    )
    assert len(segmented.draw(*graph).segments) > 1
    assert len(whole.draw(*graph).segments) == 1
    name = features.graphs("valid")[0]
    assert segmented.largest({("valid", name)}) == [("valid", name)]
    assert segmented.named([name, "none"]) == [("valid", name)]
    assert segmented.most_nodes == max(entry.nodes for entry in features.entries("train").values())


def test_a_graph_that_can_not_be_read_is_not_drawn(
    opened: Callable[[str], Data | str], tiny_collections: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(fingerprint([FeatureStore(tiny_collections / "features" / LAYOUT.path).fingerprint, ""]))
    assert isinstance(data, Data)
    monkeypatch.setattr("hlorank.evaluation.report.report_data.MOST_NODES", 3)
    assert data.largest(set()) == []
    with pytest.raises(ConfigError, match=r"nodes can't be read in a drawing; at most 3 can"):
        data.named(data.store.graphs("valid"))


def test_other_data_or_none_is_said(opened: Callable[[str], Data | str], make_run: MakeRun, tmp_path: Path) -> None:
    assert "holds other features or segments than those that these models were trained on" in str(opened("d" * 16))
    group = Group("gst", 0, (replace(make_run(), collection=LAYOUT),))
    assert "the features are not on this machine" in str(open_data([group], tmp_path, tmp_path))

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate_model import evaluate
from hlorank.evaluation.report.runs import Run, read_run
from hlorank.evaluation.report.write_report import MAX_BYTES, write_report
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import fingerprint, write_json
from hlorank.partition.partition_store import PartitionStore
from hlorank.training.trainer import train

MakeRun = Callable[..., Run]
Settings = Callable[..., Config]
EVIL = "</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """Text, scripts and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.scripts, self.texts = html, list[str](), list[str]()
        self.attributes: list[tuple[str, str, str]] = []
        self._inside = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def charts(self) -> int:
        return self.html.count('<div class="chart"')


def written(runs: list[Run], folder: Path, **options: Any) -> Page:
    write_report(runs, folder / "report.html", folder / "features", folder / "segments", **options)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_runs_with_different_evaluations_are_counted(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("gst", 0), make_run("gst", 1, {"a": 0.5}), make_run("gst", 2, per_graph=[])]
    runs[1] = replace(runs[1], per_graph=[{**row, "slowdown_10": None} for row in runs[1].per_graph])
    page = written(runs, tmp_path)
    for fact in ("1 graph, 1 left out, 3 seeds, 2 of 3 runs evaluated", "1.00% 1 of 2 runs"):
        assert fact in page.text
    assert "1 of 3 runs" in page.text
    assert "gst, seed 2, models/gst/2: Kendall tau 0.625" in page.text, "as its training measured it"


def test_a_run_that_cannot_be_scored_is_named_with_the_reason(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run(), make_run("full", per_graph=[], unscored="weights.safetensors: none")], tmp_path)
    assert "full, seed 0, models/full/0: Kendall tau 0.625" in page.text
    assert "weights.safetensors: none" in page.text


def test_trainings_of_different_length_are_marked(make_run: MakeRun, tmp_path: Path) -> None:
    bounded = make_run("gst_one", settings={"trainer.cpu_seconds": "60"})
    page = written([make_run("gst"), bounded], tmp_path)
    assert "different length" in page.text
    assert "2 epochs, at most 60 s of CPU time" in page.text


def test_one_segment_is_marked(settings: Settings, tmp_path: Path, make_run: MakeRun) -> None:
    store, cut = (tmp_path / name for name in ("features", "segments"))
    config = settings()
    collection = Collection.parse(config.collection)
    shutil.copytree(Path(config.paths.features, collection.path), store / collection.path)
    shutil.copytree(Path(config.paths.segments, collection.path), cut / collection.path)
    features, partition = FeatureStore(store / collection.path), PartitionStore(cut / collection.path).spec.fingerprint
    runs = [
        make_run(
            method, collection=collection, spec={"data": fingerprint([features.fingerprint, used]), "partition": used}
        )
        for method, used in (("full", ""), ("gst", partition))
    ]
    for mean in (1.5, 1.0):
        write_json(cut / collection.path / "metrics.json", {"segments_per_graph": mean})
        assert ("one segment: equals full" in written(runs, tmp_path).text) == (mean == 1)


def test_scores_costs_and_provenance_are_shown(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run("gst", 0), make_run("gst", 1, {"a": 0.6, "b": 0.8}), make_run("full", 0)], tmp_path)
    assert "Report of 3 runs" in page.text
    for fact in (
        "layout:cpu:random",
        "0.650",
        "0.550 to 0.750 ± 0.071 over seeds",
        "0.900",
        "54.2",
        "62,685",
        "d" * 16,
        "c0ffee",
    ):
        assert fact in page.text, fact
    assert "model.width" in page.text
    assert page.charts == 1 + 2 + 2 + 3, "intervals, predictions of two methods, two curves, three costs"
    assert page.text.count("No drawing: the features are not on this machine") == 1


def test_what_is_ranked_wrongly_is_shown(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run()], tmp_path)
    for fact in (
        "all families gst valid 2 0.600 0.900 20.0% 5.0% 5.0% 5.0% 5.0% 1.0% 4.00% 2.00%",
        "tile[0] faster than ranked gst valid -0.25 explains 6 % 3 9",
        "starts slower than ranked gst valid +0.12 explains 2 % 3 9",
    ):
        assert fact in page.text, fact
    assert "No property" in written([make_run(properties=[])], tmp_path).text


def test_missing_parts_are_one_line_each(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(seed=None, per_graph=[], predictions=[], history=[])
    page = written([run], tmp_path)
    for line in (
        "No run was evaluated",
        "No predictions",
        "No graph was evaluated",
        "No history of more than one epoch",
        "The memory of a step is not recorded for these runs",
        "The MLflow run is unreachable",
    ):
        assert line in page.text
    assert page.charts == 0
    (row,) = make_run(taus={"a": 0.5}).per_graph
    unknown = written([make_run(seed=None, per_graph=[{**row, "noise_ceiling": None}])], tmp_path)
    assert unknown.text.count("unknown") >= 6, "seeds, ceilings and costs"


def test_names_are_always_text(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(EVIL, place=EVIL, taus={EVIL: 0.5, "b": 0.4}, settings={EVIL: EVIL})
    page = written([run, make_run(EVIL, 1, settings={EVIL: "other"})], tmp_path)
    assert EVIL not in page.html
    assert len(page.scripts) == 1
    assert ("img", "src", "x") not in page.attributes
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert EVIL in page.text, "as the label of a chart"


def test_control_characters_of_names_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "a\x00b\x1b[31m\x9b\u202etxt\ud800"
    page = written([make_run(evil, place=evil, taus={evil: 0.5, "b": 0.4}, settings={evil: evil})], tmp_path)
    assert not {"\x00", "\x1b", "\x9b", "\u202e", "\ud800"} & set(page.html)
    assert r"a\x00b\x1b[31m\x9b\u202etxt\ud800" in page.text


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(make_run: MakeRun, tmp_path: Path) -> None:
    page = written([make_run()], tmp_path)
    (policy,) = [value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value]
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    for tag, name, value in page.attributes:
        if name in ("src", "href", "data", "action", "srcset"):
            assert value.startswith("#"), (tag, name, value)


def test_it_stays_small_and_counts_the_rows_that_it_omits(make_run: MakeRun, tmp_path: Path) -> None:
    taus: dict[str, float | None] = {f"some.graph.with.a.long.name.{number:05d}": 0.5 for number in range(1_000)}
    first = make_run(taus=taus)
    runs = [replace(first, method=f"method_{number}") for number in range(12)]
    runs = [replace(run, tracked=replace(run.tracked, run_id=run.method)) for run in runs if run.tracked]
    page = written(runs, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < MAX_BYTES == 5_000_000
    assert "1992 of 12000 rows; per_graph.csv of each report has all." in page.text


def test_a_report_that_would_be_too_large_is_refused(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.evaluation.report.write_report.MAX_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"1 run: .* MB"):
        write_report([make_run()], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_an_evaluation_is_reported_in_seconds(settings: Settings, tmp_path: Path) -> None:
    config = settings(method="gst")
    train(config, tmp_path / "model")
    evaluate(config, tmp_path / "model", tmp_path / "report")
    start = time.process_time()
    run = read_run(tmp_path / "model", tmp_path / "report", config.tracking.uri)
    features, segments = Path(config.paths.features), Path(config.paths.segments)
    write_report([run], tmp_path / "report.html", features, segments)
    assert time.process_time() - start < 3, "seconds of one processor"
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    symbols = [value for tag, name, value in page.attributes if tag == "use" and name == "href"]
    assert len(symbols) > 50
    assert "#ring" in symbols
    assert "Memory of a training step against the nodes of the largest graph" in page.text
    assert "trainer.max_epochs" in page.text
    graph = next(row["graph"] for row in run.per_graph if row["split"] == "test")
    write_report([run], tmp_path / "report.html", features, segments, [graph])
    assert f"The graph {graph} with its segments" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for name, shown in (("none", "graph none: "), (graph[:-1], f"graph {graph[:-1]}: .*{graph}")):
        with pytest.raises(ConfigError, match=shown):
            write_report([run], tmp_path / "report.html", features, segments, [name])

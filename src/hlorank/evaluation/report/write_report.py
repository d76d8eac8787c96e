"""Writing of a report: one HTML file with its charts, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hlorank.config import ConfigError
from hlorank.evaluation.errors import WRONG
from hlorank.evaluation.report import charts
from hlorank.evaluation.report.groups import LEVEL, RESAMPLES, Estimate, Group
from hlorank.evaluation.report.headline import NOISE
from hlorank.evaluation.report.runs import Run
from hlorank.evaluation.report.sections import Section, make_sections
from hlorank.files import counted, flatten, write_text
from hlorank.version import __version__

REPORT = "report.html"
"""File name of the report of one evaluation."""
MAX_BYTES = 5_000_000
FEATURES, SEGMENTS = Path("data/features"), Path("data/segments")
_HERE = Path(__file__).parent


def write_report(
    runs: Sequence[Run],
    output: Path,
    features: Path = FEATURES,
    segments: Path = SEGMENTS,
    graphs: Sequence[str] = (),
) -> None:
    """Write the report of some runs, in one step.

    Args:
        runs: at least one run.
        output: the HTML file, of at most 5 MB.
        features: folder of featurized collections, for the drawings.
        segments: folder of partitioned collections.
        graphs: names of graphs to draw; empty draws the largest readable graph of each collection.

    Raises:
        ConfigError: the report is larger than 5 MB, or a graph has no features or too many nodes for a drawing.
        DataError: features or segments are damaged.
    """
    page = _render(runs, make_sections(runs, features, segments, graphs))
    if (size := len(page.encode())) > MAX_BYTES:
        raise ConfigError(f"{counted(len(runs), 'run')}: a report of {size / 1e6:.1f} MB is too large; name fewer runs")
    write_text(output, page)


def _render(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "ends": _ends,
        "counted": counted,
        "draw": charts.draw_chart,
        "figure": _figure,
        "metric": _metric,
        "provenance": provenance,
        "settings": settings,
        "share": _share,
        "colour": charts.colour,
        "shape": lambda number: number % len(charts.SHAPES),
    }
    script = (_HERE / "page/report.js").read_text(encoding="utf-8")
    memory = [(group, spent, section.largest) for section in sections for group, spent in section.costs]
    sized = [(group, spent, nodes) for group, spent, nodes in memory if nodes and spent.step_memory_bytes is not None]
    page = environment.get_template("report.html").render(
        runs=runs,
        sections=sections,
        memory=charts.memory(sized) if sized else None,
        version=__version__,
        level=LEVEL,
        resamples=RESAMPLES,
        noise=NOISE,
        wrong=WRONG,
        style=Markup((_HERE / "page/report.css").read_text(encoding="utf-8")),  # noqa: S704 - files of the package
        script=Markup(script),  # noqa: S704 - as above
        hash=_hash(script),
    )
    return charts.escape(page)


def _hash(script: str) -> str:
    """Return the source expression that permits a script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _breakable(name: str) -> Markup:
    """Return a name that may break after a mark of punctuation."""
    return Markup("<wbr>").join(re.split(r"(?<=[._,/])", name))


def _share(value: float | None) -> str:
    """Return a share in percent, `unknown` for None."""
    return "unknown" if value is None else f"{value:.1%}"


def _figure(value: float | None, digits: int = 3) -> str:
    """Return a number with some significant digits, whole numbers in full; `unknown` for None."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 10**digits or value == round(value) else f"{value:.{digits}g}"


def _ends(estimate: Estimate, name: str) -> str:
    """Return the ends of an interval."""
    return f"{_metric(estimate.low, name).rstrip('%')} to {_metric(estimate.high, name)}"


def _metric(value: float | None, name: str) -> str:
    """Return a metric as tables show it, slowdowns in percent."""
    if value is None:
        return ""
    return f"{value:.2%}" if name.startswith("slowdown") else f"{value:.3f}"


def provenance(run: Run) -> dict[str, str]:
    """Return the provenance of a run by name, without unknown facts."""
    spec, tracked = run.spec, run.tracked
    features = spec.get("features", {})
    facts = {
        "read from": run.place,
        "seed": run.seed,
        "MLflow run": None if tracked is None else tracked.run_id,
        "git commit": None if tracked is None else tracked.commit,
        "hlorank": spec.get("version"),
        "data": spec.get("data"),
        "features": features.get("fingerprint"),
        "raw files": features.get("inputs"),
        "partition": spec.get("partition"),
        "weights (SHA-256)": spec.get("weights_sha256"),
        "members": spec.get("members"),
        "steps": spec.get("steps"),
        "not evaluated": run.unscored,
    }
    return {name: str(fact) for name, fact in facts.items() if fact not in (None, "")}


def settings(group: Group) -> Mapping[str, Any]:
    """Return the configuration of a group without its seed; without MLflow, the part in the model folder."""
    run = group.runs[0]
    if run.tracked is not None:
        found = {key: value for key, value in run.tracked.settings.items() if key != "seed"}
    else:
        spec = {key: run.spec[key] for key in ("model", "settings", "aggregation", "cut") if key in run.spec}
        options = run.spec.get("features", {}).get("options", {})
        found = flatten({**spec, "featurize": options})
    return dict(sorted(found.items()))

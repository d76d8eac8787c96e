"""A view of MLflow's UI in which methods are compared: columns and charts that its own defaults leave out.

It is a tag of the experiment, as MLflow 3.17 keeps the views that users save, and stands in the menu Views.
"""

from __future__ import annotations

import json
from typing import Any

VIEW = "hlorank"
"""The view's name, and its key in addresses: `?viewStateShareKey=hlorank`."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_BEST, _TEST, _TAU = "valid/best_kendall_tau", "evaluate/test/kendall_tau", "valid/kendall_tau"
_SECONDS, _MEMORY = "train/seconds", "train/peak_memory_bytes"
_RUNS = 20  # that charts show: those with the best tau


def _chart(kind: str, name: str, **settings: Any) -> dict[str, Any]:
    shown = {"deleted": False, "isGenerated": False, "metricSectionId": VIEW, "runsCountToCompare": _RUNS}
    return {"uuid": name, "type": kind, "displayName": name, **shown, **settings}


def _bars(metric: str) -> dict[str, Any]:
    return _chart("BAR", metric, metricKey=metric)


def _curve(metric: str, over: str | None) -> dict[str, Any]:
    """A metric over steps, or over another metric that was logged at the same steps."""
    return _chart(
        "LINE",
        f"{metric} over {over or 'steps'}",
        metricKey=metric,
        selectedMetricKeys=[metric],
        xAxisKey="step" if over is None else "metric",
        selectedXAxisMetricKey=over or "",
        useGlobalXaxisKey=False,
        xAxisScaleType="linear",
        yAxisKey="metric",
        yAxisExpressions=[],
        scaleType="linear",
        lineSmoothness=0,
        useGlobalLineSmoothing=True,
        ignoreOutliers=False,
        range={},
    )


def _points(x: str, y: str) -> dict[str, Any]:
    axes = {"xaxis": {"type": "METRIC", "key": x}, "yaxis": {"type": "METRIC", "key": y}}
    return _chart("SCATTER", f"{y} over {x}", **axes)


def comparison_view() -> str:
    """The value of the tag `VIEW_TAG`."""
    columns = [f"params.`{name}`" for name in ("method", "seed")]
    columns += [f"metrics.`{name}`" for name in (_BEST, _TEST, _SECONDS)]
    # MLflow's own time axis starts at a run's first logged value: no method's time before it is seen, nor a resumption.
    curves = [_curve(_TAU, None), _curve(_TAU, _SECONDS)]
    section = {"uuid": VIEW, "name": "methods", "display": True, "deleted": False, "isGenerated": False}
    state = {
        "searchFilter": "",
        "orderByKey": f"metrics.`{_BEST}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "runsHiddenMode": f"FIRST_{_RUNS}_RUNS",
        "compareRunCharts": [*curves, _points(_SECONDS, _BEST), _bars(_BEST), _bars(_TEST), _bars(_MEMORY)],
        "compareRunSections": [section | {"isReordered": True}],
        "isAccordionReordered": True,  # else MLflow's own sections, in the order of the alphabet, push it down
    }
    return json.dumps({"name": VIEW, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})

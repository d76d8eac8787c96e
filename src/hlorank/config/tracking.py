"""Section `tracking`."""

from __future__ import annotations

from hlorank.config.section import Section


class TrackingConfig(Section):
    """Tracking of runs in MLflow."""

    uri: str
    """Tracking store; the variable MLFLOW_TRACKING_URI overrides it."""
    experiment: str
    """Name of the experiment that runs belong to."""
    artifacts: str
    """Artifact folder of a sqlite store; a server has its own."""

"""Which error is reported after the death of a rank; `test_ranks.py` has ranks that are really killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from hlorank.config import Config, ConfigError
from hlorank.training import launch
from hlorank.training.ranks import RankLostError

STORE = OperationalError("SELECT 1", {}, Exception("interrupted"))
MISTAKE = ConfigError("loss: nothing to learn")
LOST = RankLostError("the connection to rank 1")


@pytest.mark.parametrize(
    ("exit_code", "reported", "raised"),
    [
        (-signal.SIGKILL, STORE, RankLostError),
        (-signal.SIGKILL, LOST, RankLostError),
        (-signal.SIGKILL, None, RankLostError),
        (-signal.SIGTERM, MISTAKE, ConfigError),
        (-signal.SIGTERM, LOST, RankLostError),
        (1, STORE, OperationalError),
        (1, MISTAKE, ConfigError),
        (1, None, SystemExit),
    ],
)
def test_the_cause_is_reported(
    exit_code: int,
    reported: Exception | None,
    raised: type[BaseException],
    settings: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def elastic_launch(*_: Any) -> Callable[..., Any]:
        def ranks(task: Any, config: Config, errors: Any) -> None:
            if reported is not None:
                errors.put(reported)
            raise ChildFailedError("ranks", {1: ProcessFailure(1, 4711, exit_code, "N/A")})

        return ranks

    monkeypatch.setattr(launch, "elastic_launch", elastic_launch)
    with pytest.raises(raised) as found:
        launch.start_ranks(lambda _: None, settings(trainer__devices=2))
    if exit_code == -signal.SIGKILL:
        assert "SIGKILL" in str(found.value)

"""Start of the ranks of a training on this machine, by torchrun's launcher."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hlorank.config import Config
from hlorank.runs.store import Pruned, error_lines
from hlorank.training.process_group import RankLostError, connection_lost

Result = float | None
_GRACE_SECONDS = 10  # in which a rank that has ended is noticed
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start_ranks(task: Callable[[Config], Result], config: Config) -> Result:
    """Run a task in `trainer.devices` new processes, the ranks of a training; when one ends too early, all do.

    Args:
        task: what each rank does; it can be pickled.
        config: the composed configuration, which the ranks get as it is.

    Returns:
        The result of rank 0.

    Raises:
        RankLostError: a rank was killed, or has fallen silent.
        KeyboardInterrupt: Ctrl-C has ended the ranks.
    """
    for library in ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # otherwise they report a failure at length
    errors: Any = multiprocessing.get_context("spawn").SimpleQueue()
    with TemporaryDirectory() as folder, _own_signals():
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.trainer.devices,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            run_id=uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
        )
        try:
            result: Result = elastic_launch(launch, _run)(task, config, errors)[0]
        except ChildFailedError as error:
            number, failure = error.get_first_failure()
            reported = None if errors.empty() else errors.get()
            # Where a rank was killed, what others report before they are ended follows from it: a lost connection, or
            # work that was broken off. SIGTERM may also be the launcher's, which ends the others where one reports.
            ended_by_launcher = failure.exitcode == -signal.SIGTERM and not isinstance(reported, RankLostError)
            if reported is not None and (failure.exitcode > 0 or ended_by_launcher):
                raise reported from None
            if failure.exitcode > 0:
                raise SystemExit(failure.exitcode) from None  # the rank has printed what it failed at
            raise connection_lost(f"{failure.signal_name()} has ended rank {number}") from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + error.sigval) from None
    return result


def _run(task: Callable[[Config], Result], config: Config, errors: Any) -> Result:
    """Run the task of a rank; errors that users can correct are for the process that started the ranks to report."""
    try:
        return task(config)
    except Exception as error:
        if error_lines(error) is None and not isinstance(error, Pruned):
            raise
        if isinstance(error, RankLostError):
            # The launcher ends this rank as soon as another one ends, and then reports the cause. One that is silent
            # does not end by itself.
            time.sleep(_GRACE_SECONDS)
        errors.put(error)
        raise SystemExit(1) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handlers of signals, which the launcher replaces."""
    handlers = {one: signal.getsignal(one) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)

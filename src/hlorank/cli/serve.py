"""`hlorank serve`: rank configurations over HTTP with a trained model."""

from __future__ import annotations

import argparse
import socket
import sys
from contextlib import suppress
from typing import Any

from hlorank.cli.programs import add_model_arguments, open_ranker
from hlorank.config import ConfigError
from hlorank.files import one_line
from hlorank.terminal import min_int


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="rank configurations over HTTP with a trained model",
        description="Answers HTTP requests to rank the configurations of graphs, by MLflow's scoring server: one "
        "request at a time, within limits of its graphs. Ctrl-C stops the server. It limits neither clients nor "
        "bodies, which a reverse proxy does; MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT has the seconds of a request (60).",
    )
    add_model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=min_int(0, 65535), default=5002, help="port to listen on (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends the process; an address that cannot be used is refused before the model is loaded."""
    import uvicorn  # first, as the extra that installs it has all others, too

    from hlorank.runs.find import resolve_alias

    family = socket.AF_INET6 if ":" in arguments.host else socket.AF_INET
    with socket.create_server((arguments.host, arguments.port), family=family) as bound:
        model = resolve_alias(arguments.model)
        ranker = open_ranker(model, arguments.memory, arguments.accelerator)
        from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT

        from hlorank.runs.pyfunc import scoring_server

        # A line for each wrong request would fill an output that nobody reads, and then stop the server.
        limits: dict[str, Any] = {"log_level": "error", "ws": "none"}
        try:
            limits["timeout_graceful_shutdown"] = MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        server = uvicorn.Server(uvicorn.Config(scoring_server(ranker), **limits))
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        about = f"{model} ({ranker.spec.method} of {ranker.collection}) at http://{host}:{bound.getsockname()[1]}"
        sys.stdout.write(f"{one_line(f'hlorank serves {about}')}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            server.run([bound])
    return 0

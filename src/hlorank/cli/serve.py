"""`hlorank serve`: rank configurations over HTTP with a trained model."""

from __future__ import annotations

import argparse
import socket
from typing import Any

from hlorank.cli.rank import open_ranker
from hlorank.serving.limits import Limits
from hlorank.terminal import min_int


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="rank configurations over HTTP with a trained model",
        description=(
            "Answers HTTP requests to rank the configurations of graphs within limits, one small and one large graph "
            "at a time. The format of requests and responses is that of `mlflow models serve`. Ctrl-C stops the server."
        ),
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a model folder, an MLflow run id, or models:/<name>@champion",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=min_int(0, 65535), default=5002, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--memory",
        type=min_int(1),
        default=256,
        metavar="MIB",
        help="limit of the memory of activations while scoring (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=min_int(1),
        default=60,
        metavar="SECONDS",
        help="time after which a request is answered with status 504 (default: %(default)s)",
    )
    limits = parser.add_argument_group("limits of a request")
    for name, field in Limits.model_fields.items():
        meaning = str(field.description)
        limits.add_argument(
            f"--max-{name.replace('_', '-')}",
            type=min_int(1),
            default=field.default,
            metavar="N",
            help=f"{meaning[0].lower()}{meaning[1:-1]} (default: %(default)s)",
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends the process; an address that cannot be used is refused before the model is loaded.

    Raises:
        OSError: the address cannot be used, such as a port that another process uses.
        DataError: the model does not exist, is damaged or changed, or another version of hlorank wrote it.
    """
    from hlorank.serving.app import make_app
    from hlorank.serving.connections import run_server

    _check_address(arguments.host, arguments.port)
    limits = Limits(**{name: getattr(arguments, f"max_{name}") for name in Limits.model_fields})
    app = make_app(open_ranker(arguments.model, arguments.memory), limits, arguments.timeout)
    run_server(app, arguments.host, arguments.port, limits)
    return 0


def _check_address(host: str, port: int) -> None:
    """Raise the OSError of an address that cannot be used; uvicorn logs it among other lines.

    A name with several addresses is checked by its first IPv4 address.
    """
    try:
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda one: one[0])
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        error.filename = f"{host}:{port}"
        raise

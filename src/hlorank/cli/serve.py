"""`hlorank serve`: rank configurations over HTTP with a trained model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hlorank.cli.rank import add_model_arguments, open_ranker
from hlorank.files import one_line
from hlorank.ranking.limits import Limits
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
    add_model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=min_int(0, 65535), default=5002, help="port to listen on (default: %(default)s)")
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
    from hlorank.runs.find import resolve_alias
    from hlorank.serving.app import make_app
    from hlorank.serving.connections import bound_socket, run_server

    limits = Limits(**{name: getattr(arguments, f"max_{name}") for name in Limits.model_fields})
    with bound_socket(arguments.host, arguments.port) as bound:
        model = resolve_alias(arguments.model)
        ranker = open_ranker(model, arguments.memory, arguments.accelerator)
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        url = f"http://{host}:{bound.getsockname()[1]}"
        about = f"{model} ({ranker.spec.method} of {ranker.collection}) at {url}"
        sys.stdout.write(f"{one_line(f'hlorank serves {about}')}\n")
        sys.stdout.flush()
        run_server(make_app(ranker, limits, arguments.timeout), bound, limits)
    return 0

"""Limits of an HTTP request: its size, the number of its graphs, and the size of each graph."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hlorank.config import Section
from hlorank.data.collection import check_sizes
from hlorank.data.npz import NpzFile
from hlorank.files import DataError

MAX_CHOICES = 2**27
"""Default limit of layouts of one graph (configurations times configurable nodes); in memory, these take 128 MiB to
512 MiB."""


class Limits(Section):
    """Limits of what the server accepts, each an option `--max-<name>` of `hlorank serve`."""

    requests: int = Field(default=8, ge=1)
    """Requests that are read or answered at a time."""
    request_bytes: int = Field(default=2**26, ge=1)
    """Bytes of the body of a request."""
    graphs: int = Field(default=1000, ge=1)
    """Graphs of a request."""
    top: int = Field(default=200_000, ge=1)
    """Configurations in a response, all graphs together."""
    configurations: int = Field(default=200_000, ge=1)
    """Configurations of a graph."""
    nodes: int = Field(default=100_000, ge=1)
    """Nodes of a graph."""
    edges: int = Field(default=1_000_000, ge=1)
    """Edges of a graph."""
    choices: int = Field(default=MAX_CHOICES, ge=1)
    """Configurations times configurable nodes of a graph."""
    unpacked_bytes: int = Field(default=2**28, ge=1)
    """Bytes of the arrays of a graph without its layouts, together."""

    def check_request(self, graphs: int, top: int) -> None:
        """Refuse a request that holds or asks for too much, before any of its graphs is decoded.

        Args:
            graphs: number of graphs in the request.
            top: configurations of each graph that the response should hold.

        Raises:
            DataError: there are too many graphs, or too many configurations in the response.
        """
        _check("graphs", graphs, self.graphs, "graphs", "request")
        _check("top", graphs * top, self.top, "configurations of all graphs", "params")

    def check_graph(self, path: Path) -> None:
        """Refuse an npz file by the headers of its arrays, before any array is read.

        The number of layouts (`choices`) is checked by `hlorank.serving.graph_reader.GraphReader`.

        Raises:
            DataError: an array has too many rows, the arrays together are too large, or the file is damaged.
        """
        with NpzFile(path) as file:
            check_sizes(
                file,
                nodes=self.nodes,
                edges=self.edges,
                configurations=self.configurations,
                unpacked_bytes=self.unpacked_bytes,
            )


def _check(key: str, found: int, limit: int, unit: str, file: Path | str) -> None:
    if found > limit:
        raise DataError(key, f"at most {limit:,} {unit}", f"{found:,}", file=file)

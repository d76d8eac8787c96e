"""Limits of an HTTP request: its size, the number of its graphs, and the size of each graph."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hlorank.config import Section
from hlorank.data.collection import check_sizes
from hlorank.data.npz import NpzFile
from hlorank.files import DataError

MAX_CHOICES = 2**27
"""Limit of layouts of one graph that is read from a file (configurations times configurable nodes); in memory, these
take 128 MiB to 512 MiB."""


class Limits(Section):
    """Limits of what the server accepts, each an option `--max-<name>` of `hlorank serve`."""

    connections: int = Field(default=512, ge=1)
    """Open connections; above, the oldest one without a complete request is closed."""
    requests: int = Field(default=64, ge=1)
    """Requests that are ranked, or wait for their turn, at a time."""
    wait_seconds: int = Field(default=5, ge=1)
    """Seconds until the headers of a request, and each further part of its body, must arrive."""
    request_bytes: int = Field(default=2**26, ge=1)
    """Bytes of the body of a request, and half of the bytes of all bodies and responses in memory."""
    json_bytes: int = Field(default=2**20, ge=1)
    """Bytes of a body that are outside the strings of its JSON, and escapes in strings."""
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
    choices: int = Field(default=2**25, ge=1)
    """Configurations times configurable nodes of a graph."""
    layouts: int = Field(default=2**17, ge=1)
    """Distinct layouts of a graph."""
    unpacked_bytes: int = Field(default=2**27, ge=1)
    """Bytes of the arrays of a graph without its layouts, together."""

    def check_json(self, body: bytes | bytearray) -> None:
        """Refuse a body by the length of its JSON without the content of its strings, before it is parsed.

        The length bounds the records, keys, values, digits and depth of the JSON together: a byte `[` or `,` of a body
        may take hundreds of bytes of memory when it is parsed.

        Raises:
            DataError: the JSON without the content of its strings is too long.
        """
        if _json_bytes(body, self.json_bytes) > self.json_bytes:
            raise DataError("body", f"at most {self.json_bytes:,} bytes of JSON outside its strings", "more")

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

    def check_graph(self, path: Path) -> int:
        """Refuse an npz file by the headers of its arrays, before any array is read.

        The number of layouts (`choices`) is checked by `hlorank.ranking.inputs.GraphReader`.

        Returns:
            The bytes of its arrays, with its layouts.

        Raises:
            DataError: an array has too many rows, the arrays together are too large, or the file is damaged.
        """
        with NpzFile(path) as file:
            return check_sizes(
                file,
                nodes=self.nodes,
                edges=self.edges,
                configurations=self.configurations,
                unpacked_bytes=self.unpacked_bytes,
            )


def _json_bytes(body: bytes | bytearray, limit: int) -> int:
    """Count the bytes outside strings, the quotes, and the escapes in strings; the counting ends above `limit`."""
    count = end = 0
    while count <= limit and (start := body.find(b'"', end)) >= 0:
        count += start - end + 2
        end = start + 1
        closing = _quote(body, end)
        while count <= limit and (escape := body.find(b"\\", end, closing)) >= 0:
            count += 1
            end = escape + 2
            if end > closing:  # the quote was escaped
                closing = _quote(body, end)
        end = closing + 1
    return count if count > limit else count + max(0, len(body) - end)


def _quote(body: bytes | bytearray, start: int) -> int:
    """Return the position of the next quote, or the length of the body."""
    place = body.find(b'"', start)
    return len(body) if place < 0 else place


def _check(key: str, found: int, limit: int, unit: str, file: Path | str) -> None:
    if found > limit:
        raise DataError(key, f"at most {limit:,} {unit}", f"{found:,}", file=file)

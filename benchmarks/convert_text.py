"""Seconds and memory of `hlorank convert` for HLO text: real modules of shared data, and one of 50,000 instructions.

Each module is converted by a command of its own; seconds are those of the whole command, with the start of Python and
of XLA's parser, and memory is the largest resident size of the command and of the parser.

The run takes about a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command_line import Parser, run  # type: ignore[import-not-found] # same folder

from hlorank.data.collection import read_graph
from hlorank.data.graph import LayoutConfigurations
from hlorank.files import DataError, shared_dir, write_json

# Prints the largest resident sizes of this process and of its children, in KiB.
CONVERT = """
import resource, sys
from hlorank.cli.main import main
if main(["convert", sys.argv[1], "--out", sys.argv[2]]):
    raise SystemExit(1)
sizes = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
sys.stderr.write(f"{sizes[0]} {sizes[1]}")
"""


def generated(instructions: int) -> str:
    """Return the text of a chain of dots."""
    dots = "\n".join(
        f"  a{one + 1} = f32[8,8] dot(a{one}, a{one}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        for one in range(instructions - 2)
    )
    head = "HloModule generated\nENTRY e {\n  a0 = f32[8,8] parameter(0)\n"
    return f"{head}{dots}\n  ROOT r = f32[64] reshape(a{instructions - 2})\n}}\n"


def measured(source: Path, folder: Path) -> dict[str, object]:
    """Return the figures of one module."""
    start = time.perf_counter()
    command = [sys.executable, "-c", CONVERT, str(source), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    own, parser = map(int, done.stderr.splitlines()[-1].split())
    graph = read_graph(Path(done.stdout.strip()), "layout")
    assert isinstance(graph.configurations, LayoutConfigurations)
    return {
        "graph": graph.name,
        "nodes": graph.graph.nodes,
        "configurable_nodes": len(graph.configurations.node_ids),
        "seconds": round(seconds, 2),
        "mib": own // 1024,
        "parser_mib": parser // 1024,
    }


def main() -> None:
    parser = Parser(__doc__)
    parser.add_json()
    arguments = parser.parse_args()
    sources = sorted((shared_dir() / "data" / "hlo").glob("*.txt.xz"))
    if not sources:
        raise DataError("HLORANK_SHARED", "a folder with data/hlo/*.txt.xz", "none", file=shared_dir())
    rows = []
    print("| graph | nodes | configurable nodes | s | MiB | MiB of the parser |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "generated.txt").write_text(generated(50_000))
        for source in [*sources, folder / "generated.txt"]:
            row = measured(source, folder / "npz")
            rows.append(row)
            print(
                "|", " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()), "|"
            )
    if arguments.json:
        write_json(arguments.json, {"modules": rows})


if __name__ == "__main__":
    run(main)

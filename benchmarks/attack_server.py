"""Attack on `hlorank serve`: hostile requests and 300 half-open connections, next to 50 clients with correct requests.

A hostile request is accepted (the answer has the right scores), or it ends with a clean error: JSON of one line with a
status of 4xx, 503 or 504, or a closed connection where no complete request was sent. Anything else is a finding: a
traceback in the server's log or another status, more than 10 s without an answer after the last byte, more than 1 GB in
the server's memory, or wrong content, which is an answer with other scores than those of the same model in this
process, or scores for a request that is wrong. The model is the default of conf/ after one step of training.

    python benchmarks/attack_server.py --json benchmarks/results/attack_server.json
    python benchmarks/attack_server.py --quick
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from attack.counts import parse_arguments, report  # type: ignore[import-not-found] # same folder
from attack.server import attack  # type: ignore[import-not-found] # same folder
from serving import some_model  # type: ignore[import-not-found] # same folder


def main() -> int:
    arguments = parse_arguments(__doc__, quick=0.15)
    with tempfile.TemporaryDirectory(prefix="hlorank-attack-") as name:
        work = Path(name)
        model = some_model(work)
        graph = min((work / "raw").rglob("valid/*.npz"))
        counts = attack(model, graph, work, arguments.scale, arguments.seed)
    status: int = report(counts, arguments.json)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Attack on what hlorank reads: mutated npz files and protobufs, malicious archives, and mirrors with wrong answers.

Each case runs in a process of its own, with limits of time and memory. It is accepted with the right content, or it
ends with a clean error: one of the package's exceptions, with a line of at most 500 characters. All else is a finding.

    python benchmarks/attack_files.py --json benchmarks/results/attack_files.json
    python benchmarks/attack_files.py --quick    # a fiftieth of the mutated files; all special ones and mirrors
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from attack import archives, mirrors, npz, protobufs  # type: ignore[import-not-found] # same folder
from attack.cases import run_cases  # type: ignore[import-not-found] # same folder
from attack.counts import parse_arguments, report  # type: ignore[import-not-found] # same folder

ATTACKS = {
    "npz": (npz.npz_cases, 3000),
    "protobufs": (protobufs.protobuf_cases, 1500),
    "archives": (archives.archive_cases, 300),
    "mirrors": (mirrors.mirror_cases, 0),
}
"""Cases of each kind, and the number of mutated ones; the others are always the same."""


def main() -> int:
    arguments = parse_arguments(__doc__, quick=0.02)
    counts = {}
    for number, (name, (cases, mutated)) in enumerate(ATTACKS.items()):
        random = np.random.default_rng([arguments.seed, number])
        counts[name] = run_cases(cases(random), round(mutated * arguments.scale))
    status: int = report(counts, arguments.json)
    return status


if __name__ == "__main__":
    sys.exit(main())

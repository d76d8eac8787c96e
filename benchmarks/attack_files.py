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
from attack import archives, mirrors, npz, protobufs
from attack.cases import report, run_cases
from harness import Parser

ATTACKS = {
    "npz": (npz.npz_cases, 3000),
    "protobufs": (protobufs.protobuf_cases, 1500),
    "archives": (archives.archive_cases, 300),
    "mirrors": (mirrors.mirror_cases, 0),
}
"""Cases of each kind, and the number of mutated ones; the others are always the same."""


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the mutated files")
    parser.add_json()
    arguments = parser.parse_args()
    counts = {}
    for number, (name, (cases, mutated)) in enumerate(ATTACKS.items()):
        random = np.random.default_rng(number)
        counts[name] = run_cases(cases(random), mutated // 50 if arguments.quick else mutated)
    return int(report(counts, arguments.json))


if __name__ == "__main__":
    sys.exit(main())

"""Attack of the pipeline by kills: a fresh clone's first `make repro`, killed at random moments until it is finished.

One clone runs undisturbed. Another one is killed with SIGKILL: while the database of MLflow is created, at random
moments, and dvc alone, whose stage then continues as an orphan; and its files are bounded in size, as on a full disk.
After each of these the next call continues. In the end the outputs of both must have equal bytes, no MLflow run may be
open, and each training must have one finished run. Calls that finished the pipeline are counted as accepted, those that
failed as clean errors, and those that were killed only as attacked.

    python benchmarks/attack_kills.py --json benchmarks/results/attack_kills.json    # 20 kills, 4 full disks
    python benchmarks/attack_kills.py --quick    # two kills of a pipeline of one small training: minutes
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from attack.counts import parse_arguments, report  # type: ignore[import-not-found] # same folder
from attack.kills import attack  # type: ignore[import-not-found] # same folder

KILLS = 20


def main() -> int:
    arguments = parse_arguments(__doc__, quick=0.1)
    with tempfile.TemporaryDirectory(prefix="hlorank-kills-") as folder:
        kills = round(KILLS * arguments.scale)
        counts = attack(Path(folder), kills, small=arguments.quick, seed=arguments.seed)
    status: int = report({"kills": counts}, arguments.json)
    return status


if __name__ == "__main__":
    sys.exit(main())

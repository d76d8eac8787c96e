"""Speed-ups over the compiler's layouts of the programs by which OpenXLA judges XLA:CPU.

`hlorank autotune` tunes each program with ten measurements. A row is the speed-up of the best candidate with its 95 %
interval, or the reason why there is none. A finished program is not tuned again. Needs an otherwise idle machine.

    python benchmarks/openxla_cpu.py $HLORANK_SHARED/data/openxla_cpu
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import RESULTS, Parser, run

from hlorank.files import one_line, read_json, write_json
from hlorank.hlo.reader import graph_name, program_files


def tuned(file: Path, how: list[str], out: Path) -> dict[str, Any]:
    """Tune a program, and return its row."""
    name = graph_name(file)
    command = [sys.executable, "-c", "from hlorank.cli.main import main; main()", "autotune", f"{file}", *how]
    done = subprocess.run([*command, "--top", "10", "--out", f"{out}"], stderr=subprocess.PIPE, text=True)
    if done.returncode or not (saved := out / f"{name}.json").is_file():
        reason = one_line(done.stderr.strip().rpartition("\n")[2])
        return {"program": name, "reason": reason.replace(f"{file.parent}/", "")}
    about = read_json(saved)
    kept = {key: about[key] for key in ("winner", "speedup", "cpu", "date")}
    return {"program": name, "measured": len(about["measured"]), "seconds": about["seconds"]["all"], **kept}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the programs")
    parser.add_argument("--random", action="store_true", help="random candidates, in place of hlorank's ranker")
    parser.add_argument("--out", type=Path, default=Path("tuned"), help="folder of the tuned programs (default: tuned)")
    parser.add_json("rows of the programs (default: openxla_cpu.json or openxla_cpu_random.json of the results)")
    arguments = parser.parse_args()
    how = ["--random"] * arguments.random
    rows = [tuned(file, how, arguments.out) for file in program_files(arguments.folder)]
    name = f"openxla_cpu{'_random' * arguments.random}.json"
    write_json(arguments.json or RESULTS / name, {"programs": rows})


if __name__ == "__main__":
    run(main)

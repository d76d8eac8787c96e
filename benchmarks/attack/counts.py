"""Outcomes of attacks, their table and JSON.

An attack is accepted (with the right content), or it ends with a clean error. All other outcomes are findings: a
traceback, more than 10 s (in a process of its own: of CPU time, or a minute in all), more than 1 GB of memory, or wrong
content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hlorank.files import write_json

SECONDS = 10
BYTES = 10**9
OUTCOMES = ("accepted", "clean errors", "tracebacks", "hangs", "memory", "wrong content")
FINDINGS = OUTCOMES[2:]
COLUMNS = ("attacked", *OUTCOMES, "slowest_seconds", "largest_mb")


@dataclass
class Counts:
    """Outcomes of one kind of attack.

    Attributes:
        attacked: number of attacks.
        outcomes: number of each of `OUTCOMES`.
        findings: text of each finding.
        slowest: seconds of the slowest attack, and its name.
        largest: bytes of memory of the largest attack, and its name.
    """

    attacked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, outcome: str, name: str, detail: str = "", seconds: float = 0, memory: int = 0) -> None:
        """Count an outcome; a finding is also kept and printed."""
        self.outcomes[outcome] += 1
        self.slowest, self.largest = max(self.slowest, (seconds, name)), max(self.largest, (memory, name))
        if outcome in FINDINGS:
            self.findings.append(f"{name}: {outcome}, {seconds:.1f} s, {memory / 1e6:.0f} MB: {detail}")
            print(self.findings[-1], flush=True)

    def row(self) -> dict[str, Any]:
        """Return the values of `COLUMNS`, the names of the slowest and largest attacks, and the findings."""
        return {
            "attacked": self.attacked,
            **{outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            "slowest_seconds": round(self.slowest[0], 2),
            "slowest": self.slowest[1],
            "largest_mb": round(self.largest[0] / 1e6),
            "largest": self.largest[1],
            "findings": self.findings,
        }


def report(counts: Mapping[str, Counts], path: Path | None) -> int:
    """Print a table, write it as JSON if there is a path, and return the exit status: 1 if there are findings."""
    rows = {name: one.row() for name, one in counts.items()}
    print("| | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[column]:,}" for column in COLUMNS) + " |")
    if path:
        write_json(path, rows)
    return int(any(row["findings"] for row in rows.values()))

"""List of the zoo, as `hlorank collect` takes it: `python -m examples.zoo [FAMILY ...]`."""

from __future__ import annotations

import sys

from . import attribute, programs


def main(families: list[str]) -> int:
    """Print the programs of some families, or of all; return the exit status."""
    known = {program.family: None for program in programs().values()}
    if unknown := set(families) - set(known):
        sys.stderr.write(f"error: family {', '.join(sorted(unknown))}: expected {', '.join(known)}\n")
        return 2
    for name, program in programs().items():
        if not families or program.family in families:
            sys.stdout.write(f"{__package__}:{attribute(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""List of the zoo, as `hlorank collect` takes it: `python -m examples.zoo [--tpu] [FAMILY ...]`."""

from __future__ import annotations

import argparse
import sys

from . import attribute, programs
from .catalog import TPU_CATALOG


def main(arguments: list[str]) -> int:
    """Print the programs of some families, or of all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.zoo", description="List the programs of the zoo.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="families to list (default: all)")
    parser.add_argument(
        "--tpu", action="store_true", help="the programs of layout:tpu-..., in place of those of layout:cpu"
    )
    options = parser.parse_args(arguments)
    found = [one for name, one in programs().items() if (name.rpartition(".")[0] in TPU_CATALOG) == options.tpu]
    known = {program.family: None for program in found}
    if unknown := set(options.families) - set(known):
        sys.stderr.write(f"error: family {', '.join(sorted(unknown))}: expected {', '.join(known)}\n")
        return 2
    for program in found:
        if not options.families or program.family in options.families:
            sys.stdout.write(f"{__package__}:{attribute(program.name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

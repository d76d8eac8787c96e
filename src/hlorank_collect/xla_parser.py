"""Parser and printer of HLO text and StableHLO, a script for a process of its own.

XLA's parser ends the process on some damaged texts, such as those with deep brackets or a huge parameter number, and it
allocates every constant that a text declares.

Reads HLO text, or with the argument `stablehlo` MLIR text, bytecode or a portable artifact, from the standard input,
and writes a serialized HloModuleProto. With the argument `text` it reads a serialized HloModuleProto and writes HLO
text. Otherwise it writes the message of the error, with status 1.
"""

from __future__ import annotations

import resource
import sys

MAX_MEMORY = 8 * 2**30


def _main(form: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from hlorank_collect import xla

        data = sys.stdin.buffer.read()
        done = xla.text(data).encode() if form == "text" else xla.parse(data, stablehlo=form == "stablehlo")
        sys.stdout.buffer.write(done)
    except Exception as error:
        sys.stdout.buffer.write(f"{type(error).__name__}: {error}".encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

"""Module of a JAX function, as a file: `python -m hlorank_collect.trace module:function ARGUMENTS STAGE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from hlorank.config import ConfigError
from hlorank.hlo.reader import DUMPS
from hlorank_collect import xla
from hlorank_collect.jax_program import user_program
from hlorank_collect.program import one_line


def main(reference: str, arguments: str, stage: str, path: str) -> int:
    """Write the module of a function at a stage of `DUMPS`; a failure is one line on standard error, and status 2."""
    try:
        function, example = user_program(reference, arguments).build()
        module = xla.unoptimized_module(function, example)
        if stage == DUMPS[0]:
            module = xla.capture(module)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Exception as error:  # the user's code may raise any exception
        sys.stderr.write(f"error: program {reference!r}: it does not trace or compile: {one_line(error)}\n")
        return 2
    Path(path).write_bytes(module)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

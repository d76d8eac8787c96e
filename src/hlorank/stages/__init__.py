"""The stages of the pipeline: each reads the configuration, calls one package and writes its outputs."""

import sys

from hlorank.config import ConfigError
from hlorank.config.extras import named_extra

try:
    with named_extra("a stage"):
        import hydra as hydra
except ConfigError as error:
    if sys.argv[:1] != ["-m"]:
        raise
    sys.stderr.write(f"error: {error}\n")  # of the command python -m hlorank.stages...
    raise SystemExit(2) from None

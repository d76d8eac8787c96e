"""Registration of the resolvers of conf/config.yaml wherever Hydra composes it, `dvc exp run` included."""

import hlorank.config.pipeline  # noqa: F401  # registers on import

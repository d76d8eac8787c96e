# The environment of hlorank, for clusters: docs/how-to/cluster.md builds and runs it.
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true USER=hlorank

# DVC and MLflow call git. Its version is Debian's current one: earlier ones are no longer offered.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends git \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 1000 hlorank \
  && install --directory --owner=hlorank --group=hlorank /hlorank

WORKDIR /hlorank

# Packages come first, from files that seldom change: a change of the code installs nothing again.
COPY constraints.txt ./
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src/hlorank/__init__.py src/hlorank/version.py src/hlorank/
ARG EXTRAS=pipeline,postgresql,ray,sweep
RUN pip install -c constraints.txt -e ".[$EXTRAS]"

COPY --chown=hlorank:hlorank . .
USER 1000
CMD ["hlorank", "--help"]

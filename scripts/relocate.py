"""Tell the MLflow database of the current folder that the folder of artifacts, whose paths are absolute, has moved."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import sqlalchemy
from mlflow.store.model_registry.dbmodels.models import SqlModelVersion
from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlLoggedModel, SqlRun
from mlflow.utils.file_utils import local_file_uri_to_path

from hlorank.config import ConfigError
from hlorank.files import atomic_folder, redact_credentials
from hlorank.runs.store import error_lines, existing_store, is_database

_EXPERIMENTS = SqlExperiment.__table__.c.artifact_location
_ADDRESSES = (
    _EXPERIMENTS,
    SqlRun.__table__.c.artifact_uri,
    SqlLoggedModel.__table__.c.artifact_location,
    SqlModelVersion.__table__.c.storage_location,
)


def relocate(old: Path, new: Path) -> int:
    """Replace a folder of artifacts by another one in the store, and return the number of addresses that have it.

    Artifacts that the new folder lacks are copied there; the old folder stays as it is.
    """
    if not is_database(uri := existing_store()):
        raise ConfigError(f"{redact_credentials(uri)}: a server, which decides where artifacts are")
    changed = 0
    with sqlalchemy.create_engine(uri).begin() as connection:
        for column in _ADDRESSES:
            for address in filter(None, connection.scalars(sqlalchemy.select(column).distinct()).all()):
                if (place := Path(local_file_uri_to_path(address))).is_relative_to(old):
                    target = new / place.relative_to(old)
                    if column is not _EXPERIMENTS and place.is_dir() and not target.exists():
                        with atomic_folder(target) as copy:
                            shutil.copytree(place, copy, dirs_exist_ok=True)
                    changed += 1
                    update = sqlalchemy.update(column.table).where(column == address)
                    connection.execute(update.values({column.key: target.as_uri()}))
    return changed


def main() -> None:
    """Read the folders from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the folder before, as the warning of a training names it")
    parser.add_argument("new", type=Path, help="the folder now; artifacts that only the old one has are copied to it")
    arguments = parser.parse_args()
    try:
        changed = relocate(arguments.old.absolute(), arguments.new.resolve())
    except Exception as error:
        if (lines := error_lines(error)) is None:
            raise
        parser.exit(1, "".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{changed} addresses changed\n")


if __name__ == "__main__":
    main()

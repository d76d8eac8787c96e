"""Stage fetch: from the configured origin to data/raw, in the official npz tree."""

from pathlib import Path

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.stages.command import stage


@stage(reads=["data"], writes="raw")
def main(config: Config, output: Path) -> None:
    """Fetch the graphs of `collection` from the origin of the data group to data/raw."""
    from hlorank.fetch.origins import fetch

    fetch(Collection.parse(config.collection), config.data, output)


if __name__ == "__main__":
    main()

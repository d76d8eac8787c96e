"""Stage fetch: from the configured origin to data/raw, in the official npz tree."""

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.stages.command import own_output, stage


@stage("origins", reads=["data"])
def main(config: Config) -> None:
    """Fetch the graphs of `collection` from the origin of the data group to data/raw."""
    from hlorank.fetch.origins import fetch

    with own_output(config, config.paths.raw) as output:
        fetch(Collection.parse(config.collection), config.data, output)


if __name__ == "__main__":
    main()

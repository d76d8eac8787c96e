"""Stage partition: from data/features to data/segments."""

from pathlib import Path

from hlorank.config import Config
from hlorank.stages.command import collection_folder, stage


@stage(reads=["partition", "compute"], writes="segments")
def main(config: Config, output: Path) -> None:
    """Cut the graphs of `collection` into segments."""
    from hlorank.partition.segment_store import partition_collection

    partition_collection(collection_folder(config, "features"), config.partition, output, config.compute)


if __name__ == "__main__":
    main()

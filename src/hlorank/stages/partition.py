"""Stage partition: from data/features to data/segments."""

from hlorank.config import Config
from hlorank.stages.command import collection_folder, own_output, stage


@stage("partitioners", reads=["partition", "compute"])
def main(config: Config) -> None:
    """Cut the graphs of `collection` into segments."""
    from hlorank.partition.segment_store import partition_collection

    features = collection_folder(config, config.paths.features)
    with own_output(config, config.paths.segments) as output:
        partition_collection(features, config.partition, output, config.compute)


if __name__ == "__main__":
    main()

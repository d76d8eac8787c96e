"""Stage featurize: from data/raw to data/features."""

from pathlib import Path

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.stages.command import own_output, stage


@stage(reads=["featurize", "compute"])
def main(config: Config) -> None:
    """Turn the raw graphs of `collection` into features, opcode embeddings and configuration codes."""
    from hlorank.featurize.featurize_collection import featurize_collection

    collection = Collection.parse(config.collection)
    with own_output(config, config.paths.features) as output:
        featurize_collection(Path(config.paths.raw), collection, config.featurize, output, config.compute)


if __name__ == "__main__":
    main()

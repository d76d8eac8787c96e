"""Stage featurize: from data/raw to data/features."""

from pathlib import Path

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.stages.command import stage


@stage(reads=["featurize", "compute"], writes="features")
def main(config: Config, output: Path) -> None:
    """Turn the raw graphs of `collection` into features, opcode embeddings and configuration codes."""
    from hlorank.featurize.featurize_collection import featurize_collection

    collection = Collection.parse(config.collection)
    featurize_collection(Path(config.paths.raw), collection, config.featurize, output, config.compute)


if __name__ == "__main__":
    main()

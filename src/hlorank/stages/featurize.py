"""Stage featurize: from data/raw to data/features."""

from pathlib import Path

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.stages.command import collection_folder, own_output, stage


@stage(reads=["featurize", "compute"])
def main(config: Config) -> None:
    """Turn the raw graphs of `collection` into features, opcode embeddings and configuration codes."""
    from hlorank.compute.graph_map import open_graph_map
    from hlorank.featurize.featurize_collection import featurize_collection

    collection = Collection.parse(config.collection)
    raw = collection_folder(config, config.paths.raw)
    with (
        own_output(config, config.paths.features) as output,
        open_graph_map(config.compute, [output], [raw]) as compute,
    ):
        featurize_collection(Path(config.paths.raw), collection, config.featurize, output, compute)


if __name__ == "__main__":
    main()

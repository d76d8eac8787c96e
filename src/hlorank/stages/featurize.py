"""Stage featurize: from data/raw to data/features."""

from pathlib import Path

from hlorank.config import Config, parse
from hlorank.data.collection import Collection
from hlorank.files import SPEC, read_json
from hlorank.stages.command import stage


@stage(reads=["featurize", "compute"], writes="features")
def main(config: Config, output: Path) -> None:
    """Turn the raw graphs of `collection` into features, opcode embeddings and configuration codes."""
    from hlorank.featurize.feature_spec import FeatureSpec
    from hlorank.featurize.featurize_collection import Options, featurize_collection

    collection = Collection.parse(config.collection)
    options: Options = config.featurize
    if (model := config.paths.pretrained) is not None:
        options = parse(FeatureSpec, read_json(Path(model) / SPEC).get("features"), prefix="paths.pretrained")
    featurize_collection(Path(config.paths.raw), collection, options, output, config.compute)


if __name__ == "__main__":
    main()

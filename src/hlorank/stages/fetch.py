"""Stage fetch: from the configured origin to data/raw, in the official npz tree."""

from pathlib import Path

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.stages.hydra_main import output_folder, stage


@stage
def main(config: Config) -> None:
    """Brings the graphs of `collection` from the origin of the data group to data/raw."""
    collection = Collection.parse(config.collection)
    output = output_folder(config, config.paths.raw)
    data = config.data
    if data.origin == "tpugraphs" and data.tpugraphs:
        from hlorank.fetch import tpugraphs

        tpugraphs.fetch(collection, data.tpugraphs, Path(config.paths.downloads), output)
    elif data.origin == "local" and data.local:
        from hlorank.fetch import local

        local.fetch(collection, data.local, output)
    elif data.origin == "hlo" and data.hlo:
        from hlorank.fetch import hlo

        hlo.fetch(collection, data.hlo, output)
    elif data.origin == "synthetic" and data.synthetic:
        from hlorank.fetch import synthetic

        synthetic.fetch(collection, data.synthetic, output)
    else:
        raise ConfigError(f"data.origin: expected one of the files in conf/data, found {data.origin!r}")


if __name__ == "__main__":
    main()

"""The plugin of examples/reproductions, whose layers and pooling are tested like those of src."""

from hlorank.config import import_plugin

import_plugin("reproductions")

"""Dumps of the installed XLA are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.graph import Graph
from hlorank.fetch.hlo import convert
from hlorank.hlo.node_features import OPCODES
from hlorank.hlo.reader import featurize, program_files, read_records

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")


@pytest.fixture(scope="module")
def lowered() -> Any:
    """A convolution, a loop over a matrix product, a sort and a gather."""
    import jax.numpy as jnp

    def program(x: Any, w: Any) -> Any:
        y = jax.lax.conv(x, w, (1, 1), "SAME").reshape(64, -1)[:, :64]
        _, y = jax.lax.while_loop(lambda state: state[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1]) @ s[1]), (0, y))
        return jnp.sort(y.sum(0)), y[jnp.arange(3)]

    return jax.jit(program).lower(jnp.zeros((1, 4, 32, 32)), jnp.zeros((4, 4, 3, 3)))


def read(path: Path) -> tuple[Graph, LayoutConfigurations]:
    (record,) = read_records(path)
    measured, _ = featurize(record)
    assert isinstance(measured.configurations, LayoutConfigurations)
    return measured.graph, measured.configurations


def test_unoptimized_and_optimized_modules_are_valid_graphs(lowered: Any, tmp_path: Path) -> None:
    unoptimized = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    (compiled,) = lowered.compile().runtime_executable().hlo_modules()
    graphs = {}
    for name, data in (("before", unoptimized), ("after", compiled.as_serialized_hlo_module_proto())):
        (tmp_path / f"{name}.hlo.pb").write_bytes(data)
        graphs[name], configurations = read(tmp_path / f"{name}.hlo.pb")
        opcodes = set(graphs[name].node_opcode.tolist())
        assert {OPCODES[opcode] for opcode in ("convolution", "while", "parameter")} <= opcodes
        assert set(graphs[name].node_opcode[configurations.node_ids].tolist()) <= {26, 34, 75}
        is_convolution = graphs[name].node_opcode == OPCODES["convolution"]
        # The kernel of 3 x 3 with its spatial axes, in any order of the others.
        assert graphs[name].node_feat[is_convolution, 37:45].tolist() == [[3, 3, 0, 0, 0, 0, 6, 9]]
        assert sorted(graphs[name].node_feat[is_convolution, 21:25][0].tolist()) == [1, 4, 32, 32]
    assert OPCODES["fusion"] in graphs["after"].node_opcode
    assert OPCODES["fusion"] not in graphs["before"].node_opcode


def test_a_folder_of_dumps_converts(lowered: Any, tmp_path: Path) -> None:
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True})
    files = program_files(tmp_path) + program_files(tmp_path, "after_optimizations")
    assert len(files) == 2
    for file in files:
        (path,) = convert(file, tmp_path / "npz")
        graph = read_graph(path, "layout")
        assert graph.measurements.withheld
        assert np.isin([26, 102], graph.graph.node_opcode).all()

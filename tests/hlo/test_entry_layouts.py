"""Entry layouts: read from HLO text and StableHLO, kept by compilation, and a part of features and fingerprints."""

from pathlib import Path

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.hlo.entry_layouts import EntryLayouts, Order, assign, demand, entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.reader import Record, featurize, read_records
from hlorank.hlo.stage import before_layout_assignment

HLO, STABLEHLO = (
    (Path(__file__).parent / f"entry_layouts.{suffix}").read_text(encoding="utf-8") for suffix in ("hlo.txt", "mlir")
)
MODE = '{mhlo.layout_mode = "{0,1}"}'
DENSE = (
    "mhlo.xla_entry_computation_parameter_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<[0, 1]> : tensor<2xindex>]"
)
ROWS, COLUMNS = EntryLayouts([(), ()], [(), ()]), EntryLayouts([(), (0, 1)], [(0, 1), ()])


def hlo(argument: str, result: str) -> str:
    return HLO.replace("ORDER", argument, 1).replace("ORDER", result, 1)


def stablehlo(module: str, argument: str, result: str) -> str:
    return STABLEHLO.replace("MODULE", module).replace("ARGUMENT", argument).replace("RESULT", result)


def module_of(folder: Path, text: str) -> HloModuleProto:
    pytest.importorskip("jaxlib", reason="needs jax (extra collect)")
    path = folder / "program.txt"
    path.write_text(text, encoding="utf-8")
    return next(read_records(path)).module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (hlo("{1,0}", "{1,0}"), ROWS),
        (hlo("{0,1}", "{0,1}"), COLUMNS),
        (stablehlo("", "", ""), ROWS),
        (stablehlo("", MODE, MODE), COLUMNS),
        (stablehlo(f"attributes {{{DENSE}}}", "", ""), EntryLayouts(COLUMNS.parameters, ROWS.results)),
    ],
)
def test_of_texts(tmp_path: Path, text: str, expected: EntryLayouts) -> None:
    found = entry_layouts(module_of(tmp_path, text))
    assert found == expected
    assert bool(found) == (expected != ROWS)


def test_modules_that_differ_only_there_differ(tmp_path: Path) -> None:
    rows, columns = (module_of(tmp_path, hlo(order, order)) for order in ("{1,0}", "{0,1}"))
    assert module_fingerprint(rows) != module_fingerprint(columns)
    for module, expected in ((rows, ROWS), (columns, COLUMNS)):
        compiled = before_layout_assignment(module, "cpu")
        assert entry_layouts(compiled) == expected
        graph = featurize(Record("m", tmp_path, "", compiled, None))[0].graph
        parameters = graph.node_feat[:, -6:-4][graph.node_opcode == graph.node_opcode[0]]
        np.testing.assert_array_equal(parameters[1], [1, 0] if module is rows else [0, 1])


def test_tiles_are_the_compilers_choice(tmp_path: Path) -> None:
    module = module_of(tmp_path, hlo("{0,1:T(8,128)}", "{1,0}"))
    assert not entry_layouts(module)
    assign(module)
    assert all([*node.shape.layout.minor_to_major] != [0, 1] for node in module.computations[0].instructions)


def test_orders_that_do_not_fit(tmp_path: Path) -> None:
    module = module_of(tmp_path, hlo("{1,0}", "{1,0}"))
    for order in ([0, 2], [0, 0], [0]):
        module.host_program_shape.parameters[1].layout.minor_to_major[:] = order
        with pytest.raises(DataError, match="minor_to_major"):
            entry_layouts(module)
    wrong: list[list[Order]] = [[(0, 1)], [(0, 1), (0,)], [(), (), ()]]
    for orders in wrong:  # of another number of parameters or dimensions
        with pytest.raises(ValueError, match="entry layouts"):
            demand(module, EntryLayouts(orders, [(), ()]))
    for mode in ("column", "{a,b}", "{0,1", "{1}"):
        with pytest.raises(DataError, match="layout"):
            module_of(tmp_path, stablehlo("", MODE.replace("{0,1}", mode), ""))

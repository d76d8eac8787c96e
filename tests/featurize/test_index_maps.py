"""What instructions read of their operands, and the order of operands, compared with modules that record it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Graph
from hlorank.featurize.index_maps import Access, Accesses, Axis, dot_axes, operand_pairs
from hlorank.fetch.synthetic_graphs import Program as SyntheticProgram
from hlorank.fetch.synthetic_graphs import Shape, convolution_fields
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.program import Program
from hlorank.hlo.reader import Record, featurize, read_records
from tests.featurize.small_graphs import Node, graph_of, layout_graph


def pair(graph: Graph, first: int = 0, second: int = 0) -> list[int]:
    """Return the operands of the last node, given the minimum numbers of their dimensions."""
    (result,) = operand_pairs(graph, np.array([graph.nodes - 1]), np.array([[first, second]]))
    found: list[int] = result.tolist()
    return found


def product(first: list[int], second: list[int], output: list[int]) -> list[int]:
    """Return the operands of a dot of nodes 0 and 1, which have the given shapes."""
    return pair(graph_of(("parameter", first, []), ("parameter", second, []), ("dot", output, [0, 1])))


@pytest.mark.parametrize(
    ("first", "second", "output", "expected"),
    [
        ([8, 3], [3, 5], [8, 5], [0, 1]),
        ([3, 5], [8, 3], [8, 5], [1, 0]),
        ([3, 8], [3, 5], [5, 8], [1, 0]),  # contracted at the front
        ([2, 3, 5], [2, 8, 3], [2, 8, 5], [1, 0]),  # a batch
        ([3, 2, 4], [4, 8, 3], [4, 8, 2], [1, 0]),
        ([7], [2, 7], [2], [0, 1]),  # either order can be
        ([9], [7], [7, 9], [1, 0]),  # nothing is contracted
        ([2, 2], [3, 3], [9], [0, 1]),  # neither can be
    ],
)
def test_products(first: list[int], second: list[int], output: list[int], expected: list[int]) -> None:
    assert product(first, second, output) == expected


@given(st.data())
@settings(max_examples=40)
def test_a_product_that_fits_keeps_its_order(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(1, 3), max_size=2)
    batch, contracted, left, right = (data.draw(sizes) for _ in range(4))

    def mixed(own: list[int], free: list[int]) -> list[int]:
        """Dimensions of an operand: the free ones in order, the others anywhere."""
        places = data.draw(st.permutations(range(len(own) + len(free))))[: len(free)]
        other = iter(data.draw(st.permutations(own)))
        ordered = iter(free)
        return [next(ordered) if i in places else next(other) for i in range(len(own) + len(free))]

    first, second = mixed(batch + contracted, left), mixed(batch + contracted, right)
    output = batch + left + right
    if max(len(first), len(second), len(output)) <= 6:
        assert product(first, second, output) == [0, 1]


CONVOLUTION = {93: 0, 94: 1, 95: 2, 96: 3, 99: 1, 100: 0, 101: 2, 102: 3, 105: 0, 106: 1, 107: 1, 108: 1}


@pytest.mark.parametrize(
    ("image", "kernel", "output", "window", "columns"),
    [
        ([2, 3, 16, 16], [8, 3, 5, 5], [2, 8, 16, 16], [5, 5], {}),
        ([4, 4, 16, 16], [4, 4, 1, 1], [4, 4, 16, 16], [1, 1], {}),  # only the window decides
        ([3, 3, 5, 5], [3, 3, 5, 5], [3, 3, 1, 1], [5, 5], {}),
        ([2, 6, 9, 9], [6, 1, 3, 3], [2, 6, 9, 9], [3, 3], {107: 6}),
        ([2, 6, 9, 9], [8, 6, 3, 3], [2, 8, 9, 9], [3, 3], {107: 0, 108: 0}),
        ([6, 2, 9, 9], [4, 2, 3, 3], [3, 4, 9, 9], [3, 3], {108: 2}),
    ],
)
def test_convolutions(
    image: list[int], kernel: list[int], output: list[int], window: list[int], columns: dict[int, float]
) -> None:
    features: dict[int, float] = {**CONVOLUTION, **dict(enumerate(window, 37)), **columns}
    for shapes, expected in (((image, kernel), [0, 1]), ((kernel, image), [1, 0])):
        parameters: list[Node] = [("parameter", shape, []) for shape in shapes]
        found = pair(graph_of(*parameters, ("convolution", output, [0, 1]), columns={2: features}))
        assert found == (expected if image != kernel else [0, 1])


def test_axes_out_of_range_are_no_error() -> None:
    parameters: list[Node] = [("parameter", [2, 3], []), ("parameter", [3, 4], [])]
    for axis in (-3, 17, 1e9):
        graph = graph_of(*parameters, ("convolution", [2, 4], [0, 1]), columns={2: {93: axis, 101: axis, 37: 2}})
        assert pair(graph) == [0, 1]


def test_layouts_decide_if_shapes_allow_both_orders() -> None:
    graph = graph_of(("parameter", [2, 7], []), ("parameter", [7], []), ("dot", [2], [0, 1]))
    assert pair(graph) == pair(graph, 1, 1) == pair(graph, 2, 1) == [0, 1]
    # A layout of the second operand names a second dimension.
    assert pair(graph, 1, 2) == [1, 0]
    assert pair(graph, 2, 2) == [0, 1]


def test_nodes_with_one_or_three_operands() -> None:
    parameter: Node = ("parameter", [4, 4], [])
    assert pair(graph_of(parameter, ("dot", [4, 4], [0, 0]))) == [0, 0]
    assert pair(graph_of(parameter, ("reshape", [16], [0]))) == [0, 0]
    assert pair(graph_of(parameter, ("dot", [4, 4], []))) == [-1, -1]
    assert pair(graph_of(parameter, parameter, parameter, ("dot", [4, 4], [0, 1, 2]))) == [0, 1]


def test_the_order_of_edges_does_not_matter() -> None:
    graph, node_ids = layout_graph(nodes=200).graph, np.flatnonzero(np.arange(200) % 3 > 0)
    dims = np.random.default_rng(0).integers(0, 5, (len(node_ids), 2))
    expected = operand_pairs(graph, node_ids, dims)
    for node, found in zip(node_ids, expected.tolist(), strict=True):
        operands = sorted(set(graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()))
        assert sorted(found) == (2 * operands if len(operands) == 1 else operands)
    assert (expected[:, 0] > expected[:, 1]).any()
    shuffled = np.random.default_rng(1).permutation(np.concatenate([graph.edge_index] * 2))
    moved = Graph(graph.node_feat, graph.node_opcode, shuffled, graph.node_splits)
    np.testing.assert_array_equal(operand_pairs(moved, node_ids, dims), expected)


def right_shapes(measured: MeasuredGraph, program: Program) -> tuple[int, int, int]:
    """Count configurable nodes: those whose operands have the right shapes, all, and those with two operands."""
    assert isinstance(measured.configurations, LayoutConfigurations)
    node_ids, dims = measured.configurations.node_ids, measured.graph.node_feat[:, 21:27]
    # Without layouts, which would help.
    pairs = operand_pairs(measured.graph, node_ids, np.zeros((len(node_ids), 2), np.int64))
    true = np.array([(2 * program.operands[node])[:2] for node in node_ids])
    right = (dims[pairs] == dims[true]).all(axis=(1, 2))
    two = sum(len(set(program.operands[node])) > 1 for node in node_ids)
    return int(right.sum()), len(node_ids), two


def test_the_official_protobuf(shared_data: Path) -> None:
    (record,) = read_records(shared_data / "official" / "module_tuning_data_layout.pb")
    # Ascending numbers alone are right at 45.
    assert right_shapes(*featurize(record)) == (62, 62, 53)


def test_convolutions_of_jax_and_their_gradients() -> None:
    jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

    def program(x: Any, w: Any, grouped: Any, y: Any) -> Any:
        def loss(w: Any, grouped: Any, x: Any) -> Any:
            convolution, tall = jax.lax.conv_general_dilated, grouped[:4, :1].repeat(8, 1)
            same = convolution(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            groups = convolution(y, grouped, (1, 1), [(1, 1), (0, 2)], feature_group_count=4)
            spread = convolution(y, grouped[:, :1], (1, 1), [(2, 2), (2, 2)], (2, 2), feature_group_count=8)
            batches = convolution(y, tall, (1, 1), "SAME", batch_group_count=2)
            return same.sum() + groups.sum() + (spread**2).sum() + batches.sum()

        return jax.value_and_grad(loss, (0, 1, 2))(w, grouped, x)

    shapes = [(2, 12, 14, 6), (3, 5, 6, 10), (8, 2, 3, 3), (4, 8, 12, 12)]
    lowered = jax.jit(program).lower(*(jax.numpy.zeros(shape) for shape in shapes))
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    record = Record("m", Path("m.pb"), "", HloModuleProto.FromString(data), None)
    right, count, two = right_shapes(*featurize(record))
    assert two >= 9
    assert right == count


LHS, RHS = Axis(0), Axis(1)
K, K1 = Axis(reduced=0), Axis(reduced=1)


def access(opcode: str, dims: Shape, *operands: Shape, **fields: Any) -> Access:
    """Return the access of an instruction whose operands are parameters of the given shapes."""
    program = SyntheticProgram()
    node = program.add(opcode, dims, [program.add("parameter", one) for one in operands], **fields)
    return Accesses(program.graph()).access(node)


@pytest.mark.parametrize(
    ("output", "left", "right", "expected"),
    [
        ([4, 5], [4, 3], [3, 5], ((LHS, K), (K, RHS))),
        ([4, 5], [3, 4], [3, 5], ((K, LHS), (K, RHS))),
        ([4, 4], [4, 4], [4, 4], ((LHS, K), (K, RHS))),  # ambiguous: the last and the first dimension
        ([2, 4, 5], [2, 4, 3], [2, 3, 5], ((Axis(0), Axis(1), K), (Axis(0), K, Axis(2)))),
        ([4, 5], [4, 2, 3], [2, 3, 5], ((LHS, K, K1), (K, K1, RHS))),
        ([], [3], [3], ((K,), (K,))),
        ([4, 5], [4, 3], [2, 5], None),
        ([2, 4, 5], [4, 2, 3], [3, 5, 2], ((RHS, LHS, K), (K, Axis(2), LHS))),  # the batch is anywhere
        ([4, 5], [4, 2, 3], [3, 2, 5], ((LHS, K, K1), (K1, K, RHS))),  # contracted in another order
        ([4, 5], [4], [5], ((LHS,), (RHS,))),  # nothing is contracted
    ],
)
def test_dots(
    output: list[int], left: list[int], right: list[int], expected: tuple[tuple[Axis, ...], tuple[Axis, ...]] | None
) -> None:
    assert dot_axes(output, left, right) == expected


def test_a_convolution_reduces_its_window_and_the_input_features() -> None:
    fields = convolution_fields((3, 1), 2, 4)
    found = access("convolution", (8, 16, 16, 7), (8, 32, 32, 5), (3, 1, 5, 7), **fields)
    image = (Axis(0), Axis(1, 0, stride=2), Axis(2, 1, stride=2), Axis(reduced=2))
    kernel = (Axis(reduced=0), Axis(reduced=1), Axis(reduced=2), Axis(3))
    assert found == Access((3, 1, 5), ((0, image), (1, kernel)))


def test_operands_of_other_instructions_by_dimension() -> None:
    assert access("dot", (4, 5), (4, 2, 3), (2, 3, 5)) == Access((2, 3), ((0, (LHS, K, K1)), (1, (K, K1, RHS))))
    assert access("reduce", (4,), (4, 3), (), dimensions=[1]) == Access((3,), ((0, (LHS, K)), (1, ())))
    assert access("add", (4, 5), (4, 5)).operands == ((0, (LHS, RHS)),)
    assert access("broadcast", (4, 5), (5,), dimensions=[1]).operands == ((0, (RHS,)),)
    assert access("reshape", (4, 5), (20,)).operands == ((0, None),)

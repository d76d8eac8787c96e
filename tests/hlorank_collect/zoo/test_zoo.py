"""The table of models, and its programs."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank_collect.zoo import program_named, programs
from hlorank_collect.zoo.catalog import CATALOG, MODULES

SMALL = (
    "mlp.grouped.b256.forward", "mixer.swap.b2.forward", "unet.nhwc.b2.forward", "dlrm.bf.b512.forward",
    "gnn.edges.n1024.train", "textcnn.nwc.b16.forward", "gru.bt.b64.forward",
)  # fmt: skip


def test_enough_programs_of_enough_families() -> None:
    assert len(programs()) >= 136
    assert {program.family for program in programs().values()} == set(MODULES)
    assert len(MODULES) >= 14
    assert sum(".deep." in name for name in programs()) >= 6
    modes = Counter((program.family, name.rsplit(".", 1)[1]) for name, program in programs().items())
    assert set(modes) == {(family, mode) for family in MODULES for mode in ("forward", "train")}


def test_names_are_unique_and_safe_in_file_names() -> None:
    assert len(programs()) == sum(len(row.modes) for row in CATALOG)
    for name, program in programs().items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        assert (program.name, program.family) == (name, name.split(".")[0])


def test_no_two_rows_make_the_same_model() -> None:
    models = [(row.family, mode, sorted(row.config.items())) for row in CATALOG for mode in row.modes]
    assert all(models.count(model) == 1 for model in models)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'resnet\.nchw\.train'.*resnet\.nchw\.b4\.train"):
        program_named("resnet.nchw.train")
    with pytest.raises(ConfigError, match=r"'\?{4}'.*mlp, mixer"):
        program_named("????")
    assert program_named("resnet.nchw.b4.train") is programs()["resnet.nchw.b4.train"]


class TestPrograms:
    @pytest.fixture(autouse=True)
    def _needs_jax(self) -> None:
        pytest.importorskip("jax", reason="needs jax (extra collect)")

    # A training step computes the forward function, too.
    @pytest.mark.parametrize("name", [f"{row.name}.{row.modes[-1]}" for row in CATALOG])
    def test_traces(self, name: str) -> None:
        import jax

        function, arguments = programs()[name].build()
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(arguments)} <= {"float32", "int32"}
        results = jax.eval_shape(function, *arguments)
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(results))
        if name.endswith(".train"):
            parameters, loss = results
            assert loss.shape == ()
            assert [new.shape for new in parameters] == [old.shape for old in arguments[0]]

    @pytest.mark.parametrize("name", SMALL)
    def test_runs(self, name: str) -> None:
        import jax

        function, arguments = programs()[name].build()
        for leaf in jax.tree.leaves(jax.jit(function)(*arguments)):
            values = np.asarray(leaf)
            assert np.isfinite(values).all()
            assert values.size == 1 or values.std() > 0

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("resnet.50.nhwc.forward", 25_557_032 - 900 * 2049),
            ("efficientnet.b0.nhwc.forward", 5_288_548 - 900 * 1281),
            ("densenet.121.nhwc.forward", 7_978_856 - 900 * 1025),
        ],
    )
    def test_full_depth_models_have_the_size_of_the_published_ones(self, name: str, parameters: int) -> None:
        """100 classes take the place of 1,000; stems and gates are simpler."""
        _, (arrays, _) = programs()[name].build()
        assert sum(array.size for array in arrays) == pytest.approx(parameters, rel=0.03)

    @pytest.mark.parametrize("name", ["encoder.deep.forward", "gru.deep.train"])  # the smallest of either mode
    def test_deep_programs_have_more_than_1000_nodes(self, name: str) -> None:
        import jax

        from hlorank.hlo.hlo_pb2 import HloModuleProto

        function, arguments = programs()[name].build()
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        module = HloModuleProto.FromString(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        assert sum(len(computation.instructions) for computation in module.computations) > 1000

    def test_build_is_deterministic(self) -> None:
        import jax

        program = programs()["dlrm.bf.b512.train"]
        first, second = (jax.tree.leaves(program.build()[1]) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)

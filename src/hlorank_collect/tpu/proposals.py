"""Layouts in the form in which the compiler for TPUs takes them, by the ids of one compilation's instructions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.files import fingerprint, temporary_folder
from hlorank.hlo.hlo_pb2 import HloModuleProto, LayoutProposals
from hlorank.hlo.layout_json import module_layouts
from hlorank.hlo.layout_space import Layouts, tpu_layout_space
from hlorank.hlo.program import flatten
from hlorank_collect import xla
from hlorank_collect.compiled_layouts import configurable

if TYPE_CHECKING:
    import jax


class Assignment:
    """Module right before layout assignment and its configurable layouts; SkippedError where it has none."""

    def __init__(self, module: HloModuleProto, assigned: HloModuleProto) -> None:
        self.module = module
        self.space = configurable(module, tpu_layout_space)
        nodes = [node for computation in assigned.computations for node in computation.instructions]
        found = {node.name: [*node.shape.layout.minor_to_major] for node in nodes}  # the pass changes ids
        before = flatten(module).instructions
        self._assigned = {
            node.id: found.get(node.name) or [*range(len(node.shape.dimensions))][::-1] for node in before
        }
        self._configured = [before[node] for node in self.space.node_ids.tolist()]

    def proposals(self, configuration: Layouts) -> bytes:
        """Return the layouts of each changed node, as serialized LayoutProposals.

        The compiler wants the layout of the output, and of no operand without those before it: a layout of -1 is that
        which the compiler itself assigned.
        """
        self.space.check(configuration)
        result = LayoutProposals()
        rows = configuration.reshape(self.space.nodes, len(LAYOUT_TENSORS), LAYOUT_DIMS)
        for node, layouts in zip(self._configured, rows, strict=True):
            if (layouts == -1).all():
                continue
            proposal = result.instructions[node.id]
            last = int(np.flatnonzero((layouts != -1).any(axis=1))[-1])
            for number, tensor in enumerate([node.id, *node.operand_ids][: last + 1]):
                given = [dim for dim in layouts[number].tolist() if dim >= 0]
                layout = proposal.output if number == 0 else proposal.inputs.add()
                layout.minor_to_major[:] = given or self._assigned[tensor]
        return result.SerializeToString(deterministic=True)


def compiler_options(lowered: jax.stages.Lowered, tuned: str | Path) -> dict[str, str]:
    """Return the options with which JAX compiles a function for a TPU in the layouts of a tuned file.

    The function is compiled once without them: instructions have other ids in each version of the compiler.

    Args:
        lowered: what `jax.jit(function).lower(...)` returns for the arguments that were tuned.
        tuned: the JSON file that `hlorank autotune` wrote.

    Returns:
        Options for `lowered.compile`, which name a file that is deleted when the process ends.

    Raises:
        DataError: the file is damaged, or the module is not the one that was tuned.
    """
    from hlorank_collect.autotune.tuned import read_saved

    folder = temporary_folder()
    lowered.compile(xla.dump_options(folder))
    assignment = Assignment(*xla.around_layout_assignment(folder))
    proposals = assignment.proposals(module_layouts(assignment.module, read_saved(Path(tuned)).configuration))
    path = folder / f"{fingerprint(proposals.hex())}.pb"  # JAX keeps what it compiled with options that are equal
    path.write_bytes(proposals)
    return xla.proposal_options(path)

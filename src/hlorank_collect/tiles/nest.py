"""A kernel as a C loop nest with output tiles and reduction tiles."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from hlorank.hlo.hlo_pb2 import HloInstructionProto
from hlorank_collect.tiles.affine_index import Index, linear, strides
from hlorank_collect.tiles.c_operations import c_type, literal_values, template
from hlorank_collect.tiles.contraction import COMBINATIONS, Contraction, contraction
from hlorank_collect.tiles.elements import Elements, Indices
from hlorank_collect.tiles.kernel import CONTRACTIONS, Body, UnsupportedKernelError


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile, each from 1 to the size of its dimension.

    Attributes:
        output: sizes along the result's dimensions, in logical order.
        reduction: sizes along the reduced dimensions, in the order of `Nest.reduced`.
    """

    output: tuple[int, ...]
    reduction: tuple[int, ...] = ()


class Nest:
    """Loops of a kernel over output tiles, reduction tiles, and the points of both.

    The innermost loop, which the C compiler vectorizes, runs over the dimension along which the largest number of
    arrays is accessed contiguously. Outer loops have the memory order of the result. A tile is accumulated in a
    separate array, and written to the result after its last reduction tile, by the operations that follow the
    contraction.

    Attributes:
        output: sizes of the result's dimensions, logical.
        order: the result's dimensions from major to minor, as in memory.
        points: the result's dimensions in the order of the loops over the points of a tile, outermost first.
        reduced: sizes of the reduced dimensions, empty for a kernel without a contraction.

    Raises:
        UnsupportedKernelError: the kernel cannot be written as such a nest.
    """

    def __init__(self, body: Body) -> None:
        root = body.instructions[body.root]
        self.output = tuple(root.shape.dimensions)
        self.order = tuple(reversed(root.shape.layout.minor_to_major))
        self._parameters = [f"const {c_type(one.shape)} *restrict" for one in body.parameters]
        self._constants = [one for one in body.instructions.values() if one.opcode == "constant"]
        self._result_type = c_type(root.shape)
        index = self._indices("i", self.output)
        self._place = linear(index, self.output, root.shape.layout.minor_to_major)
        self._result = Elements(body, {f"i{dim}": size for dim, size in enumerate(self.output)})
        contractions = [one for one in body.instructions.values() if one.opcode in CONTRACTIONS]
        if len(contractions) > 1:
            raise UnsupportedKernelError("several contractions")
        self._result.given = {one.id: "sum" for one in contractions}
        self._value = self._result.value(root, index)
        self._conditions: list[tuple[str, set[str]]] = []
        self._contraction = self._contract(body, contractions[0]) if contractions else None
        self.reduced = self._contraction.reduced if self._contraction else ()
        self._inner = self._innermost()
        combine = self._contraction.combine if self._contraction and self._inner.startswith("r") else None
        self.points = tuple(sorted(self.order, key=lambda dim: f"i{dim}" == self._inner))
        self._reordered = f" reduction({COMBINATIONS[combine]}:sum)" if combine else ""

    def _contract(self, body: Body, one: HloInstructionProto) -> Contraction:
        """Write the statements of the combined values."""
        place = self._result.places[one.id]
        direct = not any(part.names & self._result.sources.keys() for part in place)
        if not direct or math.prod(one.shape.dimensions) != math.prod(self.output):
            raise UnsupportedKernelError("contraction whose result is not used elementwise")
        found = contraction(body, one)
        self._sum_shape, self._sum_type = one.shape, c_type(one.shape)
        self._first = Elements(body, {})
        self._init = self._first.value(found.init, ()) if found.init else "0"
        sizes = [("i", self.output), ("r", found.reduced)]
        self._term = Elements(body, {f"{letter}{d}": n for letter, dims in sizes for d, n in enumerate(dims)})
        conditions, write = found.term(self._term, place, self._indices("r", found.reduced))
        self._conditions = [(text, set(re.findall(r"\b[ir]\d+\b", text))) for text in conditions]
        if not all(names for _, names in self._conditions):
            raise UnsupportedKernelError("window outside its array")
        self._product = write()
        return found

    @staticmethod
    def _indices(letter: str, sizes: tuple[int, ...]) -> Indices:
        return tuple(Index.variable(f"{letter}{dim}") if size > 1 else Index() for dim, size in enumerate(sizes))

    def _innermost(self) -> str:
        """Return the variable of the innermost loop."""
        elements = self._term if self._contraction else self._result
        # A loop kernel's result is written in the innermost loop; that of a contraction is not.
        places = elements.loads if self._contraction else [*elements.loads, self._place, self._place]
        candidates = [f"i{dim}" for dim in reversed(self.order)]
        candidates += [f"r{dim}" for dim in reversed(range(len(self.reduced)))]

        def in_order(name: str) -> int:
            used = [place for place in places if name in elements.depends(place)]
            return sum(1 if abs(place.coefficient(name)) == 1 else -1 for place in used)

        wide = [name for name in candidates if elements.sizes[name] > 1]
        return max(wide or candidates, key=in_order, default="")

    def constants(self) -> str:
        """Return the constant arrays of the kernel as C."""
        arrays = [one for one in self._constants if one.shape.dimensions]
        return "".join(
            f"static const {c_type(one.shape)} c{one.id}[] = {{{', '.join(literal_values(one.literal))}}};\n"
            for one in arrays
        )

    def function(self, name: str, tile: Tile) -> str:
        """Return the C function `static void <name>(const void *const *in, void *out)` of the kernel in tiles.

        Raises:
            ValueError: the tile has another number of dimensions, or a size is out of range.
        """
        sizes, extents = (*tile.output, *tile.reduction), (*self.output, *self.reduced)
        if len(tile.output) != len(self.output) or len(sizes) != len(extents):
            raise ValueError(f"tile {tile}: expected sizes for {self.output} and {self.reduced}")
        if any(not 1 <= size <= extent for size, extent in zip(sizes, extents, strict=True)):
            raise ValueError(f"tile {tile}: expected sizes from 1 to {self.output} and {self.reduced}")
        parts = [
            f"static void {name}(const void *const *in, void *out) {{",
            *(f"{kind} p{number} = in[{number}];" for number, kind in enumerate(self._parameters)),
            f"{self._result_type} *restrict result = out;",
            *(self._contracting(tile, self._contraction) if self._contraction else self._looping(tile)),
            "}\n",
        ]
        return "\n".join(parts)

    @staticmethod
    def _tile_loops(letter: str, dims: Iterable[int], extents: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
        """Yield loops over tiles; the current tile covers variable v from start_<v> to end_<v>."""
        for dim in dims:
            extent, size, name = extents[dim], sizes[dim], f"{letter}{dim}"
            last = f"start_{name} + {size}"
            end = last if extent % size == 0 else f"{last} < {extent} ? {last} : {extent}"
            yield f"for (long start_{name} = 0; start_{name} < {extent}; start_{name} += {size}) {{"
            yield f"const long end_{name} = {end};"

    def _loop(self, name: str) -> Iterator[str]:
        """Yield a loop over points; the innermost one may run in any order."""
        if name == self._inner:
            yield f"#pragma omp simd{self._reordered}"
        yield f"for (long {name} = start_{name}; {name} < end_{name}; ++{name}) {{"

    def _loops(self, names: Iterable[str]) -> Iterator[str]:
        return chain.from_iterable(map(self._loop, names))

    def _guarded(self, names: Iterable[str], opened: Iterable[str] = ()) -> Iterator[str]:
        """Yield loops over points inside open loops; a condition is tested as soon as its variables are known."""
        known = set(opened)
        for name in names:
            yield from self._loop(name)
            before, known = known, known | {name}
            for condition, needed in self._conditions:
                if needed <= known and not needed <= before:
                    yield f"if (!({condition})) continue;"

    def _looping(self, tile: Tile) -> Iterator[str]:
        names = [f"i{dim}" for dim in self.points]
        yield from self._tile_loops("i", self.order, self.output, tile.output)
        yield from self._loops(names)
        yield from self._result.lines
        yield f"result[{self._place}] = {self._value};"
        yield "}" * 2 * len(names)

    def _contracting(self, tile: Tile, one: Contraction) -> Iterator[str]:
        names = [f"i{dim}" for dim in self.points]
        reduced = sorted((f"r{dim}" for dim in range(len(self.reduced))), key=self._inner.__eq__)
        sizes = [tile.output[dim] for dim in self.points]
        steps = strides(sizes, range(len(sizes))[::-1])
        sums = f"sums[{' + '.join(f'({n} - start_{n}) * {step}' for n, step in zip(names, steps, strict=True)) or 0}]"
        combined = template(one.combine, self._sum_shape)
        assert combined is not None  # COMBINATIONS are elementwise
        count = math.prod(sizes)
        yield f"static {self._sum_type} sums[{count}] __attribute__((aligned(64)));"
        yield from self._first.lines
        yield from self._tile_loops("i", self.order, self.output, tile.output)
        yield f"for (long s = 0; s < {count}; ++s) sums[s] = {self._init};"
        yield from self._tile_loops("r", range(len(reduced)), self.reduced, tile.reduction)
        if self._inner in reduced:
            yield from self._guarded(names)
            yield f"{self._sum_type} sum = {sums};"
            yield from self._guarded(reduced, names)
            yield from self._term.lines
            yield f"const {self._sum_type} term = {self._product};"
            yield f"sum = {combined.format('sum', 'term')};"
            yield "}" * len(reduced)
            yield f"{sums} = sum;"
            yield "}" * len(names)
        else:
            loops = [*names[:-1], *reduced, *names[-1:]]
            yield from self._guarded(loops)
            yield from self._term.lines
            yield f"const {self._sum_type} term = {self._product};"
            yield f"{sums} = {combined.format(sums, 'term')};"
            yield "}" * len(loops)
        yield "}" * len(reduced)
        yield from self._loops(names)
        yield f"const {self._sum_type} sum = {sums};"
        yield from self._result.lines
        yield f"result[{self._place}] = {self._value};"
        yield "}" * 2 * len(names)

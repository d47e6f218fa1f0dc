"""The transpose of a matrix in tiles that fit the vector registers of a CPU, for numba kernels.

The compiler does not find these shuffles by itself; with them a transpose costs half of what a plain loop over tiles
takes, little more than a copy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from smadmm.compilation import inlined

TILE = 8
PAIRS = ((0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15))  # lanes of two registers, one after the other
QUADS = ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
HALVES = ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))


def _shuffled(builder: Any, lines: list[Any]) -> list[Any]:
    """The columns of eight registers: interleave single values, then pairs, then exchange halves."""

    def both(a: Any, b: Any, orders: tuple[tuple[int, ...], ...]) -> list[Any]:
        lanes = ir.VectorType(ir.IntType(32), TILE)
        return [builder.shuffle_vector(a, b, ir.Constant(lanes, order)) for order in orders]

    pairs = [both(lines[k], lines[k + 1], PAIRS) for k in (0, 2, 4, 6)]
    upper, lower = ([v for i in (0, 1) for v in both(pairs[k][i], pairs[k + 1][i], QUADS)] for k in (0, 2))
    columns = [both(upper[k], lower[k], HALVES) for k in range(4)]
    return [column[0] for column in columns] + [column[1] for column in columns]


@intrinsic
def transpose_tile(typing_context, source, r, c, target, i, j):
    """target[i : i + 8, j : j + 8] = source[r : r + 8, c : c + 8]' for matrices of float32 with contiguous rows."""
    if source.dtype != types.float32 or target.dtype != types.float32:
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, integer = ir.VectorType(ir.FloatType(), TILE), ir.IntType(64)

        def pointers(matrix: int) -> list[Any]:
            array = context.make_array(signature.args[matrix])(context, builder, arguments[matrix])
            row, column = arguments[matrix + 1], arguments[matrix + 2]
            pitch = builder.extract_value(array.strides, 0)
            start = builder.add(builder.mul(row, pitch), builder.mul(column, integer(4)))
            first = builder.add(builder.ptrtoint(array.data, integer), start)
            places = [builder.add(first, builder.mul(pitch, integer(k))) for k in range(TILE)]
            return [builder.inttoptr(place, vector.as_pointer()) for place in places]

        lines = [builder.load(pointer, align=4) for pointer in pointers(0)]
        for column, pointer in zip(_shuffled(builder, lines), pointers(3), strict=True):
            builder.store(column, pointer, align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


@inlined()
def transpose(source, target, rows, columns):
    """target[:columns, :rows] = source[:rows, :columns]'."""
    whole_rows, whole_columns = rows - rows % TILE, columns - columns % TILE
    for c in range(0, whole_columns, TILE):
        for r in range(0, whole_rows, TILE):
            transpose_tile(source, r, c, target, c, r)
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            target[c, r] = source[r, c]

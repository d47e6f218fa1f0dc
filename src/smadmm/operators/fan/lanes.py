"""The inner loops of the fan beam on vectors of L float32 numbers, for numba kernels.

L is a matter of types: kernels are given a tuple of L zeros, and each length has code of its own. A gather within a
window of pixels or rays is a permutation of registers, which AVX-512 has for L = 16 and AVX2 for L = 8; the compiler
would not find it. With L = 1 the same code is plain loops for any CPU.

Forward and adjoint place ray j on row y by the same operation, x_j = y m_j + X_j in float32. Then the weights 1 - f and
f of its two pixels, f = x - floor(x), are the same numbers as hat(x - c) = max(0, 1 - |x - c|): the adjoint is exact
although x is rounded.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PAD = 24  # empty pixels beside a row: more than lanes, and than a window reaches beyond
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
FAST = ("fast",)


def host_lanes() -> tuple[int, ...]:
    """As many zeros as lanes suit this CPU."""
    features = binding.get_host_cpu_features()
    return (0,) * (16 if features.get("avx512f") else 8 if features.get("avx2") else 1)


class Lanes:
    """Instructions on vectors of `count` numbers."""

    def __init__(self, builder: Any, count: int):
        self.b, self.count = builder, count
        self.floats, self.ints = ir.VectorType(F32, count), ir.VectorType(I32, count)
        self.numbers = ir.Constant(self.floats, [float(i) for i in range(count)])

    def constant(self, value: float) -> Any:
        return ir.Constant(self.floats, [value] * self.count)

    def splat(self, value: Any) -> Any:
        one = self.b.insert_element(ir.Constant(ir.VectorType(value.type, self.count), ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(one, one, ir.Constant(self.ints, [0] * self.count))

    def address(self, base: Any, index: Any) -> Any:
        """Of the float32 number `index`."""
        return self.b.add(base, self.b.shl(index, I64(2)))

    def load(self, base: Any, index: Any) -> Any:
        place = self.b.inttoptr(self.address(base, index), self.floats.as_pointer())
        return self.b.load(place, align=4)

    def store(self, value: Any, base: Any, index: Any) -> None:
        self.b.store(value, self.b.inttoptr(self.address(base, index), self.floats.as_pointer()), align=4)

    def call(self, name: str, *values: Any) -> Any:
        """A function of the compiler: vectors in, a vector of numbers out."""
        kind = ir.FunctionType(self.floats, [value.type for value in values])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, name), list(values))

    def plain(self, name: str, *values: Any) -> Any:
        return self.call(f"llvm.{name}.v{self.count}f32", *values)

    def permute(self, values: Any, index: Any) -> Any:
        """values[index], lane by lane."""
        if self.count == 16:
            return self.call("llvm.x86.avx512.permvar.sf.512", values, index)
        if self.count == 8:
            return self.call("llvm.x86.avx2.permps", values, index)
        return values

    def choose(self, windows: list[Any], index: Any) -> Any:
        """The lanes `index` of one window, or of two that follow each other."""
        if len(windows) == 1:
            return self.permute(windows[0], index)
        if self.count == 16:
            return self.call("llvm.x86.avx512.vpermi2var.ps.512", windows[0], index, windows[1])
        last = ir.Constant(self.ints, [self.count - 1] * self.count)
        low, high = (self.permute(window, self.b.and_(index, last)) for window in windows)
        return self.b.select(self.b.icmp_signed(">", index, last), high, low)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, number: int) -> Any:
    """Address of the first number of an array among the arguments."""
    array = context.make_array(signature.args[number])(context, builder, arguments[number])
    return builder.ptrtoint(array.data, I64)


@intrinsic
def add_rows(typing_context, image, first, last, half, X, m, start, total, lanes):
    """total[start : start + L] += the sum over rows r = first..last-1 of the padded image at x = (r - half) m + X."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        v = Lanes(b, lanes.count)
        pixels, X_, m_, total_ = (_pointer(context, b, signature, arguments, k) for k in (0, 4, 5, 7))
        pitch = b.extract_value(context.make_array(image)(context, b, arguments[0]).strides, 0)
        half_, start_ = arguments[3], arguments[6]
        offsets, slopes = v.load(X_, start_), v.load(m_, start_)
        sums = cgutils.alloca_once_value(b, v.load(total_, start_))
        with cgutils.for_range_slice(b, arguments[1], arguments[2], I64(1)) as (r, _):
            y = v.splat(b.fsub(b.sitofp(r, F32), half_))
            x = v.plain("fmuladd", y, slopes, offsets)
            left_of = v.plain("floor", x)
            index, f = b.fptosi(left_of, v.ints), b.fsub(x, left_of)
            base = b.extract_element(index, I32(0))
            chosen, row = b.sub(index, v.splat(base)), b.add(pixels, b.mul(r, pitch))
            place = b.add(b.sext(base, I64), I64(PAD))
            left, right = (v.permute(v.load(row, b.add(place, I64(k))), chosen) for k in (0, 1))
            part = b.fadd(left, b.fmul(f, b.fsub(right, left, flags=FAST), flags=FAST), flags=FAST)
            b.store(b.fadd(b.load(sums), part, flags=FAST), sums)
        v.store(b.load(sums), total_, start_)
        return context.get_dummy_value()

    integer = types.intp
    kinds = (image, integer, integer, types.float32, X, m, integer, total, lanes)
    return types.void(*kinds), generate


@intrinsic
def place_rays(typing_context, X, m, y, begin, end, x, lanes):
    """x[j] = y m_j + X_j for j = begin..end-1, and up to L - 1 more."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        v = Lanes(b, lanes.count)
        X_, m_, x_ = (_pointer(context, b, signature, arguments, k) for k in (0, 1, 5))
        y_ = v.splat(arguments[2])
        with cgutils.for_range_slice(b, arguments[3], arguments[4], I64(v.count)) as (j, _):
            v.store(v.plain("fmuladd", y_, v.load(m_, j), v.load(X_, j)), x_, j)
        return context.get_dummy_value()

    integer = types.intp
    return types.void(X, m, types.float32, integer, integer, x, lanes), generate


def _spreader(rays: int, windows: int) -> Any:
    @intrinsic
    def spread(typing_context, x, y, first, into, rise, c, row, lanes):
        """row[c + l] += sum_k hat(x_k - c - l) y_k over `rays` rays k from first + floor(into + l rise) on, l < L.

        floor(into + l rise) is below `windows` L. Each k has windows of its own, read from first + k on: loads cost
        less than indices for each k.
        """

        def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            v = Lanes(b, lanes.count)
            x_, y_, row_ = (_pointer(context, b, signature, arguments, k) for k in (0, 1, 6))
            first_, into_, rise_, c_ = arguments[2:6]
            rel = b.fptosi(v.plain("fmuladd", v.numbers, v.splat(rise_), v.splat(into_)), v.ints)
            pixels = b.fadd(v.splat(b.sitofp(c_, F32)), v.numbers)
            zero, one = v.constant(0.0), v.constant(1.0)
            total = zero
            for k in range(rays):
                xs, ys = (
                    v.choose([v.load(p, b.add(first_, I64(k + w * v.count))) for w in range(windows)], rel)
                    for p in (x_, y_)
                )
                hat = b.fsub(one, v.plain("fabs", b.fsub(xs, pixels)))
                hat = b.select(b.fcmp_ordered(">", hat, zero), hat, zero)
                total = v.plain("fmuladd", hat, ys, total)
            place = b.add(c_, I64(PAD))
            v.store(b.fadd(v.load(row_, place), total), row_, place)
            return context.get_dummy_value()

        real, integer = types.float32, types.intp
        return types.void(x, y, integer, real, real, integer, row, lanes), generate

    return spread


spread_two = _spreader(2, 1)
spread_three = _spreader(3, 2)
spread_five = _spreader(5, 2)

"""Vectors of float32 for compiled loops, which keep their sums in registers.

numba's compiler makes vectors of simple loops by itself, but not of products that use twice what they have
loaded. `load(array, at)` reads LANES numbers of a flat array. The order of all sums is the one that is
written, on every machine with as many lanes.
"""

from importlib import import_module
from typing import Any

numba: Any = import_module("numba")
cgutils: Any = import_module("numba.core.cgutils")
extending: Any = import_module("numba.extending")
ir: Any = import_module("llvmlite.ir")
binding: Any = import_module("llvmlite.binding")

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
FLOATS = ir.VectorType(ir.FloatType(), LANES)
float32, intp, void = numba.types.float32, numba.types.intp, numba.types.void
operation = extending.intrinsic


class Lanes(numba.types.Type):  # type: ignore[misc]
    """The type of LANES numbers."""

    def __init__(self) -> None:
        super().__init__("Lanes")


@extending.register_model(Lanes)
class LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    """They are one value of the compiler."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


lanes = Lanes()


def _address(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, values[0]).data
    return builder.bitcast(builder.gep(data, [values[1]]), FLOATS.as_pointer())


def _shuffled(builder: Any, value: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), _constant(places))


def _constant(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


@operation  # type: ignore[untyped-decorator]
def load(_: Any, array: Any, at: Any) -> Any:
    """The LANES numbers of an array from `at` on."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_address(context, builder, signature, values), align=4)

    return lanes(array, intp), build


@operation  # type: ignore[untyped-decorator]
def store(_: Any, array: Any, at: Any, value: Any) -> Any:
    """Write LANES numbers into an array from `at` on."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _address(context, builder, signature, values), align=4)
        return context.get_dummy_value()

    return void(array, intp, lanes), build


@operation  # type: ignore[untyped-decorator]
def splat(_: Any, number: Any) -> Any:
    """The same number in all lanes."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first = ir.Constant(ir.IntType(32), 0)
        return _shuffled(
            builder, builder.insert_element(ir.Constant(FLOATS, ir.Undefined), *values, first), [0] * LANES
        )

    return lanes(float32), build


@operation  # type: ignore[untyped-decorator]
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once where the machine can."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, name = ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)

    return lanes(lanes, lanes, lanes), build


@operation  # type: ignore[untyped-decorator]
def larger(_: Any, a: Any, b: Any) -> Any:
    """The larger of a and b in each lane."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *values), *values)

    return lanes(lanes, lanes), build


@operation  # type: ignore[untyped-decorator]
def where_equal(_: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes where a = b, else `no`."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("==", *values[:2]), *values[2:])

    return lanes(lanes, lanes, lanes, lanes), build


@operation  # type: ignore[untyped-decorator]
def total(_: Any, a: Any) -> Any:
    """The sum over the lanes, by halves."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (value,), n = values, LANES
        while n > 1:
            n //= 2
            low, high = (_shuffled(builder, value, list(range(k, k + n))) for k in (0, n))
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return float32(lanes), build


@operation  # type: ignore[untyped-decorator]
def store_totals(_: Any, array: Any, at: Any, a: Any, b: Any, c: Any, d: Any, more: Any, place: Any) -> Any:
    """Write the sums of four vectors, each as in `total`, plus four numbers of another array from `place` on."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        parts, n = list(values[2:6]), LANES
        while n > 1:
            n //= 2
            pairs = list(zip(parts[::2], parts[1::2], strict=False)) or [(parts[0], parts[0])]
            groups = 4 // len(pairs)
            first = [g * 2 * n + k for g in range(groups) for k in range(n)]
            parts = [
                builder.fadd(
                    builder.shuffle_vector(*pair, _constant(first)),
                    builder.shuffle_vector(*pair, _constant([lane + n for lane in first])),
                )
                for pair in pairs
            ]
        four = parts[0].type.as_pointer()
        data = context.make_array(signature.args[6])(context, builder, values[6]).data
        beside = builder.load(builder.bitcast(builder.gep(data, [values[7]]), four), align=4)
        place = builder.bitcast(_address(context, builder, signature, values), four)
        builder.store(builder.fadd(beside, parts[0]), place, align=4)
        return context.get_dummy_value()

    return void(array, intp, lanes, lanes, lanes, lanes, more, intp), build

"""The pass of `memory.memory`, compiled by numba: every number is read once and written once.

Operation for operation as in numpy, row after row, so that the bits are the same; coordinates from
`begin` to `end`, so that threads can share the work. Loaded when it is
first worth it; what was compiled is kept on disk.
"""

from importlib import import_module
from typing import Any

import numpy as np

numba: Any = import_module("numba")
extending: Any = import_module("numba.extending")

BLOCK = 1 << 14  # coordinates at a time, so that their sums stay in the cache from row to row
f32, f64, i8, i32, u16, u32 = np.float32, np.float64, np.int8, np.int32, np.uint16, np.uint32


def _from_float32(code: Any, scale: Any) -> Any:
    return code


def _from_int8(code: Any, scale: Any) -> Any:
    return f32(code) * scale


def _from_float16(code: Any, scale: Any) -> Any:
    """The exponent of float32 is biased by 127 - 15 = 112 more."""
    magnitude = u32(u32(code & u16(0x7FFF)) << u32(13)).view(f32) * f32(2.0**112)
    return (-magnitude if code & u16(0x8000) else magnitude) * scale


def _to_float32(like: Any, value: Any, inverse: Any, start: Any, factor: Any, j: Any) -> Any:
    return value


def _to_int8(like: Any, value: Any, inverse: Any, start: Any, factor: Any, j: Any) -> Any:
    x = u32(u32(j) * u32(0x9E3779B1) + start)
    x = u32(u32(x ^ (x >> u32(16))) * factor)
    x = u32(u32(x ^ (x >> u32(15))) * u32(0x735A2D97))
    y = value * inverse
    down = np.floor(y)
    up = f32(i32(x >> u32(8))) * f32(2.0**-24) < y - down
    return i8(i32(down) + i32(up))


def _to_float16(like: Any, value: Any, inverse: Any, start: Any, factor: Any, j: Any) -> Any:
    """To the nearest, ties to even: normal numbers by a carry, small ones by adding ½ in float32."""
    bits = f32(value * inverse).view(u32)
    magnitude = u32(bits & u32(0x7FFFFFFF))
    odd = u32((magnitude >> u32(13)) & u32(1))
    normal = u32(u32(magnitude - u32(0x38000000) + u32(0xFFF) + odd) >> u32(13))
    small = u32(f32(magnitude.view(f32) + f32(0.5)).view(u32) - u32(0x3F000000))
    return u16((small if magnitude < u32(0x38800000) else normal) | ((bits & u32(0x80000000)) >> u32(16)))


def decoded(code: Any, scale: Any) -> Any:
    """One of the above, by the type of the code."""


def encoded(like: Any, value: Any, inverse: Any, start: Any, factor: Any, j: Any) -> Any:
    """One of the above, by the type of the code that is replaced."""


def _decoder(code: Any, scale: Any) -> Any:
    return {"float32": _from_float32, "uint16": _from_float16, "int8": _from_int8}[str(code)]


def _encoder(like: Any, value: Any, inverse: Any, start: Any, factor: Any, j: Any) -> Any:
    return {"float32": _to_float32, "uint16": _to_float16, "int8": _to_int8}[str(like)]


def _largest(
    codes: Any, places: Any, updates: Any, arrived: Any, whole: Any,
    fresh: Any, stale: Any, gain: Any, weights: Any, keys: Any, begin: Any, end: Any, before: Any,
) -> Any:  # fmt: skip
    """(m,) the bits of the largest magnitude of each new row: as whole numbers they have the same order,
    and a compiler can take many at once.
    """
    m, wide, magnitude = len(updates), arrived.shape[1] > 1, i32(0x7FFFFFFF)
    bits, largest = updates.view(i32), np.zeros(m, i32)
    for k in range(m):
        best, row, update, g = i32(0), codes[places[k], begin:end], updates[k, begin:end], gain[k]
        word = bits[k, begin:end]
        if whole[k] and g == 1:
            for j in range(len(word)):
                x = i32(word[j] & magnitude)
                best = x if x > best else best
        else:
            for j in range(len(word)):
                h = decoded(row[j], before[k])
                Δ = update[j] if arrived[k, begin + j if wide else 0] else h
                x = i32(f32(Δ if g == 1 else h + g * (Δ - h)).view(i32) & magnitude)
                best = x if x > best else best
        largest[k] = best
    return largest


def _update(
    codes: Any, places: Any, updates: Any, arrived: Any, whole: Any,
    fresh: Any, stale: Any, gain: Any, weights: Any, keys: Any, begin: Any, end: Any,
    before: Any, after: Any, inverse: Any, step: Any, total: Any,
    excess: Any, centre: Any, extra: Any, dots: Any,
) -> None:  # fmt: skip
    m, wide, measuring = len(updates), arrived.shape[1] > 1, len(dots) > 0
    for first in range(begin, end, BLOCK):
        last = min(first + BLOCK, end)
        into, over, more = step[first:last], total[first:last], extra[first:last]
        for k in range(m):
            row, update = codes[places[k], first:last], updates[k, first:last]
            seen = arrived[k, first:last] if wide else arrived[k]
            c, β, g, a = fresh[k], stale[k], gain[k], weights[k]
            old, new, i, factor, one = before[k], after[k], inverse[k], keys[k, 1], gain[k] == 1
            start = u32(keys[k, 0] + u32(first) * u32(0x9E3779B1))
            if measuring:
                measure(row, update, centre[first:last], seen, whole[k], old, dots[first // BLOCK, k])
            e = excess[k] if measuring else f32(0)
            if whole[k] and e != 0:
                for j in range(last - first):
                    Δ, h = update[j], decoded(row[j], old)
                    rest = Δ - β * h
                    into[j] += f64(c * rest)
                    more[j] += f64(e * rest)
                    code = encoded(row[j], Δ if one else h + g * (Δ - h), i, start, factor, j)
                    row[j] = code
                    over[j] += (f64(decoded(code, new)) - f64(h)) * a
            elif whole[k]:
                for j in range(last - first):
                    Δ, h = update[j], decoded(row[j], old)
                    into[j] += f64(c * (Δ - β * h))
                    code = encoded(row[j], Δ if one else h + g * (Δ - h), i, start, factor, j)
                    row[j] = code
                    over[j] += (f64(decoded(code, new)) - f64(h)) * a
            else:
                for j in range(last - first):
                    h, there = decoded(row[j], old), seen[j if wide else 0]
                    Δ = update[j] if there else h
                    into[j] += f64(c * (Δ - β * h)) if there else 0.0
                    if e != 0 and there:
                        more[j] += f64(e * (Δ - β * h))
                    code = encoded(row[j], Δ if one else h + g * (Δ - h), i, start, factor, j)
                    row[j] = code
                    over[j] += (f64(decoded(code, new)) - f64(h)) * a


def _measure(row: Any, update: Any, centre: Any, seen: Any, whole: Any, old: Any, dots: Any) -> None:
    """⟨Δ - centre, h - centre⟩ and ‖h - centre‖² of this block, on the coordinates that arrived."""
    dot, squares, wide = 0.0, 0.0, len(seen) > 1
    if whole:
        for j in range(len(row)):
            h = decoded(row[j], old) - centre[j]
            dot += f64((update[j] - centre[j]) * h)
            squares += f64(h * h)
    else:
        for j in range(len(row)):
            if seen[j if wide else 0]:
                h = decoded(row[j], old) - centre[j]
                dot += f64((update[j] - centre[j]) * h)
                squares += f64(h * h)
    dots[0], dots[1] = dot, squares


extending.overload(decoded)(_decoder)
extending.overload(encoded)(_encoder)
compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
in_any_order = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc"})
largest, measure, update = compiled(_largest), in_any_order(_measure), compiled(_update)


def agrees(kind: str) -> bool:
    """Whether a small round with rows of this type gives the sums of numpy, and rows within a rounding of it."""
    h, Δ = np.array([[3, -7, 90], [0, 50, -2]], np.float32), np.array([[-4.25, 8, 1.5], [60, -0.5, 2]], np.float32)
    half, one, a = np.full(2, 0.5, f32), np.ones(2, f32), np.array([0.25, 0.5])
    codes, step, total, keys = h.astype(kind), np.zeros(3), np.zeros(3), np.ones((2, 2), u32)
    written = codes.view(u16) if kind == "float16" else codes  # numba knows no float16
    update(
        written, np.arange(2), Δ, np.ones((2, 1), np.bool_), np.ones(2, np.bool_), half, half, one, a, keys, 0, 3,
        one.copy(), one.copy(), one.copy(), step, total, one, one, step, np.zeros((0, 2, 2)),
    )  # fmt: skip
    new = codes.astype(f32)
    near = (np.abs(new - Δ) < 1).all() if kind == "int8" else np.array_equal(new, Δ)
    sums = np.array_equal(step, (0.5 * (Δ - 0.5 * h)).sum(axis=0)), np.array_equal(total, a @ (new - h))
    return bool(near) and all(sums)

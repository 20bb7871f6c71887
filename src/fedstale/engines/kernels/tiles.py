"""Products and pooling of images whose samples lie side by side, for `convolutional`; see `stages` for the places.

A tile is three positions, or inputs, by four channels: its twelve sums stay in registers. numba keeps what it has
compiled until the calling file changes: after a change here or in `lanes`, delete `__pycache__`.
"""

from typing import Any

import numpy as np

from fedstale.engines.kernels.lanes import fma, larger, load, splat, store, total, where_equal
from fedstale.engines.kernels.linear import compiled

f32 = np.float32


@compiled  # type: ignore[untyped-decorator]
def products(
    a: Any, x_at: Any, x_taps: Any, w: Any, w_taps: Any, w_plane: Any, bias: Any, y_at: Any, y_plane: Any, outs: Any
) -> None:
    """y = Σ w x + bias at every position; channels that fill up the last tile get any numbers."""
    n = len(x_at)
    for p in range(0, n, 3):
        q, r = min(p + 1, n - 1), min(p + 2, n - 1)
        xp, xq, xr, yp, yq, yr = x_at[p], x_at[q], x_at[r], y_at[p], y_at[q], y_at[r]
        for o in range(0, outs, 4):
            p0, p1, p2, p3 = splat(bias[o]), splat(bias[o + 1]), splat(bias[o + 2]), splat(bias[o + 3])
            q0, q1, q2, q3, r0, r1, r2, r3 = p0, p1, p2, p3, p0, p1, p2, p3
            for t in range(len(x_taps)):
                tap, k = x_taps[t], o * w_plane + w_taps[t]
                u, v, z = load(a, xp + tap), load(a, xq + tap), load(a, xr + tap)
                s = splat(w[k])
                p0, q0, r0 = fma(s, u, p0), fma(s, v, q0), fma(s, z, r0)
                s = splat(w[k + w_plane])
                p1, q1, r1 = fma(s, u, p1), fma(s, v, q1), fma(s, z, r1)
                s = splat(w[k + 2 * w_plane])
                p2, q2, r2 = fma(s, u, p2), fma(s, v, q2), fma(s, z, r2)
                s = splat(w[k + 3 * w_plane])
                p3, q3, r3 = fma(s, u, p3), fma(s, v, q3), fma(s, z, r3)
            for at, c0, c1, c2, c3 in ((yp, p0, p1, p2, p3), (yq, q0, q1, q2, q3), (yr, r0, r1, r2, r3)):
                at += o * y_plane
                store(a, at, c0)
                store(a, at + y_plane, c1)
                store(a, at + 2 * y_plane, c2)
                store(a, at + 3 * y_plane, c3)


@compiled  # type: ignore[untyped-decorator]
def weight_gradients(a: Any, x_at: Any, x_taps: Any, y_at: Any, y_plane: Any, outs: Any, into: Any) -> None:
    """Add Σ g x over all positions and samples to the gradients of the weights; the taps are whole tiles."""
    zero, wide = splat(f32(0)), len(x_taps)
    for o in range(0, outs, 4):
        for t in range(0, wide, 3):
            t0, t1, t2 = x_taps[t], x_taps[t + 1], x_taps[t + 2]
            p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
            r0, r1, r2, r3 = zero, zero, zero, zero
            for k in range(len(x_at)):
                x, y = x_at[k], y_at[k] + o * y_plane
                u, v, z = load(a, x + t0), load(a, x + t1), load(a, x + t2)
                s = load(a, y)
                p0, q0, r0 = fma(s, u, p0), fma(s, v, q0), fma(s, z, r0)
                s = load(a, y + y_plane)
                p1, q1, r1 = fma(s, u, p1), fma(s, v, q1), fma(s, z, r1)
                s = load(a, y + 2 * y_plane)
                p2, q2, r2 = fma(s, u, p2), fma(s, v, q2), fma(s, z, r2)
                s = load(a, y + 3 * y_plane)
                p3, q3, r3 = fma(s, u, p3), fma(s, v, q3), fma(s, z, r3)
            at = o * wide + t
            for s0, s1, s2 in ((p0, q0, r0), (p1, q1, r1), (p2, q2, r2), (p3, q3, r3)):
                into[at] += total(s0)
                into[at + 1] += total(s1)
                into[at + 2] += total(s2)
                at += wide


@compiled  # type: ignore[untyped-decorator]
def bias_gradients(a: Any, y_at: Any, y_plane: Any, outs: Any, into: Any) -> None:
    """Add Σ g over all positions and samples to the gradients of the bias."""
    one = splat(f32(1))
    for o in range(0, outs, 4):
        c0, c1, c2, c3 = splat(f32(0)), splat(f32(0)), splat(f32(0)), splat(f32(0))
        for y in y_at:
            at = y + o * y_plane
            c0, c1 = fma(one, load(a, at), c0), fma(one, load(a, at + y_plane), c1)
            c2, c3 = fma(one, load(a, at + 2 * y_plane), c2), fma(one, load(a, at + 3 * y_plane), c3)
        for k, c in enumerate((c0, c1, c2, c3)):
            into[o + k] += total(c)


@compiled  # type: ignore[untyped-decorator]
def pool(a: Any, y_at: Any, y_plane: Any, outs: Any, window: Any, into_at: Any, into_plane: Any) -> None:
    """The relu of the largest of each window becomes an input of the next stage."""
    for o in range(outs):
        for k in range(len(into_at)):
            best = splat(f32(0))
            for y in y_at[k * window : (k + 1) * window]:
                best = larger(load(a, y + o * y_plane), best)
            store(a, into_at[k] + o * into_plane, best)


@compiled  # type: ignore[untyped-decorator]
def unpool(
    a: Any, y_at: Any, y_plane: Any, outs: Any, window: Any, into_at: Any, into_plane: Any, x_to_g: Any
) -> None:
    """The gradient of an input goes to the first position of its window that has its value, if this is above 0."""
    zero = splat(f32(0))
    for o in range(outs):
        for k in range(len(into_at)):
            at = into_at[k] + o * into_plane
            best, left = load(a, at), load(a, at + x_to_g)
            left = where_equal(best, zero, zero, left)
            for y in y_at[k * window : (k + 1) * window]:
                value = load(a, y + o * y_plane)
                store(a, y + o * y_plane, where_equal(value, best, left, zero))
                left = where_equal(value, best, zero, left)

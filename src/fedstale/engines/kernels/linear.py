"""Draws and linear models, compiled by numba: a client's round without a temporary and without the interpreter.

The draws are those of `minibatches` to the bit: numpy's Philox and its shuffle, written out. What is
computed from them agrees up to the order of float32 sums. What was compiled is kept on disk.
"""

from importlib import import_module
from typing import Any

import numpy as np

numba: Any = import_module("numba")
f32, u32, u64 = np.float32, np.uint32, np.uint64

LOW, HALF = u64(0xFFFFFFFF), u64(32)
MULTIPLIERS = u64(0xD2E7470EE14C6C93), u64(0xCA5A826395121157)  # of Philox 4 × 64, ten rounds
KEY_STEPS = u64(0x9E3779B97F4A7C15), u64(0xBB67AE8584CAA73B)

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
fast = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled  # type: ignore[untyped-decorator]
def _high(a: Any, b: Any) -> Any:
    """The upper half of the product of two 64-bit numbers."""
    a0, a1, b0, b1 = a & LOW, a >> HALF, b & LOW, b >> HALF
    middle = a1 * b0 + ((a0 * b0) >> HALF)
    return a1 * b1 + (middle >> HALF) + ((a0 * b1 + (middle & LOW)) >> HALF)


@compiled  # type: ignore[untyped-decorator]
def _block(counter: Any, k0: Any, k1: Any, words: Any) -> None:
    """Eight 32-bit words of Philox, the lower half of each number first."""
    a, b, c, d = counter, u64(0), u64(0), u64(0)
    for _ in range(10):
        high_a, low_a = _high(MULTIPLIERS[0], a), MULTIPLIERS[0] * a
        high_c, low_c = _high(MULTIPLIERS[1], c), MULTIPLIERS[1] * c
        a, b, c, d = high_c ^ b ^ k0, low_c, high_a ^ d ^ k1, low_a
        k0, k1 = k0 + KEY_STEPS[0], k1 + KEY_STEPS[1]
    for k, number in enumerate((a, b, c, d)):
        words[2 * k], words[2 * k + 1] = u32(number & LOW), u32(number >> HALF)


@compiled  # type: ignore[untyped-decorator]
def _shuffles(k0: Any, k1: Any, size: Any, wanted: Any, order: Any, drawn: Any) -> None:
    """One shuffle of `size` samples after the other until enough are drawn."""
    words, used, counter = np.empty(8, np.uint32), 8, u64(0)
    for begin in range(0, wanted, size):
        for i in range(size):
            order[i] = i
        mask = u32(0)
        while mask < u32(size - 1):
            mask = (mask << u32(1)) | u32(1)
        for i in range(size - 1, 0, -1):
            while mask >> u32(1) >= u32(i):
                mask >>= u32(1)
            j = u32(0xFFFFFFFF)
            while j > u32(i):
                if used == 8:
                    counter += u64(1)
                    _block(counter, k0, k1, words)
                    used = 0
                j = words[used] & mask
                used += 1
            order[i], order[j] = order[j], order[i]
        for i in range(min(size, wanted - begin)):
            drawn[begin + i] = order[i]


@compiled  # type: ignore[untyped-decorator]
def draw(keys: Any, held: Any, sizes: Any, samples: Any) -> None:
    """samples (steps, G, b): of each of G clients, which hold `held`, `sizes` a step; the rest is left alone."""
    steps, G, b = samples.shape
    order, drawn = np.empty(held.max(), np.int64), np.empty(steps * b, np.int64)
    for g in range(G):
        size = sizes[g]
        _shuffles(keys[g, 0], keys[g, 1], held[g], steps * size, order, drawn)
        for step in range(steps):
            samples[step, g, :size] = drawn[step * size : (step + 1) * size]


@fast  # type: ignore[untyped-decorator]
def _logits(w: Any, bias: Any, x: Any, batch: Any, z: Any) -> None:
    """z (out, b) = w x + bias, four samples at a time: a weight that was loaded is used four times."""
    b = len(batch)
    for s in range(0, b, 4):
        x0, x1 = x[batch[s]], x[batch[min(s + 1, b - 1)]]
        x2, x3 = x[batch[min(s + 2, b - 1)]], x[batch[min(s + 3, b - 1)]]
        for o in range(len(bias)):
            row, z0, z1, z2, z3 = w[o], f32(0), f32(0), f32(0), f32(0)
            for k in range(len(row)):
                z0 += row[k] * x0[k]
                z1 += row[k] * x1[k]
                z2 += row[k] * x2[k]
                z3 += row[k] * x3[k]
            z[o, s], z[o, s + 1], z[o, s + 2], z[o, s + 3] = z0 + bias[o], z1 + bias[o], z2 + bias[o], z3 + bias[o]


@fast  # type: ignore[untyped-decorator]
def exponential(x: Any) -> Any:
    """e^x for x ≤ 0, within 2 units in the last place: 2^n times a polynomial, which a compiler can vectorise."""
    x = max(x, f32(-87.0))
    n = np.floor(x * f32(1.44269504) + f32(0.5))
    r = (x - n * f32(0.693359375)) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * u32((np.int32(n) + np.int32(127)) << np.int32(23)).view(f32)


@fast  # type: ignore[untyped-decorator]
def entropies(z: Any, labels: Any, top: Any, total: Any, entropy: Any) -> None:
    """z becomes its softmax along the outputs, minus 1 at the label; samples side by side."""
    outs, b = z.shape
    top[:] = z[0]
    for o in range(1, outs):
        for s in range(b):
            top[s] = max(top[s], z[o, s])
    for s in range(len(labels)):
        entropy[s] = top[s] - z[labels[s], s]
    total[:] = 0
    for o in range(outs):
        for s in range(b):
            z[o, s] = exponential(z[o, s] - top[s])
            total[s] += z[o, s]
    for s in range(b):
        top[s] = f32(1) / total[s]
    for o in range(outs):
        for s in range(b):
            z[o, s] *= top[s]
    for s in range(len(labels)):
        z[labels[s], s] -= f32(1)


@fast  # type: ignore[untyped-decorator]
def _move(w: Any, bias: Any, x: Any, batch: Any, g: Any, rate: Any, keep: Any) -> None:
    """w ← keep·w - rate·g xᵀ, and the bias likewise."""
    b = len(batch)
    for o in range(len(bias)):
        row, change = w[o], f32(0)
        if keep != 1:
            for k in range(len(row)):
                row[k] *= keep
        for s in range(b):
            change += g[o, s]
        bias[o] = bias[o] * keep - rate * change
    for s in range(0, b, 4):
        x0, x1 = x[batch[s]], x[batch[min(s + 1, b - 1)]]
        x2, x3 = x[batch[min(s + 2, b - 1)]], x[batch[min(s + 3, b - 1)]]
        for o in range(len(bias)):
            row, g0, g1 = w[o], -rate * g[o, s], -rate * g[o, s + 1]
            g2, g3 = -rate * g[o, s + 2], -rate * g[o, s + 3]
            for k in range(len(row)):
                row[k] += g0 * x0[k] + g1 * x1[k] + g2 * x2[k] + g3 * x3[k]


@fast  # type: ignore[untyped-decorator]
def linear(
    x: Any, y: Any, samples: Any, sizes: Any, sharers: Any, training: Any,
    rows: Any, job: Any, params: Any, rate: Any, keep: Any, shift: Any, momentum: Any,
    updates: Any, losses: Any,
) -> None:  # fmt: skip
    """A chunk of linear models: its row k = g·J + j trains on the samples of draw g, times `keep`, plus `shift`.

    With `momentum` (R,) this change is added to a speed, which moves the weights; without, it is empty.
    """
    (steps, G, b), wide = samples.shape, x.shape[1]
    outs, padded = params.shape[1] // (wide + 1), (b + 3) // 4 * 4
    z, w = np.zeros((outs, padded), np.float32), np.empty((outs, wide), np.float32)
    top, total, entropy = np.empty(padded, np.float32), np.empty(padded, np.float32), np.empty(b, np.float32)
    bias, labels = np.empty(outs, np.float32), np.empty(b, np.int64)
    speed, bias_speed = np.empty_like(w), np.empty_like(bias)
    for k in range(G * sharers):
        g, row = k // sharers, rows[k]
        size, sent, out = sizes[g], params[job[row]], updates[row]
        for o in range(outs):
            w[o] = sent[o * wide : (o + 1) * wide]
            bias[o] = sent[outs * wide + o]
        if len(momentum):
            speed[:], bias_speed[:] = 0, 0
        for step in range(steps if training else 1):
            batch = samples[step, g, :size]
            for s in range(size):
                labels[s] = y[batch[s]]
            _logits(w, bias, x, batch, z)
            entropies(z, labels[:size], top, total, entropy)
            if step == 0:
                losses[row] = (entropy[:size] + np.log(total[:size])).mean()
            if training:
                z[:, size:] = 0
                if len(momentum):
                    _move(speed, bias_speed, x, batch, z, rate[row] / f32(size), momentum[row])
                    speed += (keep[k] - f32(1)) * w
                    bias_speed += (keep[k] - f32(1)) * bias
                else:
                    _move(w, bias, x, batch, z, rate[row] / f32(size), keep[k])
                if len(shift):
                    moved, bias_moved = (speed, bias_speed) if len(momentum) else (w, bias)
                    moved += shift[k, : outs * wide].reshape(outs, wide)
                    bias_moved += shift[k, outs * wide :]
                if len(momentum):
                    w += speed
                    bias += bias_speed
        if training:
            for o in range(outs):
                for c in range(wide):
                    out[o * wide + c] = w[o, c] - sent[o * wide + c]
                out[outs * wide + o] = bias[o] - sent[outs * wide + o]


@fast  # type: ignore[untyped-decorator]
def outputs(x: Any, w: Any, bias: Any) -> Any:
    """(M, out) of a linear model."""
    z = np.empty((len(bias), (len(x) + 3) // 4 * 4), np.float32)
    _logits(w, bias, x, np.arange(len(x)), z)
    return z[:, : len(x)].T.copy()


def agrees() -> bool:
    """Whether a small draw has the bits of numpy's generator, and small outputs the values of its product."""
    key, drawn = np.array([[3, 5]], np.uint64), np.zeros((2, 1, 4), np.int64)
    draw(key, np.array([7]), np.array([4]), drawn)
    rng = np.random.Generator(np.random.Philox(key=key[0]))
    due = np.concatenate([rng.permutation(7), rng.permutation(7)])[:8]
    x, w, bias = rng.random((5, 3), np.float32), rng.random((2, 3), np.float32), rng.random(2, np.float32)
    return np.array_equal(drawn.ravel(), due) and np.allclose(outputs(x, w, bias), x @ w.T + bias, atol=1e-5)

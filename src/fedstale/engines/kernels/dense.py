"""MLPs, compiled by numba: a client's round in the cache, without a temporary and without the interpreter.

A row of a matrix is filled up with zeros to a whole number of LANES. Every row of a chunk is computed alone and
all its sums have one order, so that its bits do not depend on company. What was compiled is kept on disk.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedstale.engines.kernels.lanes import LANES, fma, larger, load, splat, store, store_totals, where_equal
from fedstale.engines.kernels.linear import compiled, entropies

f32 = np.float32
PANEL = 1 << 16  # numbers of the samples that one pass over the weights meets: they stay in the cache
TILE = 4  # outputs of a tile: with three samples, or three vectors of inputs, twelve sums stay in registers


class Tables(NamedTuple):
    """Where the numbers of L layers are: in the parameters, in a copy with filled rows, and in the activations."""

    sizes: Any  # (L + 1,) inputs, hidden …, outputs
    wide: Any  # (L + 1,) the same, filled up
    sent: Any  # (L,) weights of a layer (out, in) among the parameters; the bias follows
    weights: Any  # (L,) in the copy
    bias: Any  # (L,)
    x: Any  # (L + 1,) inputs of each layer (b, in), and the outputs
    slopes: Any  # (L + 1,) their gradients; the outputs become theirs


def filled(count: int, tile: int = LANES) -> int:
    """The next multiple of the tile."""
    return -(-count // tile) * tile


def tables(sizes: Sequence[int], b: int) -> tuple[Tables, int, int]:
    """The tables for batches of b, and the lengths of the activations and of the copy of the parameters."""
    wide = [filled(size) for size in sizes]
    pairs, B = list(pairwise(sizes)), filled(b, 12)  # whole tiles of three and of four
    rows = [i * o for i, o in pairwise(wide)]
    weights = np.cumsum([0, *(n + k for n, k in zip(rows, wide[1:], strict=True))])
    x = np.cumsum([0, *(B * k for k in wide)])
    slopes = np.cumsum([x[-1], *(B * k for k in wide[1:-1])])
    made = Tables(
        np.array(sizes), np.array(wide), np.cumsum([0, *(o * (i + 1) for i, o in pairs)])[:-1], weights[:-1],
        weights[:-1] + rows, x[:-1], np.array([0, *slopes[:-1], x[-2]]),
    )  # fmt: skip
    return made, int(slopes[-1]), int(weights[-1])


@compiled  # type: ignore[untyped-decorator]
def _products(
    a: Any, x: Any, wide: Any, w: Any, first: Any, bias: Any, y: Any, across: Any, begin: Any, end: Any, outs: Any
) -> None:
    """y (b, outs) = x wᵀ + bias for the samples from `begin` to `end`."""
    zero = splat(f32(0))
    for o in range(0, outs, TILE):
        w0 = first + o * wide
        w1, w2, w3 = w0 + wide, w0 + 2 * wide, w0 + 3 * wide
        for s in range(begin, end, 3):
            x0 = x + s * wide
            x1, x2 = x0 + wide, x0 + 2 * wide
            p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
            r0, r1, r2, r3 = zero, zero, zero, zero
            for k in range(0, wide, LANES):
                u, v, z = load(a, x0 + k), load(a, x1 + k), load(a, x2 + k)
                c = load(w, w0 + k)
                p0, q0, r0 = fma(c, u, p0), fma(c, v, q0), fma(c, z, r0)
                c = load(w, w1 + k)
                p1, q1, r1 = fma(c, u, p1), fma(c, v, q1), fma(c, z, r1)
                c = load(w, w2 + k)
                p2, q2, r2 = fma(c, u, p2), fma(c, v, q2), fma(c, z, r2)
                c = load(w, w3 + k)
                p3, q3, r3 = fma(c, u, p3), fma(c, v, q3), fma(c, z, r3)
            at, n = y + s * across + o, bias + o
            for c0, c1, c2, c3 in ((p0, p1, p2, p3), (q0, q1, q2, q3), (r0, r1, r2, r3)):
                store_totals(a, at, c0, c1, c2, c3, w, n)
                at += across


@compiled  # type: ignore[untyped-decorator]
def _relu(a: Any, at: Any, n: Any) -> None:
    zero = splat(f32(0))
    for k in range(at, at + n, LANES):
        store(a, k, larger(load(a, k), zero))


@compiled  # type: ignore[untyped-decorator]
def _slopes(a: Any, g: Any, across: Any, outs: Any, w: Any, first: Any, h: Any, y: Any, wide: Any, b: Any) -> None:
    """y (b, wide) = g w where h is above 0."""
    zero = splat(f32(0))
    for k in range(0, wide, LANES):
        for s in range(0, b, 4):
            at = g + s * across
            c0, c1, c2, c3 = zero, zero, zero, zero
            for o in range(outs):
                u = load(w, first + o * wide + k)
                c0, c1 = fma(splat(a[at + o]), u, c0), fma(splat(a[at + across + o]), u, c1)
                c2 = fma(splat(a[at + 2 * across + o]), u, c2)
                c3 = fma(splat(a[at + 3 * across + o]), u, c3)
            at = s * wide + k
            for c in (c0, c1, c2, c3):
                store(a, y + at, where_equal(load(a, h + at), zero, zero, c))
                at += wide


@compiled  # type: ignore[untyped-decorator]
def _add(a: Any, x: Any, wide: Any, g: Any, across: Any, b: Any, into: Any, first: Any, outs: Any) -> None:
    """Add gᵀ x to a matrix (outs, wide)."""
    zero, last = splat(f32(0)), wide - LANES
    for k in range(0, wide, 3 * LANES):
        k1, k2 = min(k + LANES, last), min(k + 2 * LANES, last)
        for o in range(0, outs, TILE):
            p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
            r0, r1, r2, r3 = zero, zero, zero, zero
            xs, gs = x, g + o
            for _ in range(b):
                u, v, z = load(a, xs + k), load(a, xs + k1), load(a, xs + k2)
                c = splat(a[gs])
                p0, q0, r0 = fma(c, u, p0), fma(c, v, q0), fma(c, z, r0)
                c = splat(a[gs + 1])
                p1, q1, r1 = fma(c, u, p1), fma(c, v, q1), fma(c, z, r1)
                c = splat(a[gs + 2])
                p2, q2, r2 = fma(c, u, p2), fma(c, v, q2), fma(c, z, r2)
                c = splat(a[gs + 3])
                p3, q3, r3 = fma(c, u, p3), fma(c, v, q3), fma(c, z, r3)
                xs, gs = xs + wide, gs + across
            at, one = first + o * wide, splat(f32(1))
            for c0, c1, c2 in ((p0, q0, r0), (p1, q1, r1), (p2, q2, r2), (p3, q3, r3)):
                was0, was1, was2 = load(into, at + k), load(into, at + k1), load(into, at + k2)
                store(into, at + k2, fma(one, c2, was2))
                store(into, at + k1, fma(one, c1, was1))
                store(into, at + k, fma(one, c0, was0))
                at += wide


@compiled  # type: ignore[untyped-decorator]
def _errors(a: Any, y: Any, across: Any, outs: Any, labels: Any, z: Any, sums: Any, weight: Any) -> Any:
    """Turn outputs into the gradients of the cross entropy, times a weight; returns the sum of the entropies."""
    b, loss = len(labels), 0.0
    for s in range(b):
        for o in range(outs):
            z[o, s] = a[y + s * across + o]
    entropies(z, labels, sums[0], sums[1], sums[2])
    for s in range(b):
        loss += sums[2, s] + np.log(sums[1, s])
        for o in range(outs):
            a[y + s * across + o] = weight * z[o, s]
    return loss


@compiled  # type: ignore[untyped-decorator]
def _forward(net: Any, w: Any, a: Any, b: Any) -> None:
    """From the inputs of the first layer to the outputs of the last."""
    for k in range(len(net.weights)):
        wide, across = net.wide[k], net.wide[k + 1]
        panel = max(PANEL // wide // 12 * 12, 12)
        for begin in range(0, b, panel):
            _products(
                a, net.x[k], wide, w, net.weights[k], net.bias[k], net.x[k + 1], across,
                begin, min(begin + panel, b), net.sizes[k + 1],
            )  # fmt: skip
        if k + 1 < len(net.weights):
            _relu(a, net.x[k + 1], b * across)


@compiled  # type: ignore[untyped-decorator]
def _backward(net: Any, w: Any, a: Any, b: Any, speed: Any, decay: Any, shift: Any, momentum: Any) -> None:
    """Every layer moves by its gradient, which is already multiplied by minus the rate."""
    for k in range(len(net.weights) - 1, -1, -1):
        wide, across, outs, g = net.wide[k], net.wide[k + 1], net.sizes[k + 1], net.slopes[k + 1]
        first, bias, end = net.weights[k], net.bias[k], net.bias[k] + across
        if k:
            _slopes(a, g, across, outs, w, first, net.x[k], net.slopes[k], wide, b)
        moved = speed if momentum else w
        _begin(moved[first:end], w[first:end], decay, momentum)
        if len(shift):
            inputs, at = net.sizes[k], net.sent[k]
            for o in range(outs):
                row = first + o * wide
                moved[row : row + inputs] += shift[at + o * inputs : at + (o + 1) * inputs]
            moved[bias : bias + outs] += shift[at + outs * inputs : at + outs * (inputs + 1)]
        _add(a, net.x[k], wide, g, across, b, moved, first, outs)
        for s in range(b):
            moved[bias:end] += a[g + s * across : g + (s + 1) * across]
        if momentum:
            w[first:end] += speed[first:end]


@compiled  # type: ignore[untyped-decorator]
def _begin(moved: Any, w: Any, decay: Any, momentum: Any) -> None:
    """What is moved, the weights or their speed, before the step along the loss is added."""
    if momentum:
        for i in range(len(w)):
            moved[i] = momentum * moved[i] + decay * w[i]
    elif decay:
        for i in range(len(w)):
            moved[i] += decay * w[i]


@compiled  # type: ignore[untyped-decorator]
def _enter(net: Any, sent: Any, w: Any) -> None:
    """Copy the parameters into rows that are filled up."""
    for k in range(len(net.weights)):
        inputs, outs, at = net.sizes[k], net.sizes[k + 1], net.sent[k]
        for o in range(outs):
            row = net.weights[k] + o * net.wide[k]
            w[row : row + inputs] = sent[at + o * inputs : at + (o + 1) * inputs]
        w[net.bias[k] : net.bias[k] + outs] = sent[at + outs * inputs : at + outs * (inputs + 1)]


@compiled  # type: ignore[untyped-decorator]
def _leave(net: Any, sent: Any, w: Any, update: Any) -> None:
    """What the parameters have moved by."""
    for k in range(len(net.weights)):
        inputs, outs, at = net.sizes[k], net.sizes[k + 1], net.sent[k]
        for o in range(outs):
            row, to = net.weights[k] + o * net.wide[k], at + o * inputs
            _minus(w[row : row + inputs], sent[to : to + inputs], update[to : to + inputs])
        to = at + outs * inputs
        _minus(w[net.bias[k] : net.bias[k] + outs], sent[to : to + outs], update[to : to + outs])


@compiled  # type: ignore[untyped-decorator]
def _minus(a: Any, b: Any, into: Any) -> None:
    for i in range(len(into)):
        into[i] = a[i] - b[i]


@compiled  # type: ignore[untyped-decorator]
def _train(
    net: Any, a: Any, w: Any, speed: Any, z: Any, sums: Any,
    x: Any, y: Any, samples: Any, sizes: Any, sharers: Any, training: Any,
    rows: Any, job: Any, params: Any, rate: Any, decay: Any, shift: Any, momentum: Any, updates: Any, losses: Any,
) -> None:  # fmt: skip
    """A chunk of networks, as in `convolutional`: its row k = g·J + j trains on the samples of draw g."""
    wide, last, labels = net.wide[0], len(net.weights), np.empty(samples.shape[2], np.int64)
    for k in range(samples.shape[1] * sharers):
        g, row = k // sharers, rows[k]
        size, sent = sizes[g], params[job[row]]
        _enter(net, sent, w)
        if momentum[k]:
            speed[:] = 0
        for step in range(samples.shape[0] if training else 1):
            for s in range(size):
                at = samples[step, g, s]
                labels[s] = y[at]
                a[s * wide : s * wide + x.shape[1]] = x[at]
            _forward(net, w, a, size)
            loss = _errors(a, net.x[last], net.wide[last], net.sizes[last], labels[:size], z, sums, -rate[k] / size)
            if step == 0:
                losses[row] = loss / size
            if training:
                _backward(net, w, a, size, speed, decay[k], shift[k] if len(shift) else shift[:, 0], momentum[k])
        if training:
            _leave(net, sent, w, updates[row])


class Network:
    """An MLP of these sizes, with the memory that its loops use: for one thread at a time."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.batch = sizes, -1

    def train(self, x: Any, y: Any, samples: Any, *arrays: Any) -> None:
        """Train the rows of a chunk, or only compute their losses: see `_train`."""
        self._make(samples.shape[2])
        _train(self.tables, *self.memory, x, y, samples, *arrays)

    def _make(self, b: int) -> None:
        if b != self.batch:
            self.tables, activations, weights = tables(self.sizes, b)
            z, sums = np.zeros((self.sizes[-1], filled(b)), f32), np.zeros((3, filled(b)), f32)
            self.memory = _aligned(activations), _aligned(weights), _aligned(weights), z, sums
            self.batch = b


def _aligned(size: int) -> Any:
    """Zeros, of which no vector is in two lines of the cache."""
    room = np.zeros(size + LANES, f32)
    first = -room.ctypes.data % (4 * LANES) // 4
    return room[first : first + size]


def agrees() -> bool:
    """Whether the loss of a small network is that of numpy; `Batched` compares the gradients with torch's."""
    rng = np.random.default_rng(0)
    v, c, w, bias = (rng.standard_normal(shape).astype(f32) for shape in ((5, 3), 5, (4, 5), 4))
    x, y = rng.standard_normal((6, 3)).astype(f32), rng.integers(0, 4, 6)
    scores = np.maximum(x @ v.T + c, 0) @ w.T + bias
    due = np.log(np.exp(scores).sum(1)) - scores[np.arange(6), y]
    params, losses = np.concatenate([v.ravel(), c, w.ravel(), bias])[None], np.zeros(1, f32)
    one, none, empty = np.zeros(1, np.int64), np.zeros(1, f32), np.empty((0, params.shape[1]), f32)
    Network((3, 5, 4)).train(
        x, y, np.arange(6)[None, None], one + 6, 1, False, one, one, params, none, none, empty, none, empty, losses
    )
    return np.allclose(losses, due.mean(), atol=1e-5)

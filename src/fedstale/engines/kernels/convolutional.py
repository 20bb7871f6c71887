"""Small convolutional networks, compiled by numba: forward, backward and pooling of a few samples in the cache.

LANES samples are computed side by side. Every row is computed alone and all its sums have one order, so that its
bits do not depend on company. What was compiled is kept on disk.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fedstale.engines.kernels.lanes import LANES
from fedstale.engines.kernels.linear import compiled, entropies
from fedstale.engines.kernels.stages import Stage, tables
from fedstale.engines.kernels.tiles import bias_gradients, pool, products, unpool, weight_gradients

f32 = np.float32

BLOCKS = 3  # of LANES samples at a time: dense layers have as many positions, and the rest fits the cache


@compiled  # type: ignore[untyped-decorator]
def _enter(net: Any, x: Any, batch: Any, a: Any) -> Any:
    """Put samples side by side, the last one also into lanes that are left; returns the number of blocks."""
    blocks, n, rows = (len(batch) + LANES - 1) // LANES, net.n_g[0], np.empty(LANES, np.int64)
    for block in range(blocks):
        for lane in range(LANES):
            rows[lane] = batch[min(block * LANES + lane, len(batch) - 1)]
        for c in range(net.inputs[0]):
            for k in range(n):
                at = net.g_at[0, block * n + k] + c * net.x_plane[0]
                for lane in range(LANES):
                    a[at + lane] = x[rows[lane], c * n + k]
    return blocks


@compiled  # type: ignore[untyped-decorator]
def _forward(net: Any, w: Any, a: Any, blocks: Any) -> None:
    """From the inputs of the first stage to the outputs of the last."""
    for s in range(len(net.inputs)):
        outs, taps, n, first = net.outputs[s], net.inputs[s] * net.kernel[s], blocks * net.n_y[s], net.weights[s]
        y_at, y_plane, window = net.y_at[s, :n], net.y_plane[s], net.window[s]
        products(
            a, net.x_at[s, :n], net.x_taps[s, :taps], w[first:], net.order[s, :taps], taps,
            w[first + outs * taps :], y_at, y_plane, outs,
        )  # fmt: skip
        if s + 1 < len(net.inputs):
            pool(a, y_at, y_plane, outs, window, net.into_at[s, : n // window], net.into_plane[s])


@compiled  # type: ignore[untyped-decorator]
def _backward(net: Any, w: Any, a: Any, blocks: Any, gradients: Any, zeros: Any) -> None:
    """From the gradients of the outputs to those of the weights."""
    for s in range(len(net.inputs) - 1, -1, -1):
        inputs, outs, kernel, n = net.inputs[s], net.outputs[s], net.kernel[s], blocks * net.n_y[s]
        y_at, y_plane, window, room = net.y_at[s, :n], net.y_plane[s], net.window[s], (outs + 3) // 4 * 4
        if s + 1 < len(net.inputs):
            into = net.into_at[s, : n // window]
            unpool(a, y_at, y_plane, outs, window, into, net.into_plane[s], net.x_to_g[s + 1])
        bias_gradients(a, y_at, y_plane, outs, gradients[net.gradients[s] :])
        x_taps = net.x_taps[s, : (inputs * kernel + 2) // 3 * 3]
        weight_gradients(a, net.x_at[s, :n], x_taps, y_at, y_plane, outs, gradients[net.gradients[s] + room :])
        if s:
            n, taps = blocks * net.n_g[s], outs * kernel
            products(
                a, net.back_at[s, :n], net.y_taps[s, :taps], w[net.weights[s] :], net.w_taps[s, :taps], kernel,
                zeros, net.g_at[s, :n], net.x_plane[s], inputs,
            )  # fmt: skip


@compiled  # type: ignore[untyped-decorator]
def _errors(net: Any, a: Any, labels: Any, blocks: Any, weight: Any) -> Any:
    """Turn outputs into the gradients of the cross entropy, times a weight; returns the sum of the entropies."""
    last = len(net.inputs) - 1
    outs, loss = net.outputs[last], 0.0
    top, sums, entropy = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for block in range(blocks):
        at, own = net.y_at[last, block], labels[block * LANES : (block + 1) * LANES]
        z = a[at : at + outs * LANES].reshape(outs, LANES)
        entropies(z, own, top, sums, entropy)
        for lane in range(len(own)):
            loss += entropy[lane] + np.log(sums[lane])
        z *= weight
        z[:, len(own) :] = 0
    return loss


@compiled  # type: ignore[untyped-decorator]
def _gradient(net: Any, gradients: Any, gradient: Any) -> None:
    """The gradients of the weights and the bias in the order of the parameters."""
    for s in range(len(net.inputs)):
        outs, taps, at, first = net.outputs[s], net.inputs[s] * net.kernel[s], net.weights[s], net.gradients[s]
        room, wide = (outs + 3) // 4 * 4, (taps + 2) // 3 * 3
        for o in range(outs):
            row = first + room + o * wide
            gradient[at + o * taps : at + (o + 1) * taps] = gradients[row : row + taps]
        gradient[at + outs * taps : at + outs * (taps + 1)] = gradients[first : first + outs]


@compiled  # type: ignore[untyped-decorator]
def _batch(net: Any, w: Any, a: Any, x: Any, y: Any, batch: Any, gradients: Any, zeros: Any, training: Any) -> Any:
    """The mean loss of a batch; if it is for training, also the gradients of the weights."""
    labels, loss, most = np.empty(BLOCKS * LANES, np.int64), 0.0, BLOCKS * LANES
    gradients[:] = 0
    for begin in range(0, len(batch), most):
        part = batch[begin : begin + most]
        for k in range(len(part)):
            labels[k] = y[part[k]]
        blocks = _enter(net, x, part, a)
        _forward(net, w, a, blocks)
        loss += _errors(net, a, labels[: len(part)], blocks, f32(1 / len(batch)))
        if training:
            _backward(net, w, a, blocks, gradients, zeros)
    return loss / len(batch)


@compiled  # type: ignore[untyped-decorator]
def _train(
    net: Any, a: Any, w: Any, gradients: Any, x: Any, y: Any, samples: Any, sizes: Any, sharers: Any, training: Any,
    rows: Any, job: Any, params: Any, rate: Any, decay: Any, shift: Any, momentum: Any, updates: Any, losses: Any,
) -> None:  # fmt: skip
    """A chunk of networks: its row k = g·J + j trains on the samples of draw g.

    A step adds decay · w - rate · gradient + shift to a speed that the momentum multiplies before.
    """
    d, zeros = params.shape[1], np.zeros(net.inputs.max() + 4, np.float32)
    speed, gradient = np.empty(d, np.float32), np.empty(d, np.float32)
    for k in range(samples.shape[1] * sharers):
        g, row = k // sharers, rows[k]
        w[:d], speed[:] = params[job[row]], 0
        for step in range(samples.shape[0] if training else 1):
            loss = _batch(net, w, a, x, y, samples[step, g, : sizes[g]], gradients, zeros, training)
            if step == 0:
                losses[row] = loss
            if training:
                _gradient(net, gradients, gradient)
                for i in range(d):
                    speed[i] = momentum[k] * speed[i] + decay[k] * w[i] - rate[k] * gradient[i]
                if len(shift):
                    speed += shift[k]
                w[:d] += speed
        if training:
            updates[row] = w[:d] - params[job[row]]


@compiled  # type: ignore[untyped-decorator]
def _outputs(net: Any, a: Any, w: Any, x: Any) -> Any:
    """(M, classes) of samples (M, inputs)."""
    last, most = len(net.inputs) - 1, BLOCKS * LANES
    out = np.empty((len(x), net.outputs[last]), np.float32)
    for begin in range(0, len(x), most):
        part = np.arange(begin, min(begin + most, len(x)))
        _forward(net, w, a, _enter(net, x, part, a))
        for k in range(len(part)):
            for o in range(net.outputs[last]):
                out[begin + k, o] = a[net.y_at[last, k // LANES] + o * LANES + k % LANES]
    return out


class Network:
    """The stages of a network, with the memory that its loops use: for one thread at a time."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.tables, size, gradients = tables(stages, BLOCKS, LANES)
        room = np.zeros(size + LANES, np.float32)
        first = -room.ctypes.data % (4 * LANES) // 4  # aligned: no vector is in two lines of the cache
        self.activations, self.gradients = room[first : first + size], np.empty(gradients, np.float32)
        taps = [s.inputs * prod(s.kernel) for s in stages]
        self.d = sum(s.outputs * (n + 1) for s, n in zip(stages, taps, strict=True))
        self.w = np.zeros(
            self.d + 4 * max(taps), np.float32
        )  # what lies behind the parameters fills up the last tile

    def train(self, *arrays: Any) -> None:
        """Train the rows of a chunk, or only compute their losses: see `_train`."""
        _train(self.tables, self.activations, self.w, self.gradients, *arrays)

    def outputs(self, params: Any, x: Any) -> Any:
        """(M, classes) of samples (M, inputs)."""
        self.w[: self.d] = params
        return _outputs(self.tables, self.activations, self.w, x)


def agrees() -> bool:
    """Whether the outputs of a small network have the values of numpy."""
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(shape, f32) for shape in ((5, 1, 4, 4), (2, 9), (3, 8)))
    bias, last = rng.standard_normal(2, f32), rng.standard_normal(3, f32)
    patches = np.lib.stride_tricks.sliding_window_view(np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    y = patches.reshape(5, 4, 4, 9) @ w.T + bias
    y = np.maximum(y.reshape(5, 2, 2, 2, 2, 2).max((2, 4)), 0).transpose(0, 3, 1, 2)
    network = Network([Stage(1, 2, (4, 4), (3, 3), (1, 1), 2), Stage(8, 3)])
    got = network.outputs(np.concatenate([w.ravel(), bias, v.ravel(), last]), x.reshape(5, 16))
    return np.allclose(got, y.reshape(5, 8) @ v.T + last, atol=1e-5)

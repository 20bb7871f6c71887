"""Small GRUs and LSTMs, compiled by numba: LANES samples side by side, forward and backward through time.

Every row is computed alone and all its sums have one order, so that its bits do not depend on company. What was
compiled is kept on disk.
"""

from typing import Any

import numpy as np

from fedstale.engines.kernels.gates import Gates, tables
from fedstale.engines.kernels.lanes import LANES, fma, load, splat, store
from fedstale.engines.kernels.linear import compiled, entropies, exponential, fast
from fedstale.engines.kernels.tiles import bias_gradients, weight_gradients

f32 = np.float32


@compiled  # type: ignore[untyped-decorator]
def _fill(a: Any, at: Any, bias: Any) -> None:
    """One number for all samples of each row."""
    for o in range(len(bias)):
        store(a, at + o * LANES, splat(bias[o]))


@compiled  # type: ignore[untyped-decorator]
def _columns(a: Any, x: Any, taps: Any, w: Any, first: Any, plane: Any, step: Any, y: Any, outs: Any) -> None:
    """Add Σ_t w[first + o·plane + t·step] x[t] to each of `outs` rows, eight at a time."""
    whole = outs // 8 * 8
    for o in range(0, whole, 8):
        at, k = y + o * LANES, first + o * plane
        c0, c1, c2, c3 = load(a, at), load(a, at + LANES), load(a, at + 2 * LANES), load(a, at + 3 * LANES)
        c4, c5 = load(a, at + 4 * LANES), load(a, at + 5 * LANES)
        c6, c7 = load(a, at + 6 * LANES), load(a, at + 7 * LANES)
        for t in range(taps):
            u = load(a, x + t * LANES)
            c0, c1 = fma(splat(w[k]), u, c0), fma(splat(w[k + plane]), u, c1)
            c2, c3 = fma(splat(w[k + 2 * plane]), u, c2), fma(splat(w[k + 3 * plane]), u, c3)
            c4, c5 = fma(splat(w[k + 4 * plane]), u, c4), fma(splat(w[k + 5 * plane]), u, c5)
            c6, c7 = fma(splat(w[k + 6 * plane]), u, c6), fma(splat(w[k + 7 * plane]), u, c7)
            k += step
        for c in (c0, c1, c2, c3, c4, c5, c6, c7):
            store(a, at, c)
            at += LANES
    for o in range(whole, outs):
        c = load(a, y + o * LANES)
        for t in range(taps):
            c = fma(splat(w[first + o * plane + t * step]), load(a, x + t * LANES), c)
        store(a, y + o * LANES, c)


@fast  # type: ignore[untyped-decorator]
def _sigmoid(z: Any) -> None:
    for i in range(len(z)):
        e = exponential(-abs(z[i]))
        s = f32(1) / (f32(1) + e)
        z[i] = s if z[i] >= 0 else e * s


@fast  # type: ignore[untyped-decorator]
def _tanh(z: Any) -> None:
    for i in range(len(z)):
        e = exponential(f32(-2) * abs(z[i]))
        s = (f32(1) - e) / (f32(1) + e)
        z[i] = s if z[i] >= 0 else -s


@compiled  # type: ignore[untyped-decorator]
def _times(a: Any, b: Any) -> Any:
    return fma(a, b, splat(f32(0)))


@compiled  # type: ignore[untyped-decorator]
def _minus(a: Any, b: Any) -> Any:
    return fma(splat(f32(-1)), b, a)


@compiled  # type: ignore[untyped-decorator]
def _enter(net: Any, w: Any, a: Any, x: Any, rows: Any) -> None:
    """Put the embedded symbols of LANES samples side by side, step by step."""
    for t in range(net.steps):
        for lane in range(LANES):
            symbol = net.places[0] + x[rows[lane], t] * net.embedding
            at = net.inputs[0] + t * net.embedding * LANES + lane
            for e in range(net.embedding):
                a[at + e * LANES] = w[symbol + e]


@compiled  # type: ignore[untyped-decorator]
def _forward(net: Any, w: Any, a: Any) -> None:
    """From the embedded inputs to the outputs."""
    H, n = net.hidden, net.hidden * LANES
    for layer in range(len(net.gates)):
        at = 3 + 4 * layer
        wi, wh, bi, bh = net.places[at], net.places[at + 1], net.places[at + 2], net.places[at + 3]
        wide, h, c = (H if layer else net.embedding), net.states[layer], net.cells[layer]
        a[h : h + n], a[c : c + n] = 0, 0
        for t in range(net.steps):
            g, x = net.gates[layer] + 4 * t * n, net.inputs[layer] + t * wide * LANES
            if net.lstm:
                _fill(a, g, w[bi : bi + 4 * H] + w[bh : bh + 4 * H])
                _columns(a, x, wide, w, wi, wide, 1, g, 4 * H)
                _columns(a, h, H, w, wh, H, 1, g, 4 * H)
                _lstm(a, g, h, c, n)
            else:
                _fill(a, g, w[bi : bi + 3 * H])
                _columns(a, x, wide, w, wi, wide, 1, g, 3 * H)
                _fill(a, g + 3 * n, w[bh + 2 * H : bh + 3 * H])
                for o in range(2 * H):
                    store(a, g + o * LANES, fma(splat(f32(1)), splat(w[bh + o]), load(a, g + o * LANES)))
                _columns(a, h, H, w, wh, H, 1, g, 2 * H)
                _columns(a, h, H, w, wh + 2 * H * H, H, 1, g + 3 * n, H)
                _gru(a, g, h, n)
            h, c = h + n, c + n
    last = net.states[-1] + (net.steps - net.said + 1) * n
    for s in range(net.said):
        z = net.scores + s * net.outputs * LANES
        _fill(a, z, w[net.places[2] : net.places[2] + net.outputs])
        _columns(a, last + s * n, H, w, net.places[1], H, 1, z, net.outputs)


@compiled  # type: ignore[untyped-decorator]
def _gru(a: Any, g: Any, h: Any, n: Any) -> None:
    """The gates r, z, x of a step, and what of the state r lets through, become r, z, v; then the next state."""
    _sigmoid(a[g : g + 2 * n])
    for i in range(g, g + n, LANES):
        store(a, i + 2 * n, fma(load(a, i), load(a, i + 3 * n), load(a, i + 2 * n)))
    _tanh(a[g + 2 * n : g + 3 * n])
    for i in range(0, n, LANES):
        v = load(a, g + 2 * n + i)
        store(a, h + n + i, fma(load(a, g + n + i), _minus(load(a, h + i), v), v))


@compiled  # type: ignore[untyped-decorator]
def _lstm(a: Any, g: Any, h: Any, c: Any, n: Any) -> None:
    """The gates i, f, v, o of a step, then the next cell and the next state."""
    _sigmoid(a[g : g + 2 * n])
    _tanh(a[g + 2 * n : g + 3 * n])
    _sigmoid(a[g + 3 * n : g + 4 * n])
    for i in range(0, n, LANES):
        new = _times(load(a, g + i), load(a, g + 2 * n + i))
        store(a, c + n + i, fma(load(a, g + n + i), load(a, c + i), new))
    a[h + n : h + 2 * n] = a[c + n : c + 2 * n]
    _tanh(a[h + n : h + 2 * n])
    for i in range(0, n, LANES):
        store(a, h + n + i, _times(load(a, g + 3 * n + i), load(a, h + n + i)))


@compiled  # type: ignore[untyped-decorator]
def _gru_back(a: Any, g: Any, h: Any, dh: Any, n: Any) -> None:
    """The gates become their gradients; the one of the state before gets what passes by them."""
    one = splat(f32(1))
    for i in range(0, n, LANES):
        r, z, v, through = load(a, g + i), load(a, g + n + i), load(a, g + 2 * n + i), load(a, g + 3 * n + i)
        due = load(a, dh + n + i)
        dv = _times(_times(due, _minus(one, z)), _minus(one, _times(v, v)))
        dz = _times(_times(due, _minus(load(a, h + i), v)), _times(z, _minus(one, z)))
        store(a, g + i, _times(_times(dv, through), _times(r, _minus(one, r))))
        store(a, g + n + i, dz)
        store(a, g + 2 * n + i, dv)
        store(a, g + 3 * n + i, _times(dv, r))
        store(a, dh + i, fma(due, z, load(a, dh + i)))


@compiled  # type: ignore[untyped-decorator]
def _lstm_back(a: Any, g: Any, c: Any, dh: Any, pull: Any, n: Any) -> None:
    """The gates become their gradients, and that of the cell the one of the cell before."""
    one, squashed = splat(f32(1)), a[c + n : c + 2 * n].copy()
    _tanh(squashed)
    for i in range(0, n, LANES):
        j, f, v, o = load(a, g + i), load(a, g + n + i), load(a, g + 2 * n + i), load(a, g + 3 * n + i)
        due, s = load(a, dh + n + i), load(squashed, i)
        dc = fma(_times(due, o), _minus(one, _times(s, s)), load(a, pull + i))
        store(a, g + i, _times(_times(dc, v), _times(j, _minus(one, j))))
        store(a, g + n + i, _times(_times(dc, load(a, c + i)), _times(f, _minus(one, f))))
        store(a, g + 2 * n + i, _times(_times(dc, j), _minus(one, _times(v, v))))
        store(a, g + 3 * n + i, _times(_times(due, s), _times(o, _minus(one, o))))
        store(a, pull + i, _times(dc, f))


@compiled  # type: ignore[untyped-decorator]
def _matrix(a: Any, x_at: Any, taps: Any, g_at: Any, outs: Any, into: Any, gradient: Any, first: Any) -> None:
    """Add the gradients of a matrix (outs, taps), over all steps."""
    wide = (taps + 2) // 3 * 3
    into[: (outs + 3) // 4 * 4 * wide] = 0
    weight_gradients(a, x_at, np.minimum(np.arange(wide), taps - 1) * LANES, g_at, LANES, outs, into)
    for o in range(outs):
        for t in range(taps):
            gradient[first + o * taps + t] += into[o * wide + t]


@compiled  # type: ignore[untyped-decorator]
def _bias(a: Any, g_at: Any, outs: Any, into: Any, gradient: Any, first: Any) -> None:
    into[: (outs + 3) // 4 * 4] = 0
    bias_gradients(a, g_at, LANES, outs, into)
    for o in range(outs):
        gradient[first + o] += into[o]


@compiled  # type: ignore[untyped-decorator]
def _backward(net: Any, w: Any, a: Any, into: Any, gradient: Any) -> None:
    """From the gradients of the outputs to those of all weights but the embedding's, and of what was embedded."""
    H, n, T, top = net.hidden, net.hidden * LANES, net.steps, len(net.gates) - 1
    steps, said = np.arange(T), np.arange(net.said)
    z_at, first = net.scores + said * net.outputs * LANES, T - net.said + 1
    for layer in range(top + 1):
        a[net.slopes[layer] : net.slopes[layer] + (T + 1) * n] = 0
    a[net.pulls : net.pulls + T * net.embedding * LANES] = 0
    _matrix(a, net.states[top] + (first + said) * n, H, z_at, net.outputs, into, gradient, net.places[1])
    _bias(a, z_at, net.outputs, into, gradient, net.places[2])
    for s in range(net.said):
        _columns(a, z_at[s], net.outputs, w, net.places[1], 1, H, net.slopes[top] + (first + s) * n, H)
    for layer in range(top, -1, -1):
        at = 3 + 4 * layer
        wi, wh, bi, bh = net.places[at], net.places[at + 1], net.places[at + 2], net.places[at + 3]
        wide, h, dh = (H if layer else net.embedding), net.states[layer], net.slopes[layer]
        below = net.slopes[layer - 1] + n if layer else net.pulls
        outs = 4 * H if net.lstm else 3 * H
        a[net.pull : net.pull + n] = 0
        for t in range(T - 1, -1, -1):
            g = net.gates[layer] + 4 * t * n
            if net.lstm:
                _lstm_back(a, g, net.cells[layer] + t * n, dh + t * n, net.pull, n)
                _columns(a, g, 4 * H, w, wh, 1, H, dh + t * n, H)
            else:
                _gru_back(a, g, h + t * n, dh + t * n, n)
                _columns(a, g, 2 * H, w, wh, 1, H, dh + t * n, H)
                _columns(a, g + 3 * n, H, w, wh + 2 * H * H, 1, H, dh + t * n, H)
            _columns(a, g, outs, w, wi, 1, wide, below + t * wide * LANES, wide)
        g_at, x_at, h_at = net.gates[layer] + 4 * steps * n, net.inputs[layer] + steps * wide * LANES, h + steps * n
        _matrix(a, x_at, wide, g_at, outs, into, gradient, wi)
        _bias(a, g_at, outs, into, gradient, bi)
        if net.lstm:
            _matrix(a, h_at, H, g_at, outs, into, gradient, wh)
            _bias(a, g_at, outs, into, gradient, bh)
        else:
            _matrix(a, h_at, H, g_at, 2 * H, into, gradient, wh)
            _matrix(a, h_at, H, g_at + 3 * n, H, into, gradient, wh + 2 * H * H)
            _bias(a, g_at, 2 * H, into, gradient, bh)
            _bias(a, g_at + 3 * n, H, into, gradient, bh + 2 * H)


@compiled  # type: ignore[untyped-decorator]
def _batch(net: Any, w: Any, a: Any, x: Any, y: Any, batch: Any, into: Any, gradient: Any, training: Any) -> Any:
    """The mean loss of a batch; if it is for training, also the gradient."""
    loss, rows, labels = 0.0, np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    top, sums, entropy = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    gradient[:] = 0
    for begin in range(0, len(batch), LANES):
        own = min(LANES, len(batch) - begin)
        for lane in range(LANES):
            rows[lane] = batch[begin + min(lane, own - 1)]
        _enter(net, w, a, x, rows)
        _forward(net, w, a)
        for s in range(net.said):
            for lane in range(own):
                labels[lane] = y[rows[lane], s]
            at = net.scores + s * net.outputs * LANES
            z = a[at : at + net.outputs * LANES].reshape(net.outputs, LANES)
            entropies(z, labels[:own], top, sums, entropy)
            for lane in range(own):
                loss += entropy[lane] + np.log(sums[lane])
            z *= f32(1 / (len(batch) * net.said))
            z[:, own:] = 0
        if training:
            _backward(net, w, a, into, gradient)
            for t in range(net.steps):
                for lane in range(own):
                    symbol = net.places[0] + x[rows[lane], t] * net.embedding
                    at = net.pulls + t * net.embedding * LANES + lane
                    for e in range(net.embedding):
                        gradient[symbol + e] += a[at + e * LANES]
    return loss / (len(batch) * net.said)


@compiled  # type: ignore[untyped-decorator]
def _train(
    net: Any, a: Any, w: Any, into: Any, x: Any, y: Any, samples: Any, sizes: Any, sharers: Any, training: Any,
    rows: Any, job: Any, params: Any, rate: Any, decay: Any, shift: Any, momentum: Any, updates: Any, losses: Any,
) -> None:  # fmt: skip
    """A chunk of networks, as in `convolutional`: its row k = g·J + j trains on the samples of draw g."""
    speed, gradient = np.empty_like(w), np.empty_like(w)
    for k in range(samples.shape[1] * sharers):
        g, row = k // sharers, rows[k]
        w[:], speed[:] = params[job[row]], 0
        for step in range(samples.shape[0] if training else 1):
            loss = _batch(net, w, a, x, y, samples[step, g, : sizes[g]], into, gradient, training)
            if step == 0:
                losses[row] = loss
            if training:
                for i in range(len(w)):
                    speed[i] = momentum[k] * speed[i] + decay[k] * w[i] - rate[k] * gradient[i]
                if len(shift):
                    speed += shift[k]
                w += speed
        if training:
            updates[row] = w - params[job[row]]


class Network:
    """A recurrent network, with the memory that its loops use: for one thread at a time."""

    def __init__(self, gates: Gates, d: int) -> None:
        self.tables, size, most = tables(gates, LANES)
        room = np.zeros(size + LANES, np.float32)
        first = -room.ctypes.data % (4 * LANES) // 4  # aligned: no vector is in two lines of the cache
        self.activations, self.into = room[first : first + size], np.empty(most, np.float32)
        self.w = np.zeros(d, np.float32)

    def train(self, *arrays: Any) -> None:
        """Train the rows of a chunk, or only compute their losses: see `_train`."""
        _train(self.tables, self.activations, self.w, self.into, *arrays)


def agrees() -> bool:
    """Whether the loss of a small GRU is that of numpy; `Batched` compares the gradients with torch's."""
    rng, H = np.random.default_rng(0), 3
    e, wi, wh, bi, bh, wo, bo = (
        rng.standard_normal(s).astype(f32) for s in ((4, 2), (9, 2), (9, H), 9, 9, (4, H), 4)
    )
    x, y, h = rng.integers(0, 4, (5, 6)), rng.integers(0, 4, (5, 1)), np.zeros((5, H))
    for t in range(6):
        i, s = e[x[:, t]] @ wi.T + bi, h @ wh.T + bh
        r, z = (1 / (1 + np.exp(-(i + s)[:, k * H : k * H + H])) for k in (0, 1))
        h = (1 - z) * np.tanh(i[:, 2 * H :] + r * s[:, 2 * H :]) + z * h
    scores = h @ wo.T + bo
    due = np.log(np.exp(scores).sum(1)) - scores[np.arange(5), y[:, 0]]
    parts = e, wo, bo, wi, wh, bi, bh
    params = np.concatenate([part.ravel() for part in parts])[None]
    places = (0, *np.cumsum([part.size for part in parts])[:-1].tolist())
    network, losses = Network(Gates(False, 6, 4, 2, H, 4, 1, places), params.shape[1]), np.zeros(1, f32)
    one, none = np.zeros(1, np.int64), np.zeros(1, f32)
    drawn, empty = np.arange(5)[None, None], np.empty((0, params.shape[1]), f32)
    network.train(x, y, drawn, one + 5, 1, False, one, one, params, none, none, empty, none, empty, losses)
    return np.allclose(losses, due.mean(), atol=1e-5)

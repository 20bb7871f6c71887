"""The models of the workloads in JAX, with the parameters of the torch modules."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from jax import numpy as jnp
from models import Recurrent, Transformer
from torch import nn
from workloads import Workload, plain, samples

Params = dict[str, Any]
Scores = Callable[[Params, Any], Any]  # parameters, inputs (b, …) -> (b, classes)
EPSILON = 1e-5  # of torch's LayerNorm


def model(w: Workload) -> tuple[Params, Scores]:
    """The parameters that are trained, and a function of them; it has the outputs of the torch module."""
    torch.manual_seed(0)
    module = plain(w)
    names = {name: p.requires_grad for name, p in module.named_parameters()}
    values = {name: module.get_parameter(name).detach().numpy() for name in names}
    frozen = {name: jnp.asarray(v) for name, v in values.items() if not names[name]}
    if isinstance(w.model, Recurrent):
        apply: Scores = _gru if w.model.kind == "GRU" else _lstm
    elif isinstance(w.model, Transformer):
        apply = _transformer
    else:
        apply = _layers(module)

    def scores(params: Params, x: Any) -> Any:
        return apply(frozen | params, x)

    params = {name: jnp.asarray(v) for name, v in values.items() if names[name]}
    x = samples(w)[0][0][:4]
    due = module(x).detach().numpy()
    np.testing.assert_allclose(scores(params, jnp.asarray(x.numpy())), due, atol=1e-4)
    return params, scores


def loss(scores: Any, y: Any) -> Any:
    """The mean cross entropy."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1)
    return -chosen.mean()


def _layers(module: nn.Module) -> Scores:
    """Convolutions, pooling, relu and dense layers, one after the other; images are channels last inside."""
    layers = [(type(layer).__name__, f"{k}.", layer) for k, layer in enumerate(module.children())]

    def apply(p: Params, x: Any) -> Any:
        x = jnp.moveaxis(x, 1, -1) if x.ndim == 4 else x
        for kind, at, layer in layers:
            if kind == "Conv2d":
                x = _convolution(x, p[at + "weight"], layer.stride, layer.padding) + p[at + "bias"]
            elif kind == "MaxPool2d":
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            elif kind == "ReLU":
                x = jax.nn.relu(x)
            elif kind == "Flatten":
                x = (jnp.moveaxis(x, -1, 1) if x.ndim == 4 else x).reshape(len(x), -1)
            else:
                x = _linear(p, at, x)
        return x

    return apply


def _convolution(x: Any, w: Any, stride: Any, padding: Any) -> Any:
    return lax.conv_general_dilated(
        x, w.transpose(2, 3, 1, 0), stride, [(p, p) for p in padding], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _linear(p: Params, at: str, x: Any) -> Any:
    return x @ p[at + "weight"].T + p[at + "bias"]


def _gru(p: Params, x: Any) -> Any:
    """One layer; the products with the inputs of all steps are one product."""
    steps = p["embed.weight"][x].swapaxes(0, 1) @ p["cells.weight_ih_l0"].T + p["cells.bias_ih_l0"]

    def step(h: Any, i: Any) -> tuple[Any, None]:
        (ir, iz, iv), (hr, hz, hv) = (
            jnp.split(part, 3, -1) for part in (i, h @ p["cells.weight_hh_l0"].T + p["cells.bias_hh_l0"])
        )
        r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        v = jnp.tanh(iv + r * hv)
        return (1 - z) * v + z * h, None

    h, _ = lax.scan(step, jnp.zeros((len(x), p["cells.weight_hh_l0"].shape[1])), steps)
    return _linear(p, "out.", h)


def _lstm(p: Params, x: Any) -> Any:
    states = p["embed.weight"][x].swapaxes(0, 1)
    for k in range(sum(name.startswith("cells.weight_ih") for name in p)):
        bias = p[f"cells.bias_ih_l{k}"] + p[f"cells.bias_hh_l{k}"]
        recurrent = p[f"cells.weight_hh_l{k}"].T

        def step(state: Any, i: Any, recurrent: Any = recurrent) -> tuple[Any, Any]:
            h, c = state
            i, f, v, o = jnp.split(i + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(v)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((len(x), recurrent.shape[0]))
        _, states = lax.scan(step, (zero, zero), states @ p[f"cells.weight_ih_l{k}"].T + bias)
    return _linear(p, "out.", states[-1])


def _transformer(p: Params, x: Any) -> Any:
    T, heads = x.shape[1], Transformer._field_defaults["heads"]
    x = p["embed.weight"][x] + p["place.weight"]
    later = jnp.where(jnp.tril(jnp.ones((T, T), bool)), 0.0, -jnp.inf)
    for k in range(sum(name.endswith("qkv.weight") for name in p)):
        at = f"blocks.{k}."
        y = _norm(p, at + "norm.", x)
        z = _linear(p, at + "qkv.", y)
        if at + "qkv.down" in p:
            z = z + y @ p[at + "qkv.down"].T @ p[at + "qkv.up"].T
        q, k_, v = (part.reshape(*part.shape[:2], heads, -1) for part in jnp.split(z, 3, -1))
        a = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k_) / q.shape[-1] ** 0.5 + later)
        x = x + _linear(p, at + "out.", jnp.einsum("bhqk,bkhe->bqhe", a, v).reshape(x.shape))
        y = jax.nn.gelu(_linear(p, at + "dense.0.", _norm(p, at + "then.", x)), approximate=False)
        x = x + _linear(p, at + "dense.2.", y)
    return _linear(p, "out.", _norm(p, "norm.", x[:, -1]))


def _norm(p: Params, at: str, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON) * p[at + "weight"] + p[at + "bias"]

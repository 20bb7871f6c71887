"""LEAF Synthetic(γ, δ): classification of vectors where models and inputs differ from client to client.

Caldas et al., LEAF: A benchmark for federated settings, 2019; Li et al., Federated optimization in
heterogeneous networks (FedProx), MLSys 2020.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, require
from fedstale.rng import stream
from fedstale.tasks.base import Supervised
from fedstale.tasks.models import Linear, Model
from fedstale.tasks.split import Weighting, even


def synthetic(
    n: int,
    gamma: float,
    delta: float,
    *,
    seed: int,
    dimension: int = 60,
    classes: int = 10,
    test_share: float = 0.2,
    max_samples: int | None = None,
    model: Model = Linear(),
    weights: npt.ArrayLike | Weighting = even,
    ridge: float = 0.0,
    device: str = "cpu",
) -> Supervised:
    """n clients; gamma is how much their models differ, delta how much their inputs do.

    A client holds lognormal(4, 2) + 50 samples: half of them about 100, one in a hundred over 5,000.
    `max_samples` cuts that (LEAF does not), `test_share` of them is for testing. The data of a client
    depend on the seed and its number alone, not on n.
    """
    require(n >= 1, f"n must be at least 1, got {n}")
    require(0 < test_share < 1, f"test_share must be above 0 and below 1, got {test_share}")
    drawn = [samples(seed, i, gamma, delta, dimension, classes, max_samples) for i in range(n)]
    cuts = [min(max(round(test_share * len(y)), 1), len(y) - 1) for _, y in drawn]  # samples are i.i.d.
    return Supervised(
        partial(model.build, (dimension,), classes),
        [(x[cut:], y[cut:]) for (x, y), cut in zip(drawn, cuts, strict=True)],
        [(x[:cut], y[:cut]) for (x, y), cut in zip(drawn, cuts, strict=True)],
        weights=weights,
        ridge=ridge,
        device=device,
    )


def samples(
    seed: int, client: int, gamma: float, delta: float, dimension: int, classes: int, max_samples: int | None
) -> tuple[Array, Ids]:
    """Inputs and labels of one client: y = argmax(W x + b), x_j ~ N(v_j, variance j^-1.2).

    W, b ~ N(u, 1) with one u ~ N(0, gamma), v ~ N(B, 1) with one B ~ N(0, delta), where gamma and delta
    are deviations, as in the generator that FedProx published.
    """
    require(gamma >= 0 and delta >= 0, f"gamma and delta must be at least 0, got {gamma} and {delta}")
    require(dimension >= 1, f"dimension must be at least 1, got {dimension}")
    require(classes >= 2, f"classes must be at least 2, got {classes}")
    ok = max_samples is None or max_samples >= 2
    require(ok, f"max_samples must be at least 2 or None, got {max_samples}")
    rng = stream(seed, "synthetic", client)
    size = int(rng.lognormal(4, 2)) + 50
    size = size if max_samples is None else min(size, max_samples)
    u, B = rng.normal(0, gamma), rng.normal(0, delta)
    W, b = rng.normal(u, 1, (dimension, classes)), rng.normal(u, 1, classes)
    v, σ = rng.normal(B, 1, dimension), np.arange(1, dimension + 1) ** -0.6
    x = rng.normal(v, σ, (size, dimension))
    return x.astype(np.float32), (x @ W + b).argmax(axis=1)

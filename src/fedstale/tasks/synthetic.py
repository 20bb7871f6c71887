"""LEAF Synthetic(γ, δ): vectors with labels, where inputs and their meaning differ from client to client.

Caldas et al., LEAF: A benchmark for federated settings, 2019; Li et al., Federated optimization in
heterogeneous networks (FedProx), MLSys 2020.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Ids, NotNegative, Range, part, require, stream
from fedstale.tasks.evaluation import Metric
from fedstale.tasks.losses import Loss, cross_entropy
from fedstale.tasks.models import Linear, Model
from fedstale.tasks.split import Weighting, even
from fedstale.tasks.supervised import Supervised


@part
class Synthetic:
    """y = argmax(W x + b) with x_j ~ N(v_j, variance j^-1.2), lognormal(4, 2) + 50 samples per client.

    W, b ~ N(u, 1) with one u ~ N(0, gamma) and v ~ N(B, 1) with one B ~ N(0, delta) per client, where
    gamma and delta are deviations, as in the published generator. As there, u moves the scores of all
    classes alike: gamma changes no label, and clients differ in W even where it is 0. With `iid` they
    share one W, b ~ N(0, 1), and v = B: then delta = 0 makes their data alike. Half the clients hold
    about 100 samples, one in a hundred above 5,000; `max_samples` cuts that.
    """

    gamma: NotNegative
    delta: NotNegative
    dimension: Count = 60
    classes: Annotated[int, Range("at least 2")] = 10
    max_samples: Annotated[int, Range("at least 2")] | None = None
    iid: bool = False

    def samples(self, client: int, seed: int) -> tuple[Array, Ids]:
        """Inputs and labels of a client; they depend on nothing but the settings, its number and the seed."""
        rng, shape = stream(seed, "synthetic", client), (self.dimension + 1, self.classes)
        drawn = int(rng.lognormal(4, 2)) + 50
        size = drawn if self.max_samples is None else min(drawn, self.max_samples)
        u, B = rng.normal(0, self.gamma), rng.normal(0, self.delta)
        if self.iid:
            *W, b = stream(seed, "synthetic", "shared").normal(0, 1, shape)
            v = np.full(self.dimension, B)
        else:
            *W, b = rng.normal(u, 1, shape)
            v = rng.normal(B, 1, self.dimension)
        x = rng.normal(v, np.arange(1, self.dimension + 1) ** -0.6, (size, self.dimension))
        return x.astype(np.float32), (x @ W + b).argmax(axis=1)


def synthetic(
    n: int,
    gamma: float,
    delta: float,
    *,
    seed: int,
    dimension: int = 60,
    classes: int = 10,
    max_samples: int | None = None,
    iid: bool = False,
    test_share: float = 0.2,
    model: Model = Linear(),
    weights: npt.ArrayLike | Weighting = even,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    ridge: float = 0.0,
    device: str = "cpu",
) -> Supervised:
    """Synthetic(gamma, delta) among n clients, `test_share` of each one's samples for testing."""
    require(n >= 1, f"n must be at least 1, got {n}")
    require(0 < test_share < 1, f"test_share must be above 0 and below 1, got {test_share}")
    source = Synthetic(gamma, delta, dimension, classes, max_samples, iid)
    clients = [source.samples(i, seed) for i in range(n)]
    cuts = [min(max(round(test_share * len(y)), 1), len(y) - 1) for _, y in clients]  # samples are i.i.d.
    return Supervised(
        partial(model.build, (dimension,), classes),
        [(x[cut:], y[cut:]) for (x, y), cut in zip(clients, cuts, strict=True)],
        [(x[:cut], y[:cut]) for (x, y), cut in zip(clients, cuts, strict=True)],
        weights=weights,
        loss=loss,
        metrics=metrics,
        ridge=ridge,
        device=device,
    )

"""F_i*: the least objective that each client could reach alone; CA-Fed compares losses with it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstale.core import Floats
from fedstale.tasks.losses import answer
from fedstale.tasks.split import Lazy, Split, mapped

ROUNDS = 200  # of L-BFGS: a linear model with ridge needs about 50


def least_objectives(
    make: Callable[[], nn.Module], train: Split | Lazy, loss: Callable[[Any, Tensor], Tensor], ridge: float
) -> Floats:
    """(n,) by L-BFGS in float64, from the model's own start: the optimum of a convex model, else near one."""
    ends = train.offsets.tolist()
    spans = [train.span(a, b) for a, b in pairwise(ends)]
    clients = [(mapped(_precise, x), y.cpu()) for x, y in spans]
    return np.array([_least(make().double(), x, y, loss, ridge) for x, y in clients])


def _least(module: nn.Module, x: Any, y: Tensor, loss: Callable[[Any, Tensor], Tensor], ridge: float) -> float:
    params = [p for p in module.parameters() if p.requires_grad]
    search = torch.optim.LBFGS(params, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        search.zero_grad()
        value = loss(answer(module, x), y) + ridge / 2 * sum((p**2).sum() for p in params)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(objective)  # type: ignore[no-untyped-call]
    return float(objective().detach())


def _precise(values: Tensor) -> Tensor:
    return values.cpu().double() if values.is_floating_point() else values.cpu()

"""AdaFed against its formula."""

import numpy as np
from hypothesis import given

from fedstale.core import Round
from fedstale.strategies.adafed import AdaFed
from fedstale.testing import check_strategy
from tests.strategies.rounds import History, histories, near, numbers, played


@given(histories())
def test_adafed(history: History) -> None:
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        step, scale = [], []
        for j in range(history.d):
            came = [(r.a[i] / r.p[i], x) for i in r.clients if (x := r.updates[i][j]) is not None]
            step.append(sum(q * x for q, x in came) / sum(q for q, _ in came) if came else 0.0)
            scale.append(max((abs(x) for _, x in came), default=0.0))
        steps.append(step)
        scales.append(scale)
    near(played(AdaFed(), history), steps, scales)


def test_by_hand() -> None:
    # a / p = (0.25 / 0.5, 0.75 / 0.5) = (0.5, 1.5), so (0.5·4 + 1.5·8) / 2
    r = Round(
        t=1,
        params=np.zeros(1, np.float32),
        clients=np.array([0, 2]),
        updates=np.array([[4.0], [8.0]], np.float32),
        arrived=np.ones((2, 1), bool),
        losses=np.zeros(2, np.float32),
        weights=np.array([0.25, 0.0, 0.75], np.float32),
        probs=np.array([0.5, 0.1, 0.5], np.float32),
    )
    assert AdaFed().aggregate(None, r)[0].tolist() == [7.0]


def test_it_keeps_the_promises_of_a_strategy() -> None:
    check_strategy(AdaFed())

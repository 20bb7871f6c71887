"""Differential privacy in a Flower app: noise on every step, and the ε of every client in report and status."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fedstale as fs
from fedstale.core import BadInput
from fedstale.flower import FedStale, SecAgg
from fedstale.memory import AtClients
from fedstale.participation.clock import Ticks
from fedstale.privacy.noise import secret_normal
from fedstale.strategies import PrivateFedAvg, PrivateFedStale
from tests.flower.direct import Direct, N, quadratic, start, table

EXAMPLES = (20, 10, 30, 20, 40, 5)
RULE = PrivateFedStale(clip=1.0, difference_clip=0.2)
NOISE = fs.Privacy(noise=0.1)


def made(rule: Any = RULE, privacy: fs.Privacy | None = NOISE, **more: Any) -> FedStale:
    return FedStale(rule, privacy=privacy, fraction_evaluate=0.0, **more)


def grid_of(rounds: int = 6) -> Direct:
    return Direct(N, quadratic(table(rounds), EXAMPLES))


def test_the_ledger_is_in_report_metrics_and_status() -> None:
    strategy = made()
    metrics = strategy.start(grid_of(), start(), num_rounds=6).train_metrics_clientapp
    told = strategy.report.epsilons
    assert told.shape == (N,)
    assert (told > 0).all()
    assert [client["epsilon"] for client in strategy.status()["clients"]] == pytest.approx(told.tolist(), abs=1e-6)
    largest = [metrics[t]["fedstale-epsilon"] for t in range(1, 7)]
    assert largest == sorted(largest)
    assert largest[-1] == told.max()
    assert "train_loss" not in metrics[6]
    assert FedStale(RULE).report is None


def test_a_saved_state_goes_on_with_the_same_ledger() -> None:
    first, again = made(), made()
    first.start(grid_of(), start(), num_rounds=3)
    again.load_state_dict(first.state_dict())
    again.start(grid_of(), again.arrays, num_rounds=1)
    assert (again.report.epsilons >= first.report.epsilons).all()
    assert again.report.epsilons.max() > first.report.epsilons.max()


def test_budgets_hold_where_weights_are_told_with_the_updates() -> None:
    """A client that is suddenly heavier than at its admission is left out where it would pass its budget."""
    examples = dict.fromkeys(range(N), 10)

    def answer(message: Any, context: Any) -> Any:
        return quadratic(None, [examples[k] for k in range(N)])(message, context)

    grid, privacy = Direct(N, answer), fs.Privacy(noise=0.5, epsilon=4.0)
    strategy = made(PrivateFedAvg(clip=1.0), privacy)
    strategy.start(grid, start(), num_rounds=2)
    before = strategy.report.epsilons.copy()
    examples[2] = 1000
    strategy.start(grid, strategy.arrays, num_rounds=1)
    after = strategy.report.epsilons
    assert after.max() <= 4.0
    assert after[2] == before[2]
    assert (after[[0, 1, 3, 4, 5]] > before[[0, 1, 3, 4, 5]]).all()


def test_training_ends_with_a_sentence_when_every_budget_is_spent() -> None:
    strategy = made(privacy=fs.Privacy(noise=0.1, epsilon=5.0))
    with pytest.raises(BadInput, match=r"the next round of any client would pass its budget of epsilon = 5.0"):
        strategy.start(Direct(N, quadratic(None, EXAMPLES)), start(), num_rounds=60)
    assert 1 < len(strategy.reports) < 60
    assert strategy.report.epsilons.max() <= 5.0
    assert strategy.arrays is not None


def test_a_rule_that_clips_without_noise_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made(privacy=None).summary()
    assert "clips updates, but adds no noise and promises nothing without privacy=Privacy(noise=" in caplog.text
    caplog.clear()
    made().summary()
    assert "promises nothing" not in caplog.text


def test_the_noise_is_normal_and_never_the_same() -> None:
    drawn = secret_normal(100_000)
    assert np.isfinite(drawn).all()
    assert (drawn.mean(), drawn.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert np.mean(np.abs(drawn) > 1.959964) == pytest.approx(0.05, abs=0.005)
    assert not np.isin(secret_normal(1000), drawn).any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rule": "auto"}, "bounds no client's influence on a step, which privacy needs; take PrivateFedStale"),
        ({"privacy": fs.Privacy(epsilon=4.0)}, "is not known before: give noise, to which `fedstale privacy`"),
        ({"privacy": fs.Privacy(secure=True)}, r"secure = true is for simulations: .* secure=SecAgg\(\)"),
        ({"privacy": 4}, r"privacy must be an object such as Privacy\(epsilon=4.0\), got 4"),
        ({"secure": SecAgg()}, "secure aggregation cannot be combined with privacy"),
        ({"defence": True}, "privacy and a defence do not go together"),
        ({"forget_after": 3}, "a client that is forgotten would have its budget again"),
        ({"pace": Ticks(1.0, 2)}, "privacy needs rounds"),
    ],
)
def test_what_would_break_the_guarantee_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        made(**change)


def test_averaged_buffers_are_refused() -> None:
    two = Array(np.zeros(2, np.float32))
    model = ArrayRecord({"w": two, "bn.running_mean": two})
    with pytest.raises(BadInput, match="privacy does not cover averaged buffers"):
        made().start(grid_of(), model, num_rounds=1)


def test_a_memory_at_the_clients_needs_secure_aggregation() -> None:
    rule = fs.FedStale(0.5, memory=AtClients())
    with pytest.raises(BadInput, match=r'memory = "clients" needs secure=SecAgg\(\), and SecureMod'):
        FedStale(rule)
    assert FedStale(rule, secure=SecAgg()).secure is not None

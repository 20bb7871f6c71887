"""The defence refuses what liars send, leaves honest clients alone, and cannot be turned against them."""

from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import BadInput
from fedstale.defence import Defence
from fedstale.defence.judge import SKETCH, sketch
from fedstale.engines import Serial
from fedstale.simulate import screen

N, D = 10, 20
TASK = fs.Quadratic.random(N, D, spread=1.0, noise=0.1)
ENGINE = fs.engine("batched", TASK, fs.Local(lr=0.05, steps=5))
HALF = fs.TwoGroups(p_min=0.1)


def runs(
    liars: fs.defence.Liars | None, defence: Defence | None, strategy: fs.core.Strategy, rounds: int = 60
) -> list[Any]:
    return [*fs.simulate(ENGINE, strategy, HALF, rounds=rounds, seed=3, estimator=fs.Intervals(),
                         defence=defence, liars=liars)]  # fmt: skip


def judged(defence: Defence, norms: list[list[float]], clients: list[list[int]], n: int = N) -> list[list[str]]:
    """The reasons, round by round, for updates of these norms from these clients, all in one direction."""
    watch, found = defence.init(n, 2), []
    for t, (some, who) in enumerate(zip(norms, clients, strict=True), 1):
        updates = np.array([[x, 0] for x in some], np.float32)
        none, ones = np.zeros(len(who), np.float32), np.ones(n, np.float32)
        r = fs.core.Round(t, np.zeros(2, np.float32), np.array(who), updates, np.ones((len(who), 1), bool), none,
                     ones / n, ones)  # fmt: skip
        found.append([*defence.judge(watch, r, False).reasons])
    return found


@pytest.mark.parametrize("factor", [0.0, 1e4, -1.0, -15.0])
@pytest.mark.parametrize("clients", [(0,), (9,), (0, 1, 2), (7, 8, 9)])
@pytest.mark.parametrize("strategy", [fs.FedStale(), fs.SelfTuning()])
def test_liars_are_refused_and_honest_clients_are_not(strategy, clients, factor):
    found = runs(fs.defence.Liars(clients, factor), Defence(), strategy)
    heard, refused = (np.concatenate([getattr(s, name) for s in found]) for name in ("clients", "refused"))
    lies = np.isin(heard, clients)
    wrong = np.count_nonzero(~np.isin(refused, clients))
    assert wrong < 0.01 * np.count_nonzero(~lies)
    late = [i for s in found[30:] for i in s.clients.tolist() if i in clients]
    assert len(late) <= 2  # of up to 90
    others = np.setdiff1d(np.arange(N), clients)
    optimum = TASK.centers[others].mean(axis=0)
    assert np.linalg.norm(found[-1].params - optimum) < 0.8


def test_without_a_defence_the_same_liars_win():
    found = runs(fs.defence.Liars((0, 1, 2), -1.0), None, fs.FedStale())
    assert np.linalg.norm(found[-1].params - TASK.centers[3:].mean(axis=0)) > 1.5


def test_without_liars_it_changes_nothing_here():
    for strategy in (fs.FedAvg(), fs.FedStale(), fs.SelfTuning()):
        plain, defended = runs(None, None, strategy), runs(None, Defence(influence=30.0), strategy)
        assert all(len(s.refused) == 0 for s in defended)
        assert np.linalg.norm(plain[-1].params - defended[-1].params) < 0.2


@pytest.mark.parametrize("d", [4, 15, 60])
def test_without_liars_noisy_clients_of_a_small_model_are_not_refused(d):
    """Of so few numbers, cosines are large by chance."""
    task = fs.Quadratic.random(10, d, seed=11, noise=1.0)
    run = fs.simulate(
        Serial(task, fs.Local(lr=0.05, steps=3)), fs.recipe("auto").strategy, fs.Bernoulli([1.0] * 5 + [0.3] * 5),
        rounds=60, estimator=fs.Intervals(), defence=fs.defence.Defence(), seed=11,
    )  # fmt: skip
    assert sum(len(s.refused) for s in run) == 0


def test_the_direction_is_not_judged_where_clients_do_not_go_down_their_own_loss():
    engine = fs.engine("serial", TASK, fs.Local(lr=0.01, steps=3))
    found = fs.simulate(engine, fs.strategies.Scaffold(), HALF, rounds=40, seed=3, defence=Defence())
    assert sum(len(s.refused) for s in found) == 0


def test_norms_are_compared_between_clients_and_not_between_messages():
    """Three clients that shout in every round are most of the messages, and a minority of the clients."""
    honest = [[3, 4], [3, 5, 6], [4, 7], [8], [9], []]
    found = judged(Defence(), [[1e4] * 3 + [1.0] * len(h) for h in honest], [[0, 1, 2, *h] for h in honest])
    assert all("out of proportion" in reason for row in found for reason in row[:3])
    assert [reason for row in found for reason in row[3:] if reason] == []


def test_zeros_do_not_move_the_scale():
    found = judged(Defence(), [[0.0] * 3 + [1.0, 1.2]] * 4, [[0, 1, 2, 3, 4]] * 4)
    assert all("out of proportion: 0" in reason for row in found for reason in row[:3])
    assert [reason for row in found for reason in row[3:] if reason] == []
    assert judged(Defence(), [[0.0, 0.0]], [[0, 1]]) == [["", ""]]  # nobody has trained


def test_liars_that_are_alone_at_first_do_not_set_the_scale():
    found = judged(Defence(), [[1e4] * 3] * 3 + [[1e4] * 3 + [1.0]] * 2, [[0, 1, 2]] * 3 + [[0, 1, 2, 5]] * 2)
    assert all("cannot be compared" in reason for row in found[:3] for reason in row)
    assert [bool(reason) for reason in found[3]] == [True, True, True, False]


def test_honest_norms_may_fall_a_hundredfold_and_differ():
    draw, falls = np.random.default_rng(1), 0.01 ** (np.arange(60) / 60)
    norms = [(fall * np.exp(0.5 * draw.standard_normal(N))).tolist() for fall in falls]
    reasons = [reason for row in judged(Defence(), norms, [[*range(N)]] * 60) for reason in row]
    assert np.mean([reason != "" for reason in reasons]) < 0.01


def test_a_client_may_be_as_long_as_clients_were_in_the_beginning():
    """Where frequent clients have learned their labels, one that comes late with others is as long as they were."""
    short = [0.9**t for t in range(40)]
    found = judged(
        Defence(), [[x] * 8 for x in short] + [[short[-1]] * 8 + [1.0]], [[*range(8)]] * 40 + [[*range(9)]]
    )
    assert [reason for row in found for reason in row if reason] == []
    assert 1 / short[-1] > 60
    found = judged(Defence(), [[1.0] * 8, [0.1] * 8 + [7.0]], [[*range(8)], [*range(9)]])
    assert [bool(reason) for reason in found[1]] == [False] * 8 + [True]


def amplified(cosines: list[float], influence: float | None = 6.0, inverse: bool = True) -> list[float]:
    """What the updates of four clients are multiplied by, all of norm 2, the last with p = 0.01 and a / p = 25."""
    defence, ones = Defence(influence=influence), np.ones(4, np.float32)
    watch, probs = defence.init(4, 2), np.array([1, 1, 1, 0.01], np.float32)
    watch.cosines[:], watch.counts[:] = cosines, 1
    updates, none = np.array([[2, 0]] * 4, np.float32), np.zeros(2, np.float32)
    r = fs.core.Round(2, none, np.arange(4), updates, np.ones((4, 1), bool), 0 * ones, ones / 4, probs)
    return defence.judge(watch, r, inverse).scales.tolist()


def test_the_reach_of_a_rare_client_is_bounded():
    assert amplified([-0.3] * 4) == pytest.approx([1, 1, 1, 6 / 25])
    assert amplified([-0.3] * 4, influence=None) == [1] * 4
    assert amplified([-0.3] * 4, inverse=False) == [1] * 4


def test_a_client_is_not_amplified_before_it_has_shown_that_it_goes_down_a_loss():
    assert amplified([-0.3, 0.0, 0.1, 0.0]) == pytest.approx([1, 1, 1, 0.01])


def test_what_a_refused_client_left_in_the_memory_is_forgotten():
    strategy, defence = fs.FedStale(), Defence()
    state, n = strategy.init(4, 2), 4
    ones = np.ones(n, np.float32)
    r = fs.core.Round(1, np.zeros(2, np.float32), np.arange(4), np.ones((4, 2), np.float32), np.ones((4, 1), bool),
                 np.zeros(4, np.float32), ones / n, ones)  # fmt: skip
    now = fs.core.Checkpoint(0, r.params, state, None, None, None, defence=defence.init(n, 2))
    rules = fs.Run(ENGINE, strategy, HALF, 1, defence=defence)
    now, r = screen(rules, now, r._replace(buffers=np.eye(4)))
    assert r.refused == {}
    _, state = strategy.aggregate(now.state, r)
    loud = r._replace(t=2, updates=r.updates * np.array([[1], [1], [1], [100]], np.float32))
    now, kept = screen(rules, now._replace(state=state), loud._replace(refused={8: "it is not finite"}))
    assert [*kept.refused] == [8, 3]
    assert kept.clients.tolist() == [0, 1, 2]
    assert kept.buffers.tolist() == np.eye(4)[:3].tolist()
    assert now.state.rows.tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert now.state.weighted_sum(r.weights).tolist() == [0.75, 0.75]


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits():
    settings = {
        "seed": 3,
        "estimator": fs.Intervals(),
        "defence": Defence(),
        "liars": fs.defence.Liars((0, 9), -1.0),
    }
    whole = [*fs.simulate(ENGINE, fs.FedStale(), HALF, rounds=20, **settings)]
    half = [*fs.simulate(ENGINE, fs.FedStale(), HALF, rounds=10, **settings)][-1].checkpoint
    rest = [*fs.simulate(ENGINE, fs.FedStale(), HALF, rounds=20, start=half, **settings)]
    assert rest[-1].params.tobytes() == whole[-1].params.tobytes()


def test_a_sketch_keeps_inner_products():
    rows = np.random.default_rng(0).standard_normal((2, 30 * SKETCH + 7)).astype(np.float32)
    rows[1] += rows[0]
    short = sketch(rows)
    assert short.shape == (2, SKETCH)
    cosines = [float(x[0] @ x[1] / np.linalg.norm(x[0]) / np.linalg.norm(x[1])) for x in (rows, short)]
    assert cosines[1] == pytest.approx(cosines[0], abs=0.1)
    assert sketch(rows[:, :9]).tolist() == rows[:, :9].tolist()


def test_the_largest_floats_leave_a_finite_state():
    d, defence, ones = 3 * SKETCH, Defence(), np.ones(4, np.float32)
    watch, updates = defence.init(4, d), np.ones((4, d), np.float32)
    updates[3] = np.finfo(np.float32).max
    for t in (1, 2, 3):
        updates[3] *= -1
        r = fs.core.Round(
            t, np.full(d, t, np.float32), np.arange(4), updates, np.ones((4, 1), bool), 0 * ones, ones / 4, ones
        )
        assert [bool(reason) for reason in defence.judge(watch, r, False).reasons] == [False, False, False, True]
    assert all(np.isfinite(x).all() for x in watch)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"liars": 0.5}, "liars must be a share of at least 0 and below 0.5, got 0.5"),
        ({"loud": 1.0}, "loud must be above 1, got 1.0"),
        ({"quiet": 0.5}, "quiet must be above 1, got 0.5"),
        ({"alarm": 0.0}, "alarm must be above 0, got 0.0"),
        ({"influence": -1.0}, "influence must be above 0 or None, got -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        Defence(**settings)


def test_a_defence_and_liars_must_fit_the_run():
    with pytest.raises(BadInput, match=r"liars.clients must be below 10, the number of clients, got 10"):
        runs(fs.defence.Liars((10,)), None, fs.FedAvg())
    for strategy in (fs.strategies.FedAWE(), fs.strategies.FOCUS()):
        with pytest.raises(BadInput, match="a defence compares updates from the same parameters"):
            runs(None, Defence(), strategy)

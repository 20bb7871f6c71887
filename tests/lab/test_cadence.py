"""When a run is evaluated: by rounds and sizes, so that training gets nine tenths of the work."""

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.core import BadInput
from fedstale.lab.cadence import LAST, Cadence, affordable, cadence, evaluation_task, trained_samples
from fedstale.simulate import Run

LOCAL = fs.Local(lr=0.1, steps=5, batch=10)


def samples(n: int, each: int, d: int = 2) -> fs.Supervised:
    x, y = torch.zeros(n * each, d), torch.arange(n * each) % 2
    split = fs.tasks.Split(x, y, np.arange(n + 1) * each)
    return fs.Supervised(torch.nn.Linear(d, 2), split, split)


def run(task: fs.core.Task, rounds: int, p: float = 0.5) -> Run:
    return Run(fs.Serial(task, LOCAL), fs.FedAvg(), fs.Bernoulli(p), rounds)


def evaluations(c: Cadence, rounds: int) -> int:
    return sum(c.due(t, rounds) for t in range(1, rounds + 1))


@pytest.mark.parametrize("rounds", [1, 7, 20, 99, 400, 10_000])
@pytest.mark.parametrize("size", [1, 300, 5_000, 10**6])
def test_an_evaluation_is_a_tenth_of_the_work_and_the_last_round_is_evaluated(rounds: int, size: int) -> None:
    c = affordable(rounds, trained=500.0 * rounds, size=size, d=10**9)
    count = evaluations(c, rounds)
    assert c.due(rounds, rounds)
    assert count == 1 or count * size <= 50 * rounds
    assert count <= 110


def test_what_is_affordable_is_fifty_evaluations_and_the_last_ten_rounds() -> None:
    assert affordable(400, trained=1e9, size=100, d=10**9) == Cadence(8, LAST)
    assert affordable(7, trained=1.0, size=100, d=10) == Cadence(1, LAST)  # a matter of milliseconds
    assert affordable(400, trained=400 * 1000, size=1600, d=10**9) == Cadence(27, LAST)  # of 25, 10 are the last
    assert affordable(400, trained=400 * 1000, size=4000, d=10**9) == Cadence(40, 1)


def test_the_work_of_training_is_what_the_clients_who_come_are_expected_to_do() -> None:
    assert trained_samples(run(samples(8, 20), rounds=3)) == 3 * 4 * 50
    assert trained_samples(run(fs.Quadratic.random(8, 2), rounds=3)) == 3 * 4 * 5  # a step is one


def test_a_sample_of_a_model_with_layers_is_half_the_work_of_a_trained_one() -> None:
    x, y = torch.zeros(12, 2), torch.arange(12) % 2
    split = fs.tasks.Split(x, y, np.arange(4) * 4)
    deep = fs.Supervised(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)), split)
    assert (samples(3, 4).evaluated_samples(True), samples(3, 4).evaluated_samples(False)) == (24, 12)
    assert deep.evaluated_samples(True) == 6


def test_many_clients_are_evaluated_on_a_subsample_that_all_runs_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.lab.cadence.FREE", 1)
    task = samples(5000, 2)
    c = cadence(run(task, rounds=100, p=0.002), {})
    assert c.clients == 1000
    assert c.note(task.n).startswith(f"evaluation: every {c.every} rounds on 1000 of 5000 clients")
    one, other = (evaluation_task(task, {}, 1000) for _ in range(2))
    assert one is other
    assert isinstance(one, fs.Supervised)
    assert (one.n, one.train.offsets[-1], len(one.scored[0].split.sizes)) == (1000, 2000, 1000)
    assert cadence(run(task, rounds=100, p=0.002), {"evaluate_every": 3}) == Cadence(3)
    assert cadence(run(samples(5, 2), rounds=100, p=0.02), {}).clients is None  # too few for a subsample


class Fetched(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Twenty samples that are made when they are asked for."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2), torch.tensor(index % 2)


def test_samples_that_are_fetched_are_never_evaluated_for_nothing() -> None:
    """However small the model is: most of a million samples would be fetched for the evaluation alone."""
    clients = [Fetched()] * 50_000
    task = fs.Supervised(torch.nn.Linear(2, 2), clients, central_test=clients[0])
    chosen = run(task, rounds=200, p=0.001)
    c = cadence(chosen, {})
    fetched = evaluations(c, 200) * (c.clients or task.n) * 20
    assert c.clients == 1000
    assert fetched <= 0.25 * trained_samples(chosen)  # a sample that only passes forward is half the work
    in_memory = cadence(run(samples(50_000, 20), rounds=200, p=0.001), {})
    assert (in_memory.clients or 50_000) > 1000


def test_the_round_that_reaches_a_target_is_found_to_a_few_per_cent() -> None:
    c = cadence(run(samples(50, 4), rounds=2000), {"target": 0.8})
    due = np.array([t for t in range(1, 2001) if c.due(t, 2000)])
    assert due[:20].tolist() == [*range(1, 21)]
    assert (np.diff(due) <= np.maximum(2, 0.06 * due[1:])).all()
    assert len(due) < 200
    dear = cadence(run(samples(50, 400, d=10**4), rounds=2000, p=0.002), {"target": 0.8})
    assert 0 < dear.growth < 2, "half of what is trained, 5,000 samples, are few evaluations of 20,000"
    assert cadence(run(samples(50, 4), rounds=2000), {"target": 0.8, "evaluate_every": 7}) == Cadence(7)


def test_what_is_asked_for_is_done() -> None:
    task = samples(50, 4)
    asked = {"evaluate_clients": 7, "evaluate": "test", "evaluate_every": 2}
    c = cadence(run(task, rounds=9), asked)
    assert c == Cadence(2, LAST, 7)
    some = evaluation_task(task, asked, c.clients)
    assert {*some.evaluate(task.init(0))} == {"accuracy", "loss"}
    assert cadence(run(task, rounds=9), {"evaluate_clients": 50}).clients is None


def test_a_narrowed_task_gives_the_scores_of_its_clients() -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((4, 3)).astype(np.float32), rng.integers(0, 2, 4)) for _ in range(6)]
    task = fs.Supervised(torch.nn.Linear(3, 2), pairs, pairs, weights=[1, 2, 3, 4, 5, 6])
    params, each = task.init(1), task.per_client(task.init(1))
    some = task.narrowed(np.array([1, 4]), training=True).evaluate(params)
    assert some["objective"] == pytest.approx((2 * each["objective"][1] + 5 * each["objective"][4]) / 7)
    assert some["accuracy"] == pytest.approx((2 * each["accuracy"][1] + 5 * each["accuracy"][4]) / 7)
    assert task.evaluate(params)["objective"] == pytest.approx(float(task.weights @ each["objective"]))


def test_what_cannot_be_narrowed_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="need a task with samples, got Quadratic"):
        evaluation_task(fs.Quadratic.random(4, 2), {"evaluate": "test"}, None)
    x, y = np.ones((2, 3), np.float32), np.array([0, 1])
    with pytest.raises(BadInput, match='evaluate = "test" needs test samples'):
        fs.Supervised(torch.nn.Linear(3, 2), [(x, y)]).narrowed(None, training=False)
    own = fs.Supervised(torch.nn.Linear(3, 2), [(x, y)] * 4, [(x, y)] * 4, personal=["bias"])
    with pytest.raises(BadInput, match="must be left out where clients keep a part of the model, got 2"):
        evaluation_task(own, {}, 2)

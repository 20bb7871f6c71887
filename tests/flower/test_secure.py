"""Secure aggregation over a grid in memory: clients are lost in every stage, and the steps are those without it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

import fedstale as fs
from fedstale.core import BadInput
from fedstale.flower import FedStale, SecAgg, SecureMod
from fedstale.flower.federation.client.own_memory import Held, read_memory, write_memory
from fedstale.flower.secure_mod import SECURE
from tests.flower.direct import D, Direct, N, away, quadratic, reply, start

STAGES = ("train", "keys", "sum", "unmask")
EXAMPLES = (20, 10, 30, 20, 40, 5)


def stage_of(message: Message) -> str:
    record = message.content.config_records.get(SECURE)
    return "" if record is None else str(record["stage"])


class Federation:
    """Clients with a SecureMod; `lost(t, k, stage)` says whether client k is killed before it answers the stage."""

    def __init__(self, rule: Any, lost: Callable[[int, int, str], bool] = lambda t, k, stage: False) -> None:
        self.train, self.mod, self.lost = quadratic(examples=EXAMPLES), SecureMod(rule), lost
        self.t, self.seen, self.updates = 0, list[tuple[str, Message]](), list[Any]()
        self.counted: dict[int, set[int]] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        k, stage = int(context.node_config["partition-id"]), stage_of(message)
        if stage == "train":
            self.t = int(message.content[SECURE]["round"])
        if self.lost(self.t, k, stage):
            return away(message, "killed")
        try:
            answer = self.mod(message, context, self._trained)
        except ValueError as error:
            answer = away(message, str(error))
        self.seen.append((stage, answer))
        return answer

    def _trained(self, message: Message, context: Context) -> Message:
        answer = self.train(message, context)
        self.updates.append(answer.content["arrays"]["w"].numpy() - message.content["arrays"]["w"].numpy())
        return answer


def trained(rule: Any, answer: Any, rounds: int, secure: SecAgg | None, n: int = N) -> tuple[FedStale, Direct]:
    grid = Direct(n, answer)
    strategy = FedStale(rule, secure=secure, defence=None, stop_after=None, fraction_evaluate=0.0)
    strategy.start(grid, start(), num_rounds=rounds)
    return strategy, grid


def params(strategy: FedStale) -> Any:
    return strategy.arrays["w"].numpy()


def memories(strategy: FedStale, grid: Direct) -> Any:
    """Σ v_i h_i of what the clients hold that the server has counted."""
    state = strategy._training.population.checkpoint.state
    places = {name: k for k, name in enumerate(strategy._training.population.names)}
    total = np.zeros(D)
    for node, name in strategy._identities.names.items():
        held, counted = read_memory(grid.contexts[node - 1000]), int(state.counted[places[name]])
        if counted and held.epoch == state.epoch:
            held = held.counted(counted, state.epoch)
            total += held.weight * held.h.astype(np.float64)
    return total


RANDOM = np.random.default_rng(5)
KILLS = {(t, k): STAGES[RANDOM.integers(4)] for t in range(1, 101) for k in range(4) if RANDOM.random() < 0.15}


def killed(t: int, k: int, stage: str) -> bool:
    """Killed in the stage of KILLS, and away until the next round."""
    at = KILLS.get((t, k))
    return at is not None and stage in STAGES and STAGES.index(stage) >= STAGES.index(at)


@pytest.mark.parametrize(("rule", "rounds"), [("auto", 100), (fs.FedStale(0.5), 15)])
def test_clients_are_killed_in_every_stage(rule: Any, rounds: int) -> None:
    """Every closed round has the step of a training without secure aggregation that hears the same clients."""
    federation = Federation(rule, killed)
    strategy, grid = trained(rule, federation, rounds, SecAgg(), n=4)
    heard = {report.t: {*report.heard} for report in strategy.reports}
    names = {k: strategy._identities.names[1000 + k] for k in range(4)}

    def plain(message: Message, context: Context) -> Message:
        k, t = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        return federation.train(message, context) if names[k] in heard[t] else away(message)

    other, _ = trained(rule, plain, rounds, None, n=4)
    np.testing.assert_allclose(params(strategy), params(other), atol=2e-3)
    state = strategy._training.population.checkpoint.state
    assert np.abs(state.total - memories(strategy, grid)).max() <= N * SecAgg().ring.step
    assert state.clipped == 0
    assert {stage for (t, k), stage in KILLS.items() if t <= rounds} == {*STAGES}
    closed = sum(len(names) > 2 for names in heard.values())
    assert rounds / 2 < closed < rounds
    assert closed + sum(len(names) == 0 for names in heard.values()) == rounds


def test_no_update_is_in_what_the_server_receives() -> None:
    federation = Federation(fs.FedStale(0.5))
    trained(fs.FedStale(0.5), federation, 4, SecAgg())
    assert {stage for stage, _ in federation.seen} == {*STAGES}
    sent = {stage: [m for s, m in federation.seen if s == stage] for stage in STAGES}
    for stage in ("train", "keys", "unmask"):
        assert all(not m.content.array_records and not m.content.metric_records for m in sent[stage])
    masked = [m.content["masked"]["masked"].numpy() for m in sent["sum"]]
    ring = SecAgg().ring
    for update in federation.updates:
        for scale in (1.0, *EXAMPLES, 0.5):
            plain = np.rint(scale * update / ring.step).astype(np.int64).astype(np.uint32)
            assert not any(np.isin(plain[plain != 0], codes).any() for codes in masked)
    spread = np.concatenate(masked).astype(np.float64) / 2**32
    assert abs(spread.mean() - 0.5) < 0.1
    data = b"".join(
        a.data for _, m in federation.seen for r in m.content.array_records.values() for a in r.values()
    )
    assert not any(update[:2].tobytes() in data for update in federation.updates)


def test_metrics_are_summed_and_averaged_by_weight() -> None:
    metrics = {}
    for secure in (None, SecAgg()):
        answer = quadratic(examples=EXAMPLES) if secure is None else Federation("auto")
        grid = Direct(N, answer)
        strategy = FedStale("auto", secure=secure, defence=None, fraction_evaluate=0.0)
        metrics[secure] = strategy.start(grid, start(), num_rounds=1).train_metrics_clientapp[1]
    plain, summed = metrics.values()
    assert summed["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-4)
    assert summed["fedstale-clipped"] == 0


def test_a_client_that_lost_its_memory_lets_all_begin_anew() -> None:
    federation, grid = Federation(fs.FedStale(1.0)), None
    grid = Direct(N, federation)
    strategy = FedStale(fs.FedStale(1.0), secure=SecAgg(), stop_after=None, fraction_evaluate=0.0)
    strategy.start(grid, start(), num_rounds=4)
    grid.contexts[2].state = RecordDict()
    strategy.start(grid, strategy.arrays, num_rounds=3)
    state = strategy._training.population.checkpoint.state
    assert state.epoch == 1
    assert len(strategy.report.heard) == N
    assert np.abs(state.total - memories(strategy, grid)).max() <= N * SecAgg().ring.step


def test_a_memory_in_a_folder_survives_the_loss_of_the_nodes_state(tmp_path: Any) -> None:
    """As after a SIGKILL of a SuperNode, which keeps its state in RAM; a damaged file is a lost memory."""
    federation = Federation(fs.FedStale(1.0))
    grid = Direct(N, federation)
    for k, context in grid.contexts.items():
        context.node_config["own"] = str(tmp_path / str(k))
    strategy = FedStale(fs.FedStale(1.0), secure=SecAgg(), stop_after=None, fraction_evaluate=0.0)
    strategy.start(grid, start(), num_rounds=3)
    for context in grid.contexts.values():
        context.state = RecordDict()
    strategy.start(grid, strategy.arrays, num_rounds=2)
    state = strategy._training.population.checkpoint.state
    assert state.epoch == 0
    assert np.abs(state.total - memories(strategy, grid)).max() <= N * SecAgg().ring.step
    file = tmp_path / "1" / "memory.npz"
    file.write_bytes(file.read_bytes()[:-40])
    strategy.start(grid, strategy.arrays, num_rounds=1)
    assert strategy._training.population.checkpoint.state.epoch == 1


@pytest.mark.parametrize("folder", [False, True])
def test_a_memory_is_replaced_when_its_round_was_counted(folder: bool, tmp_path: Any) -> None:
    context = Direct(1, quadratic()).contexts[0]
    if folder:
        context.node_config["own"] = str(tmp_path)
    first, second = np.ones(2, np.float32), np.full(2, 2, np.float32)
    write_memory(context, Held().counted(0, 0).waiting(1, 0.5, first))
    write_memory(context, read_memory(context).counted(1, 0).waiting(2, 0.25, second))
    held = read_memory(context)
    assert [held.has(t, 0) for t in (0, 1, 2, 3)] == [True, True, True, False]
    assert (held.counted(1, 0).weight, held.counted(2, 0).weight) == (0.5, 0.25)
    np.testing.assert_array_equal(held.counted(1, 0).h, first)
    np.testing.assert_array_equal(held.counted(2, 0).h, second)
    assert held.counted(2, 1) == Held(1)
    with pytest.raises(ValueError, match="the memory of round 3 is not here"):
        held.counted(3, 0)


def test_two_clients_are_too_few() -> None:
    federation = Federation("auto", lambda t, k, stage: k > 1)
    grid = Direct(N, federation)
    strategy = FedStale("auto", secure=SecAgg(), stop_after=None, fraction_evaluate=0.0)
    with pytest.raises(BadInput, match="nothing was learned in 2 rounds"):
        strategy.start(grid, start(), num_rounds=2)
    assert {stage for stage, _ in federation.seen} == {"train"}


def test_a_saved_state_goes_on() -> None:
    one, two = Federation("auto"), Federation("auto")
    whole, _ = trained("auto", one, 6, SecAgg())
    half, grid = trained("auto", two, 3, SecAgg())
    again = FedStale("auto", secure=SecAgg(), defence=None, stop_after=None, fraction_evaluate=0.0)
    again.load_state_dict(half.state_dict())
    again.start(grid, again.arrays, num_rounds=3)
    np.testing.assert_array_equal(params(again), params(whole))


def asked(stage: str, **more: Any) -> Message:
    content = RecordDict({SECURE: ConfigRecord({"stage": stage, **more})})
    return Message(content, dst_node_id=1000, message_type="train")


def test_a_client_protects_itself() -> None:
    grid, mod = Direct(N, quadratic()), SecureMod("auto")
    context, train = grid.contexts[0], quadratic()
    plain = Message(RecordDict({"arrays": start()}), dst_node_id=1000, message_type="train")
    with pytest.raises(ValueError, match="asked for an update in the clear"):
        mod(plain, context, train)
    other = asked("train", round=1, rule="FedAvg()", **{"weight-key": "num-examples"})
    with pytest.raises(
        ValueError, match=r"the server's rule is FedAvg\(\), and that of this client's SecureMod is"
    ):
        mod(other, context, train)
    hello = asked("train", round=1, rule=repr(mod.rule), **{"weight-key": "num-examples"})
    hello.content["arrays"], hello.content["config"] = start(), ConfigRecord({"server-round": 1})
    told = mod(hello, context, train).content[SECURE]
    few = {"nodes": ["1000", "7"], "pk1": [told["pk1"], b"1"], "pk2": [told["pk2"], b"2"]}
    with pytest.raises(ValueError, match="2 of 2 clients is no threshold that protects this one"):
        mod(asked("keys", threshold=2, **few), context, train)
    same = {"nodes": ["1000", "7", "8"], "pk1": [told["pk1"], b"1", b"1"], "pk2": [told["pk2"], b"2", b"3"]}
    with pytest.raises(ValueError, match="not those of different clients"):
        mod(asked("keys", threshold=2, **same), context, train)
    with pytest.raises(ValueError, match="1 of 3 clients is no threshold"):
        mod(asked("keys", threshold=1, **same), context, train)


def test_evaluation_is_as_without_it() -> None:
    context = Direct(N, quadratic()).contexts[0]
    message = Message(RecordDict({"arrays": start()}), dst_node_id=1000, message_type="evaluate")
    answer = SecureMod("auto")(message, context, lambda m, c: reply(m, {}, {"num-examples": 1}))
    assert answer.content["metrics"]["num-examples"] == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SecAgg(threshold=0.5), "threshold must be above 0.5 and at most 1, got 0.5"),
        (lambda: SecAgg(range=-1.0), "range must be above 0 and finite, got -1.0"),
        (lambda: SecureMod(fs.strategies.Krum()), "secure aggregation needs a rule that is split"),
        (lambda: FedStale(fs.strategies.Krum(), secure=SecAgg()), "needs every update at the server"),
        (lambda: FedStale("auto", secure=SecAgg(), record="runs"), "leave out record or secure"),
        (lambda: FedStale("auto", secure=SecAgg(), forget_after=3), "secure needs forget_after=None"),
        (
            lambda: FedStale("auto", secure=SecAgg(), defence=fs.defence.Defence(loud=3.0)),
            "a defence judges single updates",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()


def test_a_model_with_averaged_buffers_is_refused() -> None:
    context = Direct(N, quadratic()).contexts[0]
    hello = asked("train", round=1, rule=repr(SecureMod("auto").rule), **{"weight-key": "num-examples"})
    two = Array(np.zeros(2, np.float32))
    hello.content["arrays"] = ArrayRecord({"w": two, "bn.running_mean": two})
    with pytest.raises(ValueError, match="secure aggregation has no averaged buffers"):
        SecureMod("auto")(hello, context, quadratic())

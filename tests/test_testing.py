"""Every part of the package keeps its promises, and every check catches a part that breaks one."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedstale import testing
from fedstale.channels import Lossless
from fedstale.core import Array, Availability, Ids, Job, Local, Mask, Reply, Round, part
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.memory import Coding, Float16, Int8
from fedstale.participation import Bernoulli, Sine
from fedstale.participation.estimators import Intervals
from fedstale.simulate.servers import Momentum
from fedstale.strategies import FOCUS, MIFA, CAFed, FedAvg, FedStale, FedVARP, Scaffold, Unbiased
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.supervised import Supervised

ENGINE = Serial(Quadratic.random(5, 4, seed=1, noise=0.1), Local(0.1, steps=3))
TABLE = np.random.default_rng(0).random((50, 6)) < 0.4
SETTINGS: dict[str, list[dict[str, Any]]] = {  # of the parts that need some, or have others worth a check
    "Amplified": [{"period": 2, "factor": 3.0}],
    "AmplifiedScaffold": [{"period": 2, "factor": 1.5}],
    "Bernoulli": [{"p": 0.3}, {"p": [0, 0.01, 0.2, 0.5, 0.9, 1]}],
    "Clipped": [{"strategy": Scaffold(), "bound": 1.0}, {"strategy": FedStale(0.5), "bound": 1.0}],
    "ClusteredMarkov": [{"clusters": 2, "availability": 0.4, "eigenvalue": 0.5}],
    "Cyclic": [{}, {"groups": 3, "on": 5, "off": 10, "random_offset": True}],
    "Diurnal": [{}, {"clusters": 3}],
    "Events": [
        {"events": [(f"d{i}", "v", 600.0 * (i + k), s) for i in range(6) for k, s in enumerate("ab")], "on": ["a"]}
    ],
    "ExitSampling": [{"exits": [1, 2, 3], "p": 0.2}],
    "Extrapolated": [{"strategy": FOCUS()}, {"strategy": CAFed()}],
    "F3AST": [{"clients": 2}],
    "Log": [{"log": [(f"c{i}", 86400.0 * (i + k)) for i in range(6) for k in range(2)]}],
    "FedStale": [{"beta": 0.0}, {"beta": 0.5}, {"beta": 1.0}],
    "PrivateFedAvg": [{"clip": 1.0}],
    "PrivateFedStale": [{"clip": 1.0}, {"clip": 1.0, "beta": 0.5, "difference_clip": 0.3, "max_weight": 0.4}],
    "FedSteer": [{}, {"core": 2}, {"core": 2, "released": True}],
    "GilbertElliott": [{"worsen": 0.1, "recover": 0.3}],
    "Grid": [{"grid": TABLE.astype(int)}],
    "Intervals": [{}, {"cutoff": None}, {"cutoff": 3}],
    "Known": [{}, {"p": [0.0, 0.5, 0.5, 1.0]}],
    "Krum": [{}, {"keep": 2, "stale": True}],
    "LabelProfile": [{"labels": np.eye(6) + 0.2}, {"labels": np.eye(6) + 0.2, "profile": Sine(cut=0.1)}],
    "LabelTied": [{"labels": np.eye(6) + 0.2}],
    "Loss": [{"up": 0.3, "down": 0.1}, {"up": 0.5, "retries": 2}],
    "Markov": [{"availability": 0.4, "eigenvalue": 0.6}],
    "Median": [{}, {"stale": True}],
    "MinimumSeparation": [{"size": 2, "rest": 1}, {"size": 1, "rest": 2, "p": [1, 2, 3, 1, 1, 1]}],
    "Packets": [{"size": 7, "loss": 0.3}, {"size": 100, "loss": 0.3}],
    "PowerOfChoice": [{"clients": 2, "candidates": 3}],
    "Battery": [{"harvest": [0, 0.2, 0.5, 0.9, 1, 1], "charge": 2, "cost": 3}],
    "Budget": [{"prices": np.arange(30).reshape(5, 6) % 7, "spend": 6.0}],
    "FedLaAvg": [{"clients": 2}],
    "Affine": [{"matrix": [1.0] * 6, "values": 2.0}],
    "Onto": [{"nearest": "numpy:abs"}],
    "Projection": [{"radius": 2.0}],
    "RegularisedSampling": [{"base": Bernoulli(0.5), "size": 2}],
    "Sampling": [{"base": Bernoulli(0.5), "size": 2}],
    "Trace": [{"matrix": TABLE}, {"matrix": TABLE.T}],
    "TwoGroups": [{"p_min": 0.1}],
    "Wait": [{"period": 3}],
}


def found(package: str, member: str) -> list[Any]:
    """Every class of a package, exported or not, that has this member: with settings, as pytest parameters."""
    home = importlib.import_module(f"fedstale.{package}")
    inner = [m.name for m in pkgutil.iter_modules(getattr(home, "__path__", []))]
    modules = [home, *(importlib.import_module(f"{home.__name__}.{name}") for name in inner)]
    classes = [c for m in modules for c in vars(m).values() if inspect.isclass(c) and c.__module__ == m.__name__]
    kinds = sorted({c.__name__: c for c in classes if hasattr(c, member)}.items())
    return [
        pytest.param(kind, settings, id=f"{name}-{k}")
        for name, kind in kinds
        for k, settings in enumerate(SETTINGS.get(name, [{}]))
    ]


def made(kind: Callable[..., Any], settings: dict[str, Any]) -> Any:
    try:
        return kind(**settings)
    except TypeError as error:
        pytest.fail(f"{kind.__name__} needs settings to be checked: give it some in SETTINGS ({error})")


@pytest.mark.parametrize(("kind", "settings"), found("strategies", "aggregate"))
def test_strategies(kind: Any, settings: dict[str, Any]) -> None:
    testing.check_strategy(made(kind, settings))


@pytest.mark.parametrize(("kind", "settings"), found("participation", "rows"))
def test_participations(kind: Any, settings: dict[str, Any]) -> None:
    testing.check_participation(made(kind, settings))


@pytest.mark.parametrize(("kind", "settings"), found("participation.estimators", "observe"))
def test_estimators(kind: Any, settings: dict[str, Any]) -> None:
    testing.check_estimator(made(kind, settings))


@pytest.mark.parametrize(("kind", "settings"), found("channels", "uplink"))
def test_channels(kind: Any, settings: dict[str, Any]) -> None:
    testing.check_channel(made(kind, settings))


@pytest.mark.parametrize(("kind", "settings"), found("simulate.servers", "apply"))
def test_servers(kind: Any, settings: dict[str, Any]) -> None:
    testing.check_server(made(kind, settings))


def test_the_reference_engine() -> None:
    testing.check_engine(ENGINE)


class Halfway:
    """A user's strategy in fifteen lines: no dataclass, a dictionary as its state."""

    def init(self, n: int, d: int) -> dict[int, Array]:
        return {}

    def aggregate(self, last: dict[int, Array], r: Round) -> tuple[Array, dict[int, Array]]:
        for i, update in zip(r.clients.tolist(), r.received(), strict=True):
            last[i] = 0.5 * last.get(i, 0) + 0.5 * update
        step = np.zeros_like(r.params)
        for i, row in last.items():
            step += r.weights[i] * row
        return step, last


def test_a_users_plain_strategy_passes() -> None:
    testing.check_strategy(Halfway())


@pytest.mark.parametrize(("coding", "tolerance"), [(Float16(), 1e-5), (Int8(), 0.1)])
def test_strategies_with_a_coarse_memory_pass(coding: Coding, tolerance: float) -> None:
    """Int8 rounds at random, by coordinate, to 1/127 of the largest number."""
    for rule in (FedStale(0.5, memory=coding), MIFA(memory=coding), FedVARP(memory=coding)):
        testing.check_strategy(rule, tolerance=tolerance)


def caught(check: Callable[..., None], broken: Any, promise: str, **settings: Any) -> None:
    with pytest.raises(AssertionError, match=promise) as error:
        check(broken, **settings)
    assert str(error.value).startswith(f"{type(broken).__name__}: ")


class Strategy:
    """FedStale, to be broken; the state is its own."""

    def init(self, n: int, d: int) -> Any:
        return FedStale().init(n, d)

    def aggregate(self, state: Any, r: Round) -> tuple[Array, Any]:
        return FedStale().aggregate(state, r)


def aggregating(rule: Callable[[Array, Any, Round], Any]) -> Any:
    """A strategy whose step is `rule` of FedStale's step, the state and the round."""

    class Broken(Strategy):
        def aggregate(self, state: Any, r: Round) -> tuple[Array, Any]:
            step, state = super().aggregate(state, r)
            return rule(step, state, r), state

    return Broken()


def spoils(step: Array, state: Any, r: Round) -> Array:
    r.updates[...] = 0
    return step


def weighs(step: Array, state: Any, r: Round) -> Array:
    r.weights[...] *= 2
    return step


COUNTER: list[int] = []


def counts(step: Array, state: Any, r: Round) -> Array:
    COUNTER.append(1)
    return step + np.float32(len(COUNTER))


@pytest.mark.parametrize(
    ("rule", "promise"),
    [
        (lambda step, state, r: step.astype(np.float16), "step .* must be float32 or float64 of .*got float16"),
        (lambda step, state, r: step[:-1], r"step .* must be float32 or float64 of shape \(6,\)"),
        (lambda step, state, r: step.tolist(), r"step .* must be float32 or float64 of shape \(6,\)"),
        (lambda step, state, r: step / np.float32(len(r.clients) > 0 or np.nan), "step of a round of 0 clients"),
        (
            lambda step, state, r: step + r.updates[0],
            "aggregate in a round of 0 clients must work, but raised IndexError",
        ),
        (lambda step, state, r: step + np.nan_to_num(r.updates).sum(axis=0), "did not arrive must not be read"),
        (lambda step, state, r: step + r.updates.sum(axis=0), "must be float32 or float64 .* finite"),
        (spoils, "aggregate must not change the round"),
        (weighs, "aggregate must not change the round"),
        (counts, "the same inputs must give the same results, whatever ran before"),
        (lambda step, state, r: step * np.arange(6, dtype=np.float32), "order of the coordinates must not matter"),
        (lambda step, state, r: np.cumsum(step, dtype=np.float32), "order of the coordinates must not matter"),
        (lambda step, state, r: np.full_like(step, id(state) % 1009), "must give the same results|same bits"),
    ],
)
def test_broken_strategies_are_caught(rule: Callable[..., Any], promise: str) -> None:
    caught(testing.check_strategy, aggregating(rule), promise)


def test_parts_may_compute_in_float64() -> None:
    testing.check_strategy(aggregating(lambda step, state, r: step.astype(np.float64)))
    testing.check_participation(Doubles())


class Shared(Strategy):
    """Hands the same state to all of its runs, reset by init."""

    def __init__(self) -> None:
        self.memory: Any = None

    def init(self, n: int, d: int) -> Any:
        self.memory = super().init(n, d)
        return self.memory

    def aggregate(self, state: Any, r: Round) -> tuple[Array, Any]:
        return super().aggregate(self.memory, r)


class Uncopied:
    """A number that copies lose."""

    def __init__(self) -> None:
        self.rounds = 0

    def __getstate__(self) -> dict[str, int]:
        return {"rounds": 0}


class Forgets(Strategy):
    def init(self, n: int, d: int) -> Uncopied:
        return Uncopied()

    def aggregate(self, state: Uncopied, r: Round) -> tuple[Array, Uncopied]:
        state.rounds += 1
        return np.full_like(r.params, state.rounds), state


class Unpickled(Strategy):
    def init(self, n: int, d: int) -> Any:
        return lambda: None

    def aggregate(self, state: Any, r: Round) -> tuple[Array, Any]:
        return np.zeros_like(r.params), state


class Selects(Strategy):
    def select(self, state: Any, a: Availability) -> tuple[Ids, Any]:
        return a.clients[:1], state


class Invents(Selects):
    def select(self, state: Any, a: Availability) -> tuple[Ids, Any]:
        return np.arange(len(a.weights)), state


class Unsorted(Selects):
    def select(self, state: Any, a: Availability) -> tuple[Ids, Any]:
        return a.clients[::-1], state


class Drifts(Strategy):
    def drift(self, state: Any, clients: Ids) -> Array:
        return np.zeros((len(clients), 6), np.float32)


class DriftsAside(Drifts):
    def drift(self, state: Any, clients: Ids) -> Array:
        return np.zeros(6, np.float32)


@dataclass
class Unequal(Strategy):
    secret: object = field(default_factory=object)


@dataclass
class Unprintable(Strategy):
    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Shared(), "another run must not change this one"),
        (Forgets(), "a state that went through copy.deepcopy must go on with the same bits"),
        (Unpickled(), "must work, but raised"),
        (Invents(), "select must give an ascending subset of the available"),
        (Unsorted(), "select must give an ascending subset of the available"),
        (DriftsAside(), "the drift must be float32"),
        (Unequal(), "a part must equal its pickled copy"),
        (Unprintable(), "must work, but raised ValueError: no words"),
    ],
)
def test_broken_states_and_members_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_strategy, broken, promise)


@pytest.mark.parametrize("sound", [Selects(), Drifts()])
def test_optional_members_pass(sound: Any) -> None:
    testing.check_strategy(sound)


@part
class Chance:
    """Coins of 0.3, to be broken."""

    def probs(self, n: int) -> Array:
        return np.full(n, 0.3, np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return Bernoulli(0.3).rows(n, rng)


class Rarer(Chance):
    def probs(self, n: int) -> Array:
        return np.full(n, 0.4, np.float32)


class Certain(Chance):
    def probs(self, n: int) -> Array:
        return np.full(n, 1.1, np.float32)


class Doubles(Chance):
    def probs(self, n: int) -> Any:
        return np.full(n, 0.3)


class Halves(Chance):
    def probs(self, n: int) -> Any:
        return np.full(n, 0.3, np.float16)


class Ends(Chance):
    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return islice(super().rows(n, rng), 100)


class Numbers(Chance):
    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Any]:
        return (row.astype(int) for row in super().rows(n, rng))


class Unseeded(Chance):
    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return super().rows(n, np.random.default_rng())


SHARED = stream(0, "shared")


class OneStream(Chance):
    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return super().rows(n, SHARED)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Rarer(), "probs must say how often it happens; got 0.4 for client"),
        (Certain(), r"probs must be float32 or float64 of shape \(6,\), in its range"),
        (Halves(), r"probs must be float32 or float64 of shape \(6,\)"),
        (Ends(), "rows must never end; got they did after 100"),
        (Numbers(), r"a row must be bool.* of shape \(6,\)"),
        (Unseeded(), "the same generator must give the same rows"),
        (OneStream(), "the same generator must give the same rows"),
        (object(), "must work, but raised AttributeError"),
    ],
)
def test_broken_participations_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_participation, broken, promise)


class Estimator:
    """Intervals, to be broken."""

    def init(self, n: int) -> Any:
        return Intervals().init(n)

    def probs(self, belief: Any) -> Array:
        return Intervals().probs(belief)

    def observe(self, belief: Any, heard: Mask) -> Any:
        return Intervals().observe(belief, heard)


class Overrates(Estimator):
    def probs(self, belief: Any) -> Array:
        return super().probs(belief) * np.float32(1.5)


class AllForOne(Estimator):
    def probs(self, belief: Any) -> Any:
        return np.float32(0.5)


class Erases(Estimator):
    def observe(self, belief: Any, heard: Mask) -> Any:
        belief = super().observe(belief, heard)
        heard[:] = False
        return belief


class Guesses(Estimator):
    def observe(self, belief: Any, heard: Mask) -> Any:
        return super().observe(belief, np.random.default_rng().random(len(heard)) < 0.5)


class Wears(Estimator):
    def probs(self, belief: Any) -> Array:
        belief.last[:] += 1
        return super().probs(belief)


class Remembers(Estimator):
    def __init__(self) -> None:
        self.asked = 0

    def init(self, n: int) -> Any:
        self.asked += 1
        return super().init(n)._replace(last=np.full(n, self.asked, np.int32))


class BeliefLost(Estimator):
    def init(self, n: int) -> Uncopied:
        return Uncopied()

    def probs(self, belief: Uncopied) -> Array:
        return np.full(4, 1 / (1 + belief.rounds), np.float32)

    def observe(self, belief: Uncopied, heard: Mask) -> Uncopied:
        belief.rounds += 1
        return belief


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Overrates(), "probs must be float32 or float64 .* in its range"),
        (AllForOne(), "probs must be float32"),
        (Erases(), "observe must not change what it is given"),
        (Guesses(), "the same inputs must give the same results"),
        (Wears(), "to ask for probs must not change them"),
        (Remembers(), "the same inputs must give the same results"),
        (BeliefLost(), "went through copy.deepcopy"),
    ],
)
def test_broken_estimators_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_estimator, broken, promise)


class Channel:
    """A third of the updates are lost, to be broken."""

    def probs(self, n: int, d: int) -> Array:
        return np.full(n, 2 / 3, np.float32)

    def share(self, n: int, d: int) -> Array:
        return np.ones(n, np.float32)

    def init(self, n: int, streams: Any) -> Any:
        return n

    def downlink(self, state: Any, clients: Ids, streams: Any) -> tuple[Mask, Any]:
        return Lossless().downlink(None, clients, streams)[0], state

    def uplink(self, state: Any, clients: Ids, d: int, streams: Any) -> tuple[Mask, Any]:
        return (streams("up").random((state, 1)) < 2 / 3)[clients], state


class Optimistic(Channel):
    def probs(self, n: int, d: int) -> Array:
        return np.full(n, 0.8, np.float32)


class Sharing(Channel):
    def share(self, n: int, d: int) -> Array:
        return np.full(n, 0.5, np.float32)


class Selective(Channel):
    def uplink(self, state: Any, clients: Ids, d: int, streams: Any) -> tuple[Mask, Any]:
        return streams("up").random((len(clients), 1)) < 2 / 3, state


class Flat(Channel):
    def uplink(self, state: Any, clients: Ids, d: int, streams: Any) -> tuple[Mask, Any]:
        arrived, state = super().uplink(state, clients, d, streams)
        return arrived[:, 0], state


class Everywhere(Channel):
    def downlink(self, state: Any, clients: Ids, streams: Any) -> tuple[Mask, Any]:
        return np.ones(state, bool), state


class Unlucky(Channel):
    def uplink(self, state: Any, clients: Ids, d: int, streams: Any) -> tuple[Mask, Any]:
        return (np.random.default_rng().random((state, 1)) < 2 / 3)[clients], state


class Lonely(Channel):
    def uplink(self, state: Any, clients: Ids, d: int, streams: Any) -> tuple[Mask, Any]:
        clients[0]
        return super().uplink(state, clients, d, streams)


def test_sound_parts_pass_whatever_the_sizes() -> None:
    testing.check_channel(Channel())
    testing.check_channel(Channel(), n=1, d=1, rounds=3)
    testing.check_participation(Chance(), n=1, rounds=3)
    testing.check_estimator(Estimator(), n=1, rounds=1)
    testing.check_server(Server(), d=1, rounds=2)
    testing.check_strategy(FedStale(), n=1, d=1, rounds=1)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Optimistic(), "probs must say how often it happens; got 0.8 for client 0"),
        (Sharing(), "probs × share must say how often it happens"),
        (Selective(), "who was chosen must not change who is lost"),
        (Flat(), r"uplink must be bool.* of shape \(6, 1\) or \(6, 40\)"),
        (Everywhere(), r"downlink must be bool.* of shape"),
        (Unlucky(), "the same inputs must give the same results"),
        (Lonely(), "must work, but raised IndexError"),
    ],
)
def test_broken_channels_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_channel, broken, promise)


class Server:
    """Momentum, to be broken."""

    def init(self, d: int) -> Any:
        return Momentum().init(d)

    def apply(self, state: Any, params: Array, step: Array) -> tuple[Array, Any]:
        return Momentum().apply(state, params, step)


class Wide(Server):
    def apply(self, state: Any, params: Array, step: Array) -> tuple[Any, Any]:
        change, state = super().apply(state, params, step)
        return change.astype(np.float16), state


class Divides(Server):
    def apply(self, state: Any, params: Array, step: Array) -> tuple[Array, Any]:
        with np.errstate(invalid="ignore"):
            return step / np.abs(step), state


class InPlace(Server):
    def apply(self, state: Any, params: Array, step: Array) -> tuple[Array, Any]:
        step *= 2
        return super().apply(state, params, step)


class MovesParams(Server):
    def apply(self, state: Any, params: Array, step: Array) -> tuple[Array, Any]:
        params += step
        return super().apply(state, params, step)


class KeepsItself(Server):
    def __init__(self) -> None:
        self.state = np.zeros(6, np.float32)

    def apply(self, state: Any, params: Array, step: Array) -> tuple[Array, Any]:
        change, self.state = super().apply(self.state, params, step)
        return change, state


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Wide(), "the change must be float32"),
        (Divides(), "the change must be float32 or float64 .* finite"),
        (InPlace(), "apply must not change what it is given"),
        (MovesParams(), "apply must not change what it is given"),
        (KeepsItself(), "the same inputs must give the same results"),
    ],
)
def test_broken_servers_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_server, broken, promise)


class Engine:
    """Serial, to be broken."""

    task, local = ENGINE.task, ENGINE.local

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return ENGINE.train(jobs)

    def losses(self, job: Job) -> Array:
        return ENGINE.losses(job)


class Sloppy(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return [r._replace(updates=r.updates * np.float32(1 + 1e-5)) for r in super().train(jobs)]


class Deaf(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return super().train([job._replace(drift=None) for job in jobs])


class OneSetting(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return super().train([job._replace(local=self.local) for job in jobs])


class FirstOnly(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return super().train(jobs[:1])


class Crowded(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return super().train(jobs if len(jobs) > 1 else [job._replace(seed=9) for job in jobs])


class Overwrites(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        replies = super().train(jobs)
        jobs[0].params[...] = 0
        return replies


class Recycles(Engine):
    def __init__(self) -> None:
        self.buffer = np.empty((5, 4), np.float32)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        replies = super().train(jobs)
        first = replies[0]
        m = len(first.updates)
        self.buffer[:m] = first.updates
        return [first._replace(updates=self.buffer[:m]), *replies[1:]]


class LaterLosses(Engine):
    def losses(self, job: Job) -> Array:
        return ENGINE.losses(job._replace(t=job.t + 1, params=job.params + 1))


class NeedsClients(Engine):
    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return [super(NeedsClients, self).train([job])[0] for job in jobs if job.clients.max() >= 0]


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Sloppy(), r"must train like Serial \(round 1, 5 clients\); got numbers"),
        (Deaf(), r"must train like Serial \(round 1, 3 clients\)"),
        (OneSetting(), r"must train like Serial \(round 1, 3 clients\)"),
        (FirstOnly(), "every job needs a reply; got 1 for 4 jobs"),
        (Crowded(), "must train like Serial also one job at a time"),
        (Overwrites(), "train must not change its jobs"),
        (Recycles(), "a reply must stay as it is when the engine goes on"),
        (LaterLosses(), r"losses\(\) must be those of training"),
        (NeedsClients(), "train and losses must work, but raised ValueError"),
    ],
)
def test_broken_engines_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_engine, broken, promise)


def test_a_tolerance_is_relative() -> None:
    testing.check_engine(Sloppy(), tolerance=1e-4)
    caught(testing.check_engine, Sloppy(), "must train like Serial", tolerance=1e-6)
    testing.check_engine(Sloppy(), reference=Sloppy())


class Plain(Quadratic):
    """Three clients, two parameters, no noise: sound; the broken ones below change one thing each."""

    def __init__(self) -> None:
        super().__init__(np.eye(3, 2), start=[1, 2])


class Lopsided(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.weights = np.ones(3, np.float32)


class Shares(Plain):
    start = np.ones(2, np.float32)

    def init(self, seed: int) -> Array:
        self.start += 1
        return self.start


class OneBatch(Plain):
    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return islice(super().batches(client, local, rng), 1)


class Steps(Plain):
    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        found = super().gradient(params, client, batch)
        params -= 1
        return found


class Double(Plain):
    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        loss, gradient = super().gradient(params, client, batch)
        return loss, gradient.astype(np.float64)


class Counts(Plain):
    calls = 0

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        self.calls += 1
        loss, gradient = super().gradient(params, client, batch)
        return loss + self.calls, gradient


class Wipes(Plain):
    def evaluate(self, params: Array) -> dict[str, float]:
        params[:] = 0
        return {}


class Words(Plain):
    def evaluate(self, params: Array) -> Any:
        return {"accuracy": "good"}


class Tires(Plain):
    left = 1.0

    def evaluate(self, params: Array) -> dict[str, float]:
        self.left /= 2
        return {"accuracy": self.left}


class Total(Plain):
    def per_client(self, params: Array) -> dict[str, Any]:
        return {"accuracy": np.ones(1)}


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Lopsided(), "weights must be float32 of shape"),
        (Shares(), "init must give the same for the same seed"),
        (OneBatch(), "batches must give 3 for as many steps; got 1"),
        (Steps(), "gradient must not change its parameters"),
        (Double(), "a gradient must be float32 of shape"),
        (Counts(), "the same batches must give the same gradients"),
        (Wipes(), "evaluate must not change its parameters"),
        (Words(), "evaluate must give a number for each name"),
        (Tires(), "evaluate must give the same again"),
        (Total(), r"per_client must give \(3,\) of accuracy; got \(1,\)"),
        (object(), "every method of its protocol must work"),
    ],
)
def test_broken_tasks_are_caught(broken: Any, promise: str) -> None:
    caught(testing.check_task, broken, promise)


def test_sound_tasks_pass() -> None:
    x, y = np.zeros((4, 2), np.float32), np.zeros(4, int)
    for task in (
        Plain(),
        Quadratic.random(2, 3, noise=0.1),
        Supervised(lambda: nn.Linear(2, 2), [(x, y)], [(x, y)]),
    ):
        testing.check_task(task)


def test_checks_leave_the_part_as_it_was() -> None:
    for rule in (FedAvg(), FedStale(0.3), Unbiased()):
        before = repr(rule)
        testing.check_strategy(rule)
        assert repr(rule) == before


@pytest.mark.parametrize(
    ("method", "wrong", "promise"),
    [
        ("message", lambda self, h, update, order: MIFA().message(h, 2 * update, order), "must be aggregate"),
        ("close", lambda self, state, total, r: (total.stale.astype(np.float32), None), "must be aggregate"),
        ("orders", lambda self, state, r: [], "Summed: aggregate in a round of 2 clients must work"),
    ],
)
def test_a_split_that_is_not_the_rule_is_caught(method: str, wrong: Any, promise: str) -> None:
    broken = part(type("Broken", (MIFA,), {method: wrong}))
    testing.check_strategy(MIFA())
    with pytest.raises(AssertionError, match=promise):
        testing._check_split(broken(), 5, 6, 8)

"""Rules compose: a wrapper has every hook of the strategy inside it, or is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import strategies
from fedstale.core import BadInput, Checkpoint, forgotten, hooks, layers
from fedstale.lab.probes import Tracer
from fedstale.lab.spec import algorithm

ENGINE = fs.Serial(fs.Quadratic.random(n=6, d=4, noise=0.1), fs.Local(lr=0.02, steps=3))
SETTINGS: dict[str, dict[str, Any]] = {
    "Amplified": {"period": 3, "factor": 2.0}, "AmplifiedScaffold": {"period": 3, "factor": 1.5},
    "F3AST": {"clients": 2}, "FedLaAvg": {"clients": 2}, "PowerOfChoice": {"clients": 2, "candidates": 3},
    "Wait": {"period": 3}, "CAFed": {"kappa2": 0.05},
    "Clipped": {"strategy": fs.strategies.Scaffold(), "bound": 0.05},
    "Extrapolated": {"strategy": fs.strategies.FedPBC()}, "FedSteer": {"core": 2},
    "PrivateFedAvg": {"clip": 1.0}, "PrivateFedStale": {"clip": 1.0},
}  # fmt: skip
RULES = [getattr(strategies, name)(**SETTINGS.get(name, {})) for name in strategies.__all__]


@fs.part
class Same:
    """Any rule as it is, with a state of its own: how often it was asked."""

    strategy: fs.core.Strategy

    def hooks(self) -> fs.core.Hooks:
        return fs.core.hooks_of(self.strategy).lifted()

    def init(self, n: int, d: int) -> fs.core.Wrapped:
        return fs.core.Wrapped(self.strategy.init(n, d), 0)

    def aggregate(self, state: fs.core.Wrapped, r: fs.core.Round) -> tuple[fs.core.Array, fs.core.Wrapped]:
        step, inner = self.strategy.aggregate(state.inner, r)
        return step, fs.core.Wrapped(inner, state.own + 1)


@fs.part
class Forgetful:
    """Any rule, of which only `init` and `aggregate` are passed on."""

    strategy: fs.core.Strategy

    def init(self, n: int, d: int) -> Any:
        return self.strategy.init(n, d)

    def aggregate(self, state: Any, r: fs.core.Round) -> tuple[fs.core.Array, Any]:
        return self.strategy.aggregate(state, r)


def played(strategy: fs.core.Strategy, defended: bool) -> list[fs.core.Snapshot]:
    against = {"defence": fs.defence.Defence(), "liars": fs.defence.Liars((1,), 50.0, 4)} if defended else {}
    found = fs.simulate(
        ENGINE, strategy, fs.TwoGroups(0.5), rounds=12, seed=3, channel=fs.channels.Loss(up=0.2), **against
    )
    return list(found)


@pytest.mark.parametrize("strategy", RULES, ids=lambda rule: type(rule).__name__)
def test_a_wrapper_that_passes_everything_on_changes_no_bit(strategy: fs.core.Strategy) -> None:
    """Of no rule: also where it selects, drifts, starts elsewhere, trains unheard, forgets or binds a task."""
    hooks_inside = fs.core.hooks_of(strategy)
    defended = not (hooks_inside.starts or hooks_inside.needs_last_gradient)
    plain, wrapped = played(strategy, defended), played(Same(Same(strategy)), defended)
    for x, y in zip(plain, wrapped, strict=True):
        assert x.params.tobytes() == y.params.tobytes()
        assert (x.chosen.tolist(), x.refused.tolist()) == (y.chosen.tolist(), y.refused.tolist())
        if point := hooks_inside.point:
            lifted = fs.core.hooks_of(Same(Same(strategy))).point
            assert lifted is not None
            given = lifted(y.checkpoint.state, y.params)
            assert point(x.checkpoint.state, x.params).tobytes() == given.tobytes()
    assert wrapped[-1].checkpoint.state.own == 12
    fs.testing.check_strategy(Same(strategy))


HOOKED = [rule for rule in RULES if fs.core.hooks_of(rule).used() - {"sensitivity"}]


@pytest.mark.parametrize("strategy", HOOKED, ids=lambda rule: type(rule).__name__)
def test_a_wrapper_that_forgets_a_hook_is_refused_by_name(strategy: fs.core.Strategy) -> None:
    lost = ", ".join(sorted(fs.core.hooks_of(strategy).used() - {"sensitivity"}))
    said = f"^Forgetful must pass on every hook of {type(strategy).__name__} inside it, .*, got none for {lost}$"
    with pytest.raises(BadInput, match=said):
        fs.simulate(ENGINE, Forgetful(strategy), fs.TwoGroups(0.5), rounds=3)
    with pytest.raises(BadInput, match=said):
        fs.play(fs.Run(ENGINE, Same(Forgetful(strategy)), fs.TwoGroups(0.5), 3))
    with pytest.raises(AssertionError, match=said):
        fs.testing.check_strategy(Forgetful(strategy))


def test_a_wrapper_in_a_file_that_forgets_a_hook_is_refused_with_the_file() -> None:
    entry = {"kind": f"{__name__}:Forgetful", "strategy": "scaffold"}
    with pytest.raises(BadInput, match=r"^Forgetful must pass on every hook of Scaffold inside it"):
        algorithm(entry, "algorithms.0", local={"lr": 0.1}, estimator="known")
    made = algorithm({**entry, "kind": f"{__name__}:Same"}, "algorithms.0", local={"lr": 0.1}, estimator="known")
    assert made.strategy == Same(fs.strategies.Scaffold())


def test_a_plain_class_that_forgets_is_refused_and_one_around_a_plain_rule_is_not() -> None:
    class Plain:
        def __init__(self, rule: fs.core.Strategy) -> None:
            self.rule = rule

        def init(self, n: int, d: int) -> Any:
            return self.rule.init(n, d)

        def aggregate(self, state: Any, r: fs.core.Round) -> tuple[fs.core.Array, Any]:
            return self.rule.aggregate(state, r)

    assert forgotten(Plain(fs.strategies.Scaffold())).startswith("Plain must pass on every hook of Scaffold")
    assert forgotten(Plain(fs.FedAvg())) == forgotten(Forgetful(fs.FedAvg())) == ""


def test_every_hook_is_read_lifted_and_documented() -> None:
    """A hook that is added to the record needs a way through a wrapper's state, and a row in the guide."""
    assert [*hooks.LIFTS] == [*fs.core.Hooks._fields]
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "own_parts.md").read_text(encoding="utf-8")
    assert not [name for name in (*fs.core.Hooks._fields, "bind") if f"| `{name}" not in guide]


def test_a_method_of_a_wrapper_overrides_what_it_passes_on() -> None:
    inner = fs.core.hooks_of(fs.strategies.Extrapolated(fs.strategies.FedExP()))
    assert inner.point is not None
    state = fs.core.Wrapped(np.full(2, 8, np.float32), np.full(2, 2, np.float32))
    assert inner.point(state, np.ones(2, np.float32)).tolist() == [0, 0]  # by the wrapper's own last step


def test_a_strategy_inside_takes_its_settings_from_the_task() -> None:
    @fs.part
    class Binding(fs.FedAvg):
        size: int = 0

        def bind(self, task: fs.core.Task) -> fs.core.Strategy:
            return Binding(task.n)

        def init(self, n: int, d: int) -> None:
            assert self.size == n == 6

    unbound = Same(fs.strategies.Clipped(Binding(), 1.0))
    assert len(played(unbound, False)) == 12
    assert unbound == Same(fs.strategies.Clipped(Binding(), 1.0))  # it is as it was


def test_a_wrapper_does_not_hide_where_rows_live() -> None:
    assert fs.core.hooks_of(Same(fs.strategies.Scaffold())).at_clients == ("inner.rows",)
    assert [type(rule).__name__ for rule in layers(Tracer(Same(fs.strategies.MIFA())))] == [
        "Tracer",
        "Same",
        "MIFA",
    ]


def test_old_names_of_abilities_warn_for_a_release() -> None:
    with pytest.warns(FutureWarning, match=r"fs\.Drifts goes with the next release"):
        assert isinstance(fs.strategies.Scaffold(), fs.Drifts)  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning):
        assert not isinstance(fs.FedAvg(), fs.Selects)  # type: ignore[attr-defined]


def test_clipped_updates_are_as_long_as_the_bound() -> None:
    updates = np.array([[3, 4], [0.3, 0.4], [0, 0]], np.float32)
    ones = np.ones(3, np.float32)
    r = fs.core.Round(
        1, np.zeros(2, np.float32), np.arange(3), updates, np.ones((3, 1), bool), ones, ones / 3, ones
    )
    step, _ = fs.strategies.Clipped(fs.FedAvg(), 1.0).aggregate(None, r)
    assert step == pytest.approx([(0.6 + 0.3) / 3, (0.8 + 0.4) / 3])
    assert r.updates[0].tolist() == [3, 4]
    with pytest.raises(BadInput, match="bound must be above 0, got 0"):
        fs.strategies.Clipped(fs.FedAvg(), 0.0)


def test_a_bound_that_no_update_reaches_changes_no_bit() -> None:
    for rule in (fs.strategies.Scaffold(), fs.recipe("auto").strategy):
        pairs = zip(played(rule, False), played(fs.strategies.Clipped(rule, 1e6), False), strict=True)
        assert all(x.params.tobytes() == y.params.tobytes() for x, y in pairs)


def test_fedavg_extrapolated_is_fedexp() -> None:
    pairs = zip(
        played(fs.strategies.FedExP(), False), played(fs.strategies.Extrapolated(fs.FedAvg()), False), strict=True
    )
    for x, y in pairs:
        np.testing.assert_allclose(x.params, y.params, rtol=1e-4, atol=1e-6)


def test_an_extrapolated_run_goes_on_from_a_checkpoint_with_the_same_bits() -> None:
    rule = fs.strategies.Extrapolated(fs.strategies.Scaffold())
    whole = played(rule, False)
    start: Checkpoint = played(rule, False)[5].checkpoint
    settings: dict[str, Any] = {"seed": 3, "channel": fs.channels.Loss(up=0.2)}
    half = list(fs.simulate(ENGINE, rule, fs.TwoGroups(0.5), rounds=6, **settings))[-1].checkpoint
    rest = list(fs.simulate(ENGINE, rule, fs.TwoGroups(0.5), rounds=12, start=half, **settings))
    assert rest[-1].params.tobytes() == whole[-1].params.tobytes()
    assert start.t == half.t

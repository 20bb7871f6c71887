"""A clock in a simulation: where clients start, what is kept, counted, stored and refused."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import query
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.schema import check
from fedstale.participation.clock import Buffer, Clock, Constant, Devices, Load, Lognormal, Rounds, Ticks
from fedstale.view.live import axes
from fedstale.view.page import markup, series, tables
from fedstale.view.page.plots import curves
from fedstale.view.plots.palette import looks
from fedstale.view.terminal.runs import _Status

N, D = 12, 4
TASK = fs.Quadratic.random(n=N, d=D, noise=0.1)
ENGINE = fs.Serial(TASK, fs.Local(lr=0.05))
ASYNC = Clock(Buffer(3, 6), Lognormal(), round_seconds=100.0)
RULES = [
    "fedavg",
    "unbiased",
    "fedstale",
    "fedvarp",
    "mifa",
    "auto",
    "fedbuff",
    "fedasync",
    "ca2fl",
    "ace",
    "fadas",
]


def play(strategy: Any, clock: Clock | None, rounds: int = 30, **more: Any) -> list[Any]:
    who = fs.TwoGroups(p_min=0.3)
    found = []
    for s in fs.simulate(ENGINE, strategy, who, rounds=rounds, seed=2, clock=clock, **more):
        found.append(s._replace(checkpoint=s.checkpoint._replace(state=None)) if rounds > 30 else s)
    return found


@pytest.mark.parametrize("name", RULES)
def test_ages_of_0_have_the_bits_of_a_run_without_a_clock(name: str) -> None:
    rule, p = fs.recipe(name).strategy, fs.TwoGroups(p_min=0.3).probs(N)
    clock = Clock(Rounds(), Constant(5.0), round_seconds=5.0)
    plain = play(rule, None, estimator=fs.estimators.Known(p))
    timed = play(rule, clock, estimator=fs.estimators.Known(p))
    assert [s.params.tobytes() for s in timed] == [s.params.tobytes() for s in plain]
    assert [s.seconds for s in timed][-1] >= 150.0
    assert plain[0].seconds is None
    assert [(s.bytes_up, s.bytes_down) for s in timed] == [(s.bytes_up, s.bytes_down) for s in plain]
    assert plain[0].bytes_down == 4 * D * len(plain[0].clients)


def test_clients_start_from_what_they_were_sent() -> None:
    """FedBuff over a timeline, written out: every version is kept, and each client is trained on its own."""
    got = play(fs.strategies.FedBuff(), ASYNC, rounds=40)
    rows = ASYNC.rows(fs.TwoGroups(p_min=0.3), N, Load(np.full(N, 5), 4 * D, 4 * D), 2)
    versions = [TASK.init(2)]
    for t, (s, row) in enumerate(zip(got, islice(rows, 40), strict=True), 1):
        assert s.clients.tolist() == row.clients.tolist()
        step = np.zeros(D)
        for i, age in zip(row.clients.tolist(), row.ages.tolist(), strict=True):
            job = fs.core.Job(versions[t - 1 - age], np.array([i]), 2, t, ENGINE.local)
            step += ENGINE.train([job])[0].updates[0] / (1 + age) ** 0.5 / len(row.clients)
        versions.append((versions[-1] + step.astype(np.float32)).astype(np.float32))
        np.testing.assert_allclose(s.params, versions[-1], rtol=1e-5, atol=1e-6)
    assert max(int(s.ages.max()) for s in got) > 1


@pytest.mark.parametrize("name", ["auto", "fedasync", "fadas"])
def test_a_run_goes_on_from_a_checkpoint_in_a_file(name: str, tmp_path: Path) -> None:
    rule = fs.recipe(name).strategy
    run = fs.Run(ENGINE, rule, fs.TwoGroups(p_min=0.3), 30, seed=2, clock=ASYNC)
    whole = [s.params.tobytes() for s in fs.simulate(*run[:3], rounds=30, seed=2, clock=ASYNC)]
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    for s in fs.simulate(*run[:3], rounds=30, seed=2, clock=ASYNC):
        if s.t == 13:
            assert s.checkpoint.sent
            folder.save_checkpoint(s.checkpoint)
            break
    from fedstale.simulate import checked, first

    back = folder.load_checkpoint(first(checked(run)))
    again = [s.params.tobytes() for s in fs.simulate(*run[:3], rounds=30, seed=2, clock=ASYNC, start=back)]
    assert again == whole[13:]


def test_the_same_timeline_for_all_algorithms_whatever_the_engine() -> None:
    told = [[(s.clients.tolist(), s.ages.tolist(), s.seconds) for s in play(fs.recipe(name).strategy, ASYNC)]
            for name in RULES]  # fmt: skip
    assert all(of == told[0] for of in told)


def test_the_step_is_unbiased_over_drawn_timelines() -> None:
    """Independent arrivals that are one step old: the mean of FedStale's second step is Σ a_i Δ_i, |z| < 4."""
    p = np.linspace(0.2, 0.9, N).astype(np.float32)
    clock = Clock(Ticks(1.0, N), Constant(1.0), round_seconds=1.0)
    quiet = fs.Quadratic.random(n=N, d=D)
    engine = fs.Serial(quiet, fs.Local(lr=0.05))
    due = quiet.weights @ engine.train([fs.core.Job(quiet.init(0), np.arange(N), 0, 1, engine.local)])[0].updates
    steps = []
    for seed in range(800):
        rule = fs.simulate(engine, fs.FedStale(0.7), fs.Bernoulli(p), rounds=1, seed=seed, clock=clock,
                           estimator=fs.estimators.Known(p))  # fmt: skip
        steps.append(next(rule).step)
    z = (np.mean(steps, axis=0) - due) / (np.std(steps, axis=0) / np.sqrt(len(steps)))
    assert (np.abs(z) < 4).all()


def test_known_probabilities_are_the_shares_of_the_timeline() -> None:
    slow = Clock(Rounds(ask=N, need=6), Devices(np.linspace(1, 9, N), 1.0, 0.0, in_order=True), round_seconds=1e6)
    snapshots = list(fs.simulate(ENGINE, fs.Unbiased(), fs.Bernoulli(1.0), rounds=10, seed=2, clock=slow))
    assert snapshots[0].clients.tolist() == [6, 7, 8, 9, 10, 11]  # the fastest, in every round
    np.testing.assert_allclose(snapshots[-1].probs, [1 / 11] * 6 + [1.0] * 6, rtol=1e-6)
    assert snapshots[-1].lost == 6


def test_what_cannot_work_is_refused() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (fs.strategies.PowerOfChoice(2, 4), {}, "PowerOfChoice selects clients by their losses"),
        (fs.strategies.Scaffold(), {}, "Scaffold changes local gradients"),
        (fs.strategies.FedPBC(), {}, "clients of FedPBC train unheard"),
        (fs.strategies.FedAWE(), {}, "clients of FedAWE begin at points of their own"),
        (fs.FedAvg(), {"defence": fs.defence.Defence()}, "a defence compares updates from the same parameters"),
        (fs.FedAvg(), {"estimator": fs.estimators.Transitions(warmup_rounds=5)}, "warmup_rounds must be 0"),
    ]
    for rule, more, sentence in cases:
        with pytest.raises(fs.BadInput, match=sentence):
            play(rule, ASYNC, **more)
    waits = Clock(Rounds(), Lognormal(), round_seconds=100.0)
    assert play(fs.strategies.Scaffold(), waits)[-1].bytes_down % (8 * D) == 0  # the parameters and c
    with pytest.raises(fs.BadInput, match="clock must be an object such as Clock"):
        play(fs.FedAvg(), Buffer())  # type: ignore[arg-type]


TOML: dict[str, Any] = {
    "name": "hours", "rounds": 20, "data": {"dataset": "quadratic", "clients": 12}, "local": {"lr": 0.05},
    "participation": {"kind": "bernoulli", "p": 0.8}, "algorithms": ["fedavg", "mifa", "fedbuff"],
    "clock": {"pace": {"kind": "buffer", "size": 3, "concurrency": 6}, "latency": "lognormal",
              "round_seconds": 60.0},
}  # fmt: skip


def test_a_file_with_a_clock(tmp_path: Path) -> None:
    planned = plan(check(TOML), tmp_path)
    without = plan(check({key: value for key, value in TOML.items() if key != "clock"}), tmp_path)
    assert "clock" not in without[0].config
    assert planned[0].config["clock"]["pace"] == {"kind": "buffer", "size": 3, "concurrency": 6}
    assert planned[0].clock == Clock(Buffer(3, 6), Lognormal(), 60.0)
    with pytest.raises(fs.BadInput, match=r"clock.pace.kind 'bufer' is unknown; did you mean 'buffer'"):
        check(TOML | {"clock": {"pace": "bufer"}})


def test_a_comparison_knows_hours_bytes_and_who_is_never_heard(tmp_path: Path) -> None:
    slow = Clock(Rounds(ask=N, need=6), Devices(np.linspace(1, 9, N), 1.0, 0.0, in_order=True), round_seconds=1e6)
    done = fs.compare(TASK, ["fedavg", "mifa"], fs.Bernoulli(1.0), rounds=5, local=ENGINE.local, out=tmp_path,
                      clock=slow)  # fmt: skip
    result = done.runs[0].result()
    assert result["clock"]["never_heard"] == 6
    assert result["bytes_up"] == 5 * 6 * 4 * D
    assert done.rows[0]["hours"] == pytest.approx(result["clock"]["seconds"] / 3600)
    line = done.runs[0].metrics()[0]
    assert (line["ages"], line["lost_work"]) == ([0] * 6, 6)
    assert json.dumps(line["seconds"]) == str(round(line["seconds"], 3))


def test_a_timeline_is_inspected_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedstale.cli.inspect import inspect

    file = tmp_path / "hours.toml"
    file.write_text("""
        rounds = 20
        algorithms = ["fedavg"]
        data = { dataset = "quadratic", clients = 12 }
        local = { lr = 0.05 }
        participation = { kind = "bernoulli", p = 1.0 }
        [clock]
        round_seconds = 1e6
        pace = { kind = "rounds", ask = 12, need = 9 }
        [clock.latency]
        kind = "devices"
        table = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        in_order = true
        jitter = 0.0
    """)
    inspect(file)
    assert "3 clients are not heard in these steps: p_i is 0" in capsys.readouterr().out


def test_realised_weights_are_recorded_also_of_rules_that_read_the_starts(tmp_path: Path) -> None:
    done = fs.compare(
        TASK, ["fedasync"], fs.Bernoulli(1.0), rounds=8, local=ENGINE.local, out=tmp_path, clock=ASYNC
    )
    assert len(done.runs[0].metrics()[-1]["weights"]) == N


def test_an_algorithm_may_have_its_own_pace_and_all_have_the_same_hours(tmp_path: Path) -> None:
    clock = {"hours": 0.01, "pace": {"kind": "buffer", "size": 2, "concurrency": 3}}
    algorithms = ["ace", {"kind": "mifa", "pace": {"kind": "rounds", "ask": 3}}]
    raw = {
        "name": "paces", "rounds": 500, "participation": {"kind": "bernoulli", "p": 1.0}, "clock": clock,
        "data": {"dataset": "quadratic", "clients": 6}, "local": {"lr": 0.05}, "algorithms": algorithms,
    }  # fmt: skip
    first, second = plan(check(raw), tmp_path)
    assert isinstance(first.clock, Clock)
    assert isinstance(second.clock, Clock)
    assert (first.clock.pace, second.clock.pace) == (Buffer(2, 3), Rounds(ask=3))
    found = list(execute(check(raw), [first, second]))
    done = sorted((p for p in found if p.result), key=lambda p: p.planned.algorithm.label)
    ends = [p.metrics["seconds"] for p in done]
    assert all(10 < end <= 36 for end in ends)
    assert "h of the clock" in _Status(1000, lambda: 0.0).line(found[0])
    [setting] = query.settings([first.folder, second.folder])
    assert [g.label for g in setting.groups] == ["ace", "mifa"], "one table for both paces"
    assert {"hours", "megabytes", "places idle", "trainings lost"} < {*tables.final(setting.groups)[0].head}
    lines = series.read(setting.groups)
    plot = curves(lines, metric("distance"), looks(["ace", "mifa"]))
    assert plot is not None
    assert {x: [xs[-1] for xs in plot.over[x]] for x in plot.over} == {
        "hours": pytest.approx([end / 3600 for end in ends]),
        "bytes": pytest.approx([p.result["bytes_up"] + p.result["bytes_down"] for p in done if p.result]),
    }
    assert 'data-x="hours"' in markup.figure(plot, "p1")
    live = axes.over(plot, lines, axes.view("hours", "0"))
    assert live.layout["xaxis"]["title"]["text"] == "hours of the clock"
    assert [trace["x"][-1] for trace in live.data] == pytest.approx([end / 3600 for end in ends])
    with pytest.raises(fs.BadInput, match="mifa: a pace of its own needs a \\[clock\\]"):
        plan(check({key: value for key, value in raw.items() if key != "clock"}), tmp_path)
    with pytest.raises(fs.BadInput, match="no step is made within 0"):
        play(fs.strategies.MIFA(), Clock(Buffer(3, 6), Constant(5.0), round_seconds=100.0, hours=0.0001))


@pytest.mark.parametrize("latency", [Lognormal(fastest_first=True), Devices([1.0, 3.0, 2.0], fastest_first=True)])
def test_the_first_client_is_the_fastest_where_data_follow_speed(latency: Any) -> None:
    speeds = latency.fleet(N, fs.stream(1, "fleet")).speed
    assert (np.diff(speeds) <= 0).all()
    assert speeds[0] > speeds[-1]


@pytest.mark.parametrize(("rule", "up", "down"), [("fedavg", 1, 1), ("scaffold", 1, 2), ("focus", 2, 2)])
def test_a_second_vector_is_counted_also_without_a_clock(rule: str, up: int, down: int) -> None:
    first = play(fs.recipe(rule).strategy, None, rounds=1)[0]
    m = len(first.clients)
    assert (first.bytes_up, first.bytes_down) == (4 * D * m * up, 4 * D * m * down)


@pytest.mark.parametrize("memory", [fs.memory.Float16(), fs.memory.Int8()])
def test_a_coding_of_the_memory_is_the_servers_and_updates_are_sent_as_they_are(memory: Any) -> None:
    first = play(fs.FedStale(0.5, memory=memory), None, rounds=1)[0]
    assert first.bytes_up == first.bytes_down == 4 * D * len(first.clients)


def test_a_rule_that_selects_sends_the_model_to_all_who_are_there() -> None:
    first = play(fs.recipe("ca-fed").strategy, None, rounds=1)[0]
    assert first.bytes_down == 4 * D * len(first.available)
    assert first.bytes_up == 4 * D * len(first.clients) + 4 * len(first.available), "and all send a loss"

"""What came of a training can be seen: in reports, in Flower's Result, in a trace that the commands read."""

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import fedstale as fs
from fedstale.cli.advise import advise
from fedstale.cli.inspect import inspect
from fedstale.engines import Serial
from fedstale.flower import FedStale
from tests.flower.direct import LOCAL, TASK, Direct, N, quadratic, reply, start, table

THERE = table(12)


def played(rule="auto", answer=None, rounds=12, **settings):
    strategy = FedStale(rule, fraction_evaluate=0.0, **settings)
    return strategy, strategy.start(Direct(N, answer or quadratic(THERE)), start(), num_rounds=rounds)


def test_a_report_tells_what_the_rule_knew():
    strategy, _ = played()
    *_, end = fs.simulate(Serial(TASK, LOCAL), fs.recipe("auto").strategy, fs.Trace(THERE), rounds=12,
                          estimator=fs.Intervals(), defence=strategy.rules.defence)  # fmt: skip
    assert [report.t for report in strategy.reports] == [*range(1, 13)]
    last = strategy.report
    assert len(last.clients) == N
    assert last.beta == end.checkpoint.state.beta
    assert np.array_equal(last.probs, strategy.rules.plain.probs(end.checkpoint.belief))
    np.testing.assert_allclose(last.weights, 1 / N, rtol=1e-6)
    order = [int(strategy._identities.names[1000 + k] == name) * k for name in last.clients for k in range(N)]
    places = np.array(order).reshape(N, N).sum(axis=1)  # of the clients in the simulation
    due = [12 - 1 - int(np.flatnonzero(THERE[:, k])[-1]) for k in places]
    assert last.staleness.tolist() == due
    assert {*last.heard} == {name for name, k in zip(last.clients, places, strict=True) if THERE[-1, k]}


def test_a_client_that_was_never_heard_has_no_staleness():
    silent = THERE.copy()
    silent[:, 1] = False
    strategy, _ = played(answer=quadratic(silent))
    staleness = dict(zip(strategy.report.clients, strategy.report.staleness.tolist(), strict=True))
    assert staleness[strategy._identities.names[1001]] == -1
    assert sum(value < 0 for value in staleness.values()) == 1
    seen = [value for value in staleness.values() if value >= 0]
    assert strategy.report.measures["fedstale-staleness"] == np.median(seen)


def test_the_result_of_flower_has_the_numbers_of_every_round():
    strategy, result = played()
    for report in strategy.reports:
        found = result.train_metrics_clientapp.get(report.t)
        assert (found is not None) == (len(report.heard) > 0)
        if found is not None:
            assert found["fedstale-heard"] == len(report.heard)
            assert found["fedstale-refused"] == N - len(report.heard)
            assert found["fedstale-heard-weight"] == pytest.approx(len(report.heard) / N)
            assert found["fedstale-beta"] == report.beta
            assert found["train_loss"] > 0
    assert "fedstale-beta" not in played("fedavg")[1].train_metrics_clientapp[1]


def test_the_trace_is_a_file_that_inspect_advise_and_simulations_read(tmp_path):
    strategy, _ = played()
    here = strategy.trace(tmp_path / "trace.csv")
    assert here.shape == (12, N)
    assert here.sum() == THERE.sum()
    assert (tmp_path / "trace.csv").read_text().splitlines()[0].split(",") == list(strategy.report.clients)
    for command, settings in ((inspect, ["--out", str(tmp_path)]), (advise, [])):
        app = typer.Typer()
        app.command()(command)
        done = CliRunner().invoke(app, [str(tmp_path / "trace.csv"), *settings])
        assert done.exit_code == 0, done.output
        assert "6 clients" in done.output
    assert np.array_equal(fs.Trace(np.asarray(here)).recording(N), here)


def test_a_client_whose_update_the_defence_refused_was_heard():
    def answer(message, context):
        sign = -1e6 if context.node_id == 1000 else 1
        w = message.content["arrays"]["w"].numpy() + np.float32(sign)
        return reply(message, {"w": w}, {"num-examples": 1})

    strategy, _ = played(answer=answer, rounds=3, defence=True)
    assert strategy.trace().all()
    (liar,) = strategy.report.doubted
    assert liar not in strategy.report.heard
    assert list(strategy.report.refused) == ["1000"]
    rows = {row["client"]: row for row in strategy.status()["clients"]}
    assert rows[liar]["rejected"] == 3
    assert rows[liar]["heard"] == 0


def test_the_status_counts_the_rounds_of_each_client_and_survives_a_restart():
    assert FedStale("auto").status() == {"round": 0, "clients": []}
    whole, _ = played()
    first, _ = played(rounds=5)
    again = FedStale("auto", fraction_evaluate=0.0)
    again.load_state_dict(first.state_dict())
    again.start(Direct(N, quadratic(THERE)), again.arrays, num_rounds=7)
    assert {row["client"]: row for row in again.status()["clients"]} == {
        row["client"]: row for row in whole.status()["clients"]
    }
    assert again.status()["round"] == 12
    assert sum(row["heard"] for row in again.status()["clients"]) == THERE.sum()
    assert all(row["asked"] == row["rounds"] == 12 and row["rejected"] == 0 for row in again.status()["clients"])
    assert len(again.reports) == 7  # of this object


def test_a_state_from_before_there_were_counts_is_read():
    strategy, _ = played(rounds=2)
    state = strategy.state_dict()
    about = str(state["about"]).replace('"counts"', '"other"')
    again = FedStale("auto")
    again.load_state_dict({**state, "about": np.array(about)})
    assert {row["rounds"] for row in again.status()["clients"]} == {0}

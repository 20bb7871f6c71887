import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from fedstale.cli import workloads as contenders
from fedstale.cli.bench import Format, bench
from fedstale.cli.workloads import WORKLOADS, Workload, flops, ours, plain, samples, update
from fedstale.core import BadInput
from fedstale.tasks.models import MLP, Linear, MnistCNN

TINY = Workload("tiny", Linear(), "batched", (4,), clients=3, batch=5, steps=2, samples=8, classes=2)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    several = TINY._replace(model=MLP((3,)), hidden=(3,), seeds=2, betas=2)
    monkeypatch.setattr("fedstale.cli.bench.SIDE", 64)
    monkeypatch.setattr(contenders, "WORKLOADS", {"tiny": TINY, "several": several})


def run(against: str = "naive", workloads: str = "", format: str = "json", peers: Path = Path()) -> None:
    bench(against, workloads, 2, peers, Format(format))


def test_every_contender_is_measured_and_compared_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    rows = {(row["workload"], row["contender"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [(w, c) for w in ("tiny", "several") for c in ("fedstale", "naive")]
    for (workload, _), row in rows.items():
        assert row["slower"] == pytest.approx(row["seconds"] / rows[workload, "fedstale"]["seconds"])
        assert 0 < row["seconds"] <= row["median"]
        assert 0 < row["peak"] < 1


def test_table_names_workload_and_contender(capsys: pytest.CaptureFixture[str]) -> None:
    run(workloads="tiny", format="text")
    text = capsys.readouterr().out
    assert "tiny" in text
    assert "naive" in text
    assert "several" not in text


def test_unknown_names_and_missing_peers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'naive'"):
        run(against="naiv")
    with pytest.raises(BadInput, match="did you mean 'tiny'"):
        run(workloads="tini")
    with pytest.raises(BadInput, match=r"benchmarks/peers\.sh flower"):
        run(against="flower", peers=tmp_path)


def test_command_has_its_options() -> None:
    app = typer.Typer()
    app.command()(bench)
    text = CliRunner().invoke(app, ["--help"], terminal_width=200).stdout
    assert all(option in text for option in ("--against", "--workloads", "--repeat", "--peers", "--format"))


def test_work_is_counted() -> None:
    # forward and backward by the weights: 2 · 2 · 4 · 2 per sample, the inputs have no gradient
    assert flops(TINY) == 32 * TINY.batch * TINY.steps * TINY.clients
    assert flops(TINY._replace(seeds=2, betas=3)) == 6 * flops(TINY)


@pytest.mark.parametrize("name", ["leaf", "linear", "mlp", "mnist-cnn"])
def test_contenders_train_the_same_model(name: str) -> None:
    w = WORKLOADS[name]
    theirs, mine = (sum(p.numel() for p in m.parameters()) for m in (plain(w), w.model.build(w.shape, w.classes)))
    assert theirs == mine
    assert isinstance(w.model, MnistCNN) == bool(w.channels)


def test_our_round_and_the_naive_one_take_the_same_steps() -> None:
    with ours(TINY) as play:
        (reply,) = play()  # type: ignore[misc, attr-defined]
    assert reply.updates.shape == (3, 10)
    change = update(plain(TINY), *samples(TINY)[0], TINY)
    assert change.shape == (10,)
    assert bool(torch.isfinite(change).all())
    assert bool((change != 0).any())

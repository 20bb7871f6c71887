import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import curves
import overhead
import pool
import pytest
import report
import torch
import typer
import versions
import workloads
from measure import PROC, processor_seconds
from models import mirrored
from torch.nn.utils import vector_to_parameters
from typer.testing import CliRunner
from workloads import WORKLOADS, Workload, flops, ours, plain, samples, update

from fedstale.cli.bench import Format, bench, measuring
from fedstale.core import BadInput
from fedstale.participation.estimators import Intervals
from fedstale.strategies.fedstale import FedStale
from fedstale.tasks import models
from fedstale.tasks.local import one_thread
from fedstale.tasks.models import MLP, Linear
from fedstale.tasks.supervised import Supervised

TINY = Workload("tiny", Linear(), "batched", (4,), clients=3, batch=5, steps=2, samples=8, classes=2)

CNN = WORKLOADS["mnist-cnn"]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    several = TINY._replace(model=MLP((3,)), hidden=(3,), seeds=2, betas=2)
    monkeypatch.setattr("measure.SIDE", 64)
    monkeypatch.setattr("measure.MOMENT", 0.01)
    monkeypatch.setattr(workloads, "WORKLOADS", {"tiny": TINY, "several": several})


def run(against: str = "naive", names: str = "", format: str = "json", peers: Path = Path()) -> None:
    bench(against, names, 2, peers, Format(format))


def test_every_contender_is_measured_and_compared_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    rows = {(row["workload"], row["contender"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [(w, c) for w in ("tiny", "several") for c in ("fedstale", "naive", "loop")]
    for (workload, contender), row in rows.items():
        assert row["slower"] == pytest.approx(row["seconds"] / rows[workload, "fedstale"]["seconds"])
        assert 0 < row["seconds"] <= row["median"]
        assert 0 < row["peak"] < 1 or contender == "loop"
        assert row["costlier"] * rows[workload, "fedstale"]["cpu"] == pytest.approx(
            row["cpu"] if row["costlier"] else 0
        )


def test_table_names_workload_and_contender(capsys: pytest.CaptureFixture[str]) -> None:
    run(names="tiny", format="text")
    text = capsys.readouterr().out
    assert "tiny" in text
    assert "naive" in text
    assert "several" not in text


def test_unknown_names_and_missing_peers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'naive'"):
        run(against="naiv")
    with pytest.raises(BadInput, match="did you mean 'tiny'"):
        run(names="tini")
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
    lstm = WORKLOADS["lstm"]._replace(
        shape=(3,), batch=2, steps=1, clients=1
    )  # four gates, two layers, three steps
    forward = 2 * 2 * 3 * 4 * 128 * (8 + 128 + 128 + 128) + 2 * 2 * 128 * 80
    assert flops(lstm) == pytest.approx(3 * forward, rel=0.1)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if not name.endswith("-15")])
def test_contenders_train_the_same_model(name: str) -> None:
    w = WORKLOADS[name]
    theirs, mine = (sum(p.numel() for p in m.parameters()) for m in (plain(w), w.model.build(w.shape, w.classes)))
    assert theirs == mine
    assert isinstance(w.model, models.CNN | models.MnistCNN) == bool(w.channels)


@pytest.fixture
def one_core() -> Iterator[None]:
    with one_thread():  # more are slow where tests share the cores
        yield


WHOLE = {  # a batch is all that a client has, so that the order of its samples does not matter
    "linear": TINY._replace(batch=8, steps=3),
    "mlp": TINY._replace(model=MLP((3,)), hidden=(3,), batch=8, steps=3),
    "mnist-cnn": CNN._replace(clients=2, samples=4, batch=4, steps=2, engine="serial"),
    "lstm": WORKLOADS["lstm"]._replace(shape=(6,), clients=1, samples=4, batch=4, steps=2, engine="serial"),
    "resnet18": WORKLOADS["resnet18"]._replace(clients=1, samples=4, batch=4, steps=1, engine="serial"),
    "transformer-loop": WORKLOADS["transformer-loop"]._replace(
        shape=(6,), clients=2, samples=4, batch=4, steps=2, engine="serial"
    ),
}


@pytest.mark.parametrize(
    "name", [n if n in ("linear", "mlp") else pytest.param(n, marks=pytest.mark.slow) for n in WHOLE]
)
def test_our_round_and_the_naive_one_take_the_same_steps(name: str, one_core: None) -> None:
    w = WHOLE[name]
    with ours(w) as play:
        (reply,) = played(play)
    start = plain(w)
    params = Supervised(partial(w.model.build, w.shape, w.classes), samples(w)).init(0)
    vector_to_parameters(torch.from_numpy(params), start.parameters())
    for client, (x, y) in enumerate(samples(w)):
        change = update(start, x, y, w).numpy()
        assert abs(change).max() > 1e-4
        assert reply.updates[client] == pytest.approx(change, abs=2e-6)


def test_what_a_round_costs_besides_training_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert overhead.milliseconds(12, 3, 5, FedStale(0.5), Intervals(), rounds=2) > 0
    few = [curves.Point(f"{panel}, of all", "line", x, 1.0) for panel in "ab" for x in (1.0, 2.0)]
    monkeypatch.setattr(curves, "points", lambda quick: few)
    monkeypatch.setattr("sys.argv", ["curves.py", "--out", str(tmp_path)])
    curves.main()
    assert {file.name for file in tmp_path.iterdir()} == {"benchmark-curves.csv", "benchmark-curves.png"}


@pytest.mark.slow
def test_training_in_a_pool_is_told_from_the_rest_of_a_run(one_core: None) -> None:
    training, whole = pool.seconds(WORKLOADS["linear"]._replace(clients=2, samples=8, batch=8), rounds=2)
    assert training > 0
    assert whole >= 0  # in ticks


@pytest.mark.slow
def test_versions_of_the_source_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    versions.main([str(Path(versions.__file__).parents[1]), "--workloads", "leaf", "--repeat", "1"])
    said = re.fullmatch(r"leaf: (\S+) by the clock, \S+ in processor time\n", capsys.readouterr().out)
    assert said
    assert float(said[1]) > 0


def test_images_are_mirrored_and_moved() -> None:
    x, draws = torch.arange(2.0 * 3 * 8 * 8).view(2, 3, 8, 8) + 1, torch.Generator().manual_seed(0)
    changed = mirrored(x, draws)
    assert changed.shape == x.shape
    assert not torch.equal(changed, x)
    assert set(changed.unique().tolist()) <= {0.0, *x.unique().tolist()}


def test_the_page_of_benchmarks_is_written_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Above\n{report.BEGIN}old\n{report.END}below\n")
    quick = ["--against", "naive", "--repeat", "1"]
    report.main([*quick, "--workloads", "tiny"], tmp_path)
    first = json.loads((tmp_path / "benchmark-rows.json").read_text())
    report.main(quick, tmp_path)  # the other one
    rows = json.loads((tmp_path / "benchmark-rows.json").read_text())
    assert list(rows) == ["tiny", "several"]
    assert rows["tiny"] == first["tiny"]
    text = page.read_text()
    assert text.startswith("# Above\n")
    assert text.endswith(f"{report.END}below\n")
    assert text.count("| `tiny`: tiny |") == text.count("| `several`: tiny |") == 1
    assert "old" not in text
    (tiny,) = (line.split(" | ") for line in text.splitlines() if line.startswith("| `tiny`"))
    ours, naive = rows["tiny"]["rows"][:2]
    assert float(tiny[4]) == pytest.approx(naive["slower"] / ours["peak"], rel=0.01)


@pytest.mark.skipif(not PROC.exists(), reason="the system has no /proc")
def test_processor_time_counts_children_that_are_not_apart() -> None:
    before = processor_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "sum(range(3 * 10**7)); input()"], stdin=subprocess.PIPE) as child:
        while processor_seconds(child.pid) < 0.1:
            pass
        assert processor_seconds(os.getpid()) >= before + 0.05
        assert processor_seconds(os.getpid(), {child.pid}) <= processor_seconds(os.getpid()) - 0.05
        child.communicate(b"\n")


def played(play: Any) -> Any:
    return play()


def test_elsewhere_than_in_a_checkout_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.cli.bench.CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="bench needs a checkout of fedstale"):
        measuring()

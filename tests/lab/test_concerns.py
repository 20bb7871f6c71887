"""What is said of a run after some rounds: for the right reason, once, and the same after a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.cli.run import run
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.probes import LOOKS
from fedstale.lab.runs import store
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.schema import check

RAW: dict[str, Any] = {
    "name": "concerns", "rounds": 12, "algorithms": ["fedavg"], "seeds": [1],
    "data": {"dataset": "quadratic", "clients": 200, "dimension": 4, "noise": 0.1},
    "local": {"lr": 0.05, "steps": 2}, "participation": {"kind": "bernoulli", "p": 0.02},
}  # fmt: skip


def played(out: Path, stop: int = 0, **changes: Any) -> RunFolder:
    """The folder of a run; one that is stopped after so many rounds is resumed."""
    e = check(RAW | changes)
    planned = plan(e, store.open_store(out))
    for resume in (False, True) if stop else (False,):
        for done in execute(e, planned, resume=resume, checkpoint_seconds=0.0):
            if not resume and done.t == stop:
                break
    return planned[0].folder


def said(run: RunFolder) -> dict[str, str]:
    return {kind: text for line in run.metrics() for kind, text in line.get("warnings", {}).items()}


def test_steps_that_are_short_because_most_clients_were_never_heard(tmp_path: Path) -> None:
    run = played(tmp_path, algorithms=["mifa"])
    (line,) = [line for line in run.metrics() if "warnings" in line]
    heard = {i for earlier in run.metrics()[: LOOKS[0]] for i in earlier["heard"]}
    assert line["round"] == LOOKS[0]
    text = line["warnings"]["steps"]
    assert text.startswith(f"{200 - len(heard)} of 200 clients were never heard; the step of round 10 has ")
    assert 0 < float(text.split(" has ")[1].split("%")[0]) < 25
    assert run.result()["warnings"] == [text]


def test_nothing_is_said_of_a_run_that_goes_well(tmp_path: Path) -> None:
    run = played(tmp_path, rounds=60, participation={"kind": "two-groups", "p_min": 0.1})
    assert said(run) == {}
    assert "warnings" not in run.result()
    known = played(tmp_path, rounds=60, algorithms=["unbiased"], participation={"kind": "two-groups", "p_min": 0.1})
    assert said(known) == {}


def test_a_rate_that_raises_the_losses(tmp_path: Path) -> None:
    data = RAW["data"] | {"clients": 6}
    wide = {"data": data, "participation": {"kind": "bernoulli", "p": 1.0}}
    high = played(tmp_path, **wide, local={"lr": 2.2, "steps": 2})
    assert said(high)["rate"].endswith("is higher after training than before: local.lr may be too large")
    assert said(played(tmp_path, **wide, local={"lr": 0.1, "steps": 2})) == {}


def test_losses_that_grow_from_round_to_round(tmp_path: Path) -> None:
    wide = {"data": RAW["data"] | {"clients": 6}, "participation": {"kind": "bernoulli", "p": 1.0}}
    server = {"kind": "sgd", "lr": 40.0}  # every client goes down, the mean of them far beyond
    text = said(played(tmp_path, **wide, server=server))["rate"]
    assert text.startswith("the clients' losses are ")
    assert text.endswith(" times those of round 1: local.lr may be too large")


def test_a_p_that_contradicts_who_was_heard(tmp_path: Path) -> None:
    p = [0.9, 0.9, 0.05, 0.05]
    told = {"kind": "known", "p": [0.9, 0.9, 0.05, 0.9]}
    rest = {"data": RAW["data"] | {"clients": 4}, "participation": {"kind": "bernoulli", "p": p}, "rounds": 45}
    run = played(tmp_path, algorithms=["unbiased"], estimator=told, **rest)
    visits = sum(3 in line["heard"] for line in run.metrics()[:39])
    assert said(run)["p"] == f"client 3 was heard in {visits} of 39 rounds, but its p is taken to be 0.9"
    learnt = {"kind": "intervals", "cutoff": 1000}  # p̂ is the mean interval between visits, and 1 before the first
    assert said(played(tmp_path, algorithms=["unbiased"], estimator=learnt, **rest)) == {}, "nobody gave these p"
    never = rest | {"participation": {"kind": "bernoulli", "p": [0.9, 0.9, 0.05, 1e-9]}}
    assert said(played(tmp_path, algorithms=["unbiased"], estimator=told, **never)) == {}, (
        "nothing is divided by it"
    )
    assert said(played(tmp_path, algorithms=["fedavg"], estimator=told, **rest)) == {}, "FedAvg divides by nothing"


def test_a_client_with_a_name_is_called_by_it(tmp_path: Path) -> None:
    samples = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))] * 4
    task = fs.Supervised(lambda: nn.Linear(2, 2), samples, names=["Bonn", "Jena", "Kiel", "Ulm"])
    parts = fs.strategies.Unbiased(), fs.Bernoulli(p=[0.9, 0.9, 0.05, 0.05])
    p = fs.estimators.Known([0.9, 0.9, 0.05, 0.9])
    run = fs.record(fs.Run(fs.Serial(task, fs.Local(0.1)), *parts, rounds=45, estimator=p), tmp_path)
    assert said(run)["p"].startswith("Ulm was heard in ")


@pytest.mark.parametrize("stop", [9, 10, 39])
def test_a_run_that_was_resumed_says_the_same(stop: int, tmp_path: Path) -> None:
    p, told = np.full((2, 200), 0.02)
    p[0], told[0] = 0.1, 0.9
    coins = {"kind": "bernoulli", "p": p.tolist()}
    changes = {"rounds": 45, "estimator": {"kind": "known", "p": told.tolist()}, "participation": coins}
    for name in ("mifa", "unbiased"):
        one = changes | {"algorithms": [name]}
        whole, cut = played(tmp_path / "a", **one), played(tmp_path / "b", stop, **one)
        assert said(whole)
        assert (whole.path / "metrics.jsonl").read_bytes() == (cut.path / "metrics.jsonl").read_bytes()
        assert whole.result()["warnings"] == cut.result()["warnings"]


def test_the_command_says_it_once_for_each_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "concerns.toml"
    file.write_text(
        'rounds = 12\nseeds = [1, 2, 3]\nalgorithms = ["mifa", "fedavg"]\n'
        'data = { dataset = "quadratic", clients = 200, dimension = 4 }\n'
        'local = { lr = 0.05, steps = 2 }\nparticipation = { kind = "bernoulli", p = 0.02 }\n'
    )
    run(str(file), out=tmp_path / "runs")
    words = " ".join(capsys.readouterr().err.split())
    assert words.count("clients were never heard") == 1
    assert "warning: mifa" in words

"""Runs that go on from others, and forks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.lab import lineage, schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import Planned, plan
from fedstale.lab.runs import query
from fedstale.lab.runs.metrics import ROUND_KEYS

RAW: dict[str, Any] = {
    "name": "try", "rounds": 6, "algorithms": [{"kind": "fedstale", "beta": 0.5}],
    "data": {"dataset": "quadratic", "clients": 6, "dimension": 4, "noise": 0.1},
    "local": {"lr": 0.05}, "participation": {"kind": "two-groups", "p_min": 0.3}, "server": "momentum",
}  # fmt: skip


def computed(folder: Path, resume: bool = False, **changes: Any) -> tuple[Planned, list[str]]:
    experiment, said = schema.check(RAW | changes), list[str]()
    planned = plan(experiment, folder)
    list(execute(experiment, planned, resume=resume, say=said.append))
    return planned[0], [line for line in said if line]


def test_more_rounds_go_on_to_the_bits_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    whole, _ = computed(tmp_path / "whole", rounds=10)
    short, _ = computed(tmp_path / "runs")
    long, said = computed(tmp_path / "runs", resume=True, rounds=10)
    assert f"fedstale beta=0.5, seed 1 goes on from round 6 of {short.folder.path.name}" in said
    np.testing.assert_array_equal(long.folder.params(), whole.folder.params())
    assert [line["round"] for line in long.folder.metrics()] == [*range(1, 11)]
    assert long.folder.environment()["continued"] == f"{short.folder.path.name}@6"
    assert query.origin(long.config, long.folder.environment()).startswith("continued from fedstale")


def played(folder: Path, extend: bool, **changes: Any) -> Planned:
    experiment = schema.check(RAW | changes)
    planned = plan(experiment, folder)
    list(execute(experiment, planned, extend=extend))
    return planned[0]


def test_a_run_that_extends_a_shorter_one_has_the_metrics_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    short = played(tmp_path / "runs", False, rounds=30, evaluate_every=7)
    long = played(tmp_path / "runs", True, rounds=50, evaluate_every=7)
    whole = played(tmp_path / "whole", False, rounds=50, evaluate_every=7)
    assert long.folder.environment()["continued"] == f"{short.folder.path.name}@30"
    for name in ("metrics.jsonl", "params.npy", "clients.json"):
        assert (long.folder.path / name).read_bytes() == (whole.folder.path / name).read_bytes(), name
    timed = ("seconds", "rounds_per_second")
    a, b = ({k: v for k, v in p.folder.result().items() if k not in timed} for p in (long, whole))
    assert a == b


def test_a_run_is_not_extended_where_the_shorter_one_was_evaluated_in_other_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path, False)
    path = next(tmp_path.glob("*/metrics.jsonl"))
    monkeypatch.setattr(lineage.RunFolder, "damage", "")
    path.with_name("checksums.json").unlink()
    lines = path.read_text().splitlines(keepends=True)
    bare = {k: v for k, v in json.loads(lines[1]).items() if k in ROUND_KEYS}
    path.write_text("".join([lines[0], json.dumps(bare) + "\n", *lines[2:]]))
    long = played(tmp_path, True, rounds=8)
    assert "continued" not in long.folder.environment()
    assert "objective" in long.folder.metrics()[1]


def test_a_longer_run_goes_on_from_the_longest_of_the_shorter_ones(tmp_path: Path) -> None:
    for rounds in (2, 4, 3):
        computed(tmp_path, rounds=rounds)
    _, said = computed(tmp_path, resume=True, rounds=5)
    assert any("goes on from round 4 of " in line for line in said)


def test_a_run_too_large_for_its_checkpoint_to_be_kept_begins_anew_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "SMALL", 1)
    computed(tmp_path)
    long, said = computed(tmp_path, resume=True, rounds=8)
    assert any(
        "begins with round 1: " in line and "kept no checkpoint (--keep-checkpoints does)" in line for line in said
    )
    assert long.folder.result()["rounds"] == 8


def test_a_run_that_stopped_early_is_not_gone_on_from(tmp_path: Path) -> None:
    early: dict[str, Any] = {"target": 1e9, "monitor": "distance"}
    short, _ = computed(tmp_path, **early)
    assert short.folder.result()["rounds"] == 1
    _, said = computed(tmp_path, resume=True, rounds=8, **early)
    assert not any("goes on from" in line for line in said)


def test_a_run_whose_rounds_were_changed_is_not_gone_on_from(tmp_path: Path) -> None:
    short, _ = computed(tmp_path)
    path = short.folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"participants":', b'"participants":1', 1))
    _, said = computed(tmp_path, resume=True, rounds=8)
    assert not any("goes on from" in line for line in said)


@pytest.mark.parametrize("torn", ["last.npz", "config.json"])
def test_a_run_whose_files_a_power_cut_has_torn_is_not_gone_on_from(tmp_path: Path, torn: str) -> None:
    short, _ = computed(tmp_path)
    (short.folder.path / torn).write_bytes(b"")
    long, said = computed(tmp_path, resume=True, rounds=8)
    assert [line["round"] for line in long.folder.metrics()] == [*range(1, 9)]
    assert any("begins with round 1: " in line for line in said) == (torn == "last.npz")


def forked(folder: Path, before: Planned, **changes: Any) -> tuple[Planned, list[str]]:
    experiment, said = schema.check(RAW | {"rounds": 10} | changes), list[str]()
    planned = [lineage.forked(p, *lineage.source(before.folder, folder)) for p in plan(experiment, folder)]
    list(execute(experiment, planned, say=said.append))
    return planned[0], [line for line in said if line]


def test_a_fork_with_the_same_parts_has_the_bits_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    whole, _ = computed(tmp_path / "whole", rounds=10)
    short, _ = computed(tmp_path / "runs")
    fork, said = forked(tmp_path / "runs", short)
    assert said[-1].endswith(f"starts from round 6 of {short.folder.path.name}")
    np.testing.assert_array_equal(fork.folder.params(), whole.folder.params())
    assert fork.config["start"] == {"run": short.folder.path.name, "round": 6}


def test_another_strategy_begins_anew_from_the_model_of_the_other_run(tmp_path: Path) -> None:
    short, _ = computed(tmp_path)
    fork, said = forked(tmp_path, short, algorithms=["mifa"])
    assert said[-1].endswith("; strategy begins anew")
    lines = fork.folder.metrics()
    assert lines[:6] == short.folder.metrics()
    assert query.origin(fork.config, {}) == f"started from {short.folder.path.name}, round 6"
    later, _ = forked(tmp_path, short, algorithms=["mifa"], server="sgd")
    assert later.folder != fork.folder


def test_without_a_checkpoint_the_model_alone_is_taken(tmp_path: Path) -> None:
    short, _ = computed(tmp_path)
    (short.folder.path / lineage.LAST).unlink()
    fork, said = forked(tmp_path, short)
    assert "strategy and estimator and server and channel begin anew" in said[-1]
    assert fork.folder.result()["rounds"] == 10


def test_what_cannot_be_started_from_is_told(tmp_path: Path) -> None:
    short, _ = computed(tmp_path)
    name = short.folder.path.name
    with pytest.raises(
        fs.BadInput,
        match=rf"{name} can be started from the rounds that are stored, 6, got @4; .* rounds = 4 stores",
    ):
        lineage.source(f"{name}@4", tmp_path)
    assert lineage.source(f"{name}@6", tmp_path) == (short.folder, 6)
    longer, _ = computed(tmp_path, rounds=10)
    assert lineage.source(f"{longer.folder.path}@6", Path("runs")) == (short.folder, 6)
    with pytest.raises(fs.BadInput, match=r"the rounds that are stored, 10, 6, got @now"):
        lineage.source(f"{longer.folder.path.name}@now", tmp_path)
    (tmp_path / "fedstale-store.json").touch()
    with pytest.raises(fs.BadInput, match="the run 'nowhere' is unknown; known: "):
        lineage.started([short], "nowhere@3")
    with pytest.raises(fs.BadInput, match=r"rounds must be above 6, the round that .* is at, got 5"):
        forked(tmp_path, short, rounds=5)
    with pytest.raises(fs.BadInput, match=r"a run of 8 clients cannot start from .*, which has 6"):
        forked(tmp_path, short, data=RAW["data"] | {"clients": 8})
    with pytest.raises(fs.BadInput, match="has a model of 4 parameters, this run one of 3"):
        forked(tmp_path, short, data=RAW["data"] | {"dimension": 3})
    (at := tmp_path / "a@3").symlink_to(short.folder.path)
    assert lineage.source(at, tmp_path)[1] == 6


def test_record_starts_from_a_folder(tmp_path: Path) -> None:
    task = fs.Quadratic.random(n=6, d=4, noise=0.1)
    engine = fs.Serial(task, fs.Local(lr=0.05))

    def run(strategy: Any, rounds: int) -> fs.Run:
        return fs.Run(engine, strategy, fs.TwoGroups(p_min=0.3), rounds, seed=1)

    first = fs.record(run(fs.FedStale(0.5), 4), tmp_path)
    whole = fs.record(run(fs.FedStale(0.5), 9), tmp_path / "whole")
    longer = fs.record(run(fs.FedStale(0.5), 9), tmp_path, resume=True)
    np.testing.assert_array_equal(longer.params(), whole.params())
    fork = fs.record(run(fs.strategies.MIFA(), 9), tmp_path, start=first)
    assert fork.config()["start"]["round"] == 4

"""Computing planned runs: what is reused, recomputed, resumed, refused, and what a finished run leaves."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedstale.core import BadInput
from fedstale.engines import auto
from fedstale.lab.execute import Progress, Stop, execute
from fedstale.lab.plan import Planned, plan
from fedstale.lab.runs import status
from fedstale.lab.runs.store import open_store
from fedstale.lab.schema import Experiment, check
from fedstale.simulate import Diverged, Interrupted
from fedstale.tasks.supervised import Supervised

RAW: dict[str, Any] = {
    "name": "try",
    "rounds": 6,
    "seeds": [1],
    "engine": "serial",
    "algorithms": ["fedavg", {"kind": "fedstale", "beta": 0.8, "memory": {"kind": "int8", "folder": "rows"}}],
    "data": {"dataset": "quadratic", "clients": 4, "dimension": 3},
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.5},
}


@pytest.fixture
def experiment() -> Experiment:
    return check(RAW)


@pytest.fixture
def planned(experiment: Experiment, tmp_path: Path) -> list[Planned]:
    return plan(experiment, open_store(tmp_path / "runs"))


def reused(rounds: Iterator[Progress]) -> list[bool]:
    """Of each run whether its result was in the store."""
    return [p.reused for p in rounds if p.result]


def interrupted(experiment: Experiment, planned: list[Planned], after: int, **options: bool) -> None:
    """Compute so many rounds and stop there with a checkpoint."""
    asked = iter([False] * (after - 1) + [True])
    with pytest.raises(Interrupted):
        list(execute(experiment, planned, stop=lambda: next(asked), **options))


def test_finished_runs_are_reused_unless_they_are_asked_for_again(
    experiment: Experiment, planned: list[Planned]
) -> None:
    assert reused(execute(experiment, planned)) == [False, False]
    assert reused(execute(experiment, planned)) == [True, True]
    before = [p.folder.result()["fingerprint"] for p in planned]
    assert reused(execute(experiment, planned, again=True)) == [False, False]
    assert [p.folder.result()["fingerprint"] for p in planned] == before


def test_an_interrupted_recomputation_goes_on_where_it_stopped(
    experiment: Experiment, planned: list[Planned]
) -> None:
    list(execute(experiment, planned))
    interrupted(experiment, planned, after=8, again=True)  # the first run, and two rounds of the second
    assert [p.folder.finished for p in planned] == [True, False]
    rounds = list(execute(experiment, planned, again=True, resume=True))
    assert [p.reused for p in rounds if p.result] == [True, False]
    assert [p.t for p in rounds if not p.reused] == [3, 4, 5, 6]


def test_a_full_disk_is_told_with_the_folder(
    experiment: Experiment, planned: list[Planned], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedstale.lab.recorder.Recorder.record", full)
    with pytest.raises(OSError, match="No space left") as caught:
        list(execute(experiment, planned))
    assert caught.value.filename == str(planned[0].folder.path)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_rate_that_is_far_too_large_ends_without_warnings_of_numpy(engine: str, tmp_path: Path) -> None:
    experiment = check(RAW | {"rounds": 20, "engine": engine, "local": {"lr": 1e3}, "algorithms": ["fedavg"]})
    with pytest.raises(Diverged, match="a smaller learning rate may help"):
        list(execute(experiment, plan(experiment, open_store(tmp_path / "runs"))))


def _asked_in_round(k: int, experiment: Experiment, planned: list[Planned]) -> None:
    for progress in execute(experiment, planned, resume=True):
        if progress.t == k:
            planned[0].folder.ask_stop()


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_file_in_the_folder_stops_the_run_and_all_beside_it_with_a_checkpoint(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SECONDS", 0.0)  # the file is looked for in every round
    data = {"dataset": "digits", "clients": 4, "fraction": 0.1}
    experiment = check(RAW | {"engine": engine, "algorithms": ["fedavg", "mifa"], "data": data})
    planned = plan(experiment, open_store(tmp_path / "runs"))
    for k in (1, 3):
        with pytest.raises(Interrupted):
            _asked_in_round(k, experiment, planned)
        assert planned[0].folder.rounds_recorded() == k + 1
        assert planned[0].folder.started
        assert planned[1].folder.started == (engine == "batched")
    list(execute(experiment, planned, resume=True))
    assert all(p.folder.finished and not p.folder.stop_asked for p in planned)


def test_interrupted_runs_are_refused_and_those_of_another_process_are_called_so(
    experiment: Experiment, planned: list[Planned]
) -> None:
    interrupted(experiment, planned, after=3)
    with pytest.raises(BadInput, match=r"1 runs were interrupted .* add --resume"):
        list(execute(experiment, planned))
    with planned[0].folder.locked(), pytest.raises(BadInput, match="is being computed by another process"):
        list(execute(experiment, planned))
    assert reused(execute(experiment, planned, resume=True)) == [False, False]


@pytest.mark.parametrize("keep", [False, True])
def test_a_finished_run_keeps_its_checkpoint_only_if_asked(
    keep: bool, experiment: Experiment, planned: list[Planned]
) -> None:
    list(execute(experiment, planned, checkpoint_seconds=0.0, keep_checkpoints=keep))
    for p in planned:
        assert p.folder.started == keep
        assert p.folder.params().shape == (3,)
    assert bool(list(planned[1].folder.path.rglob("memory-*.rows"))) == keep
    assert reused(execute(experiment, planned)) == [True, True]


def test_a_rule_inside_another_has_its_rows_its_estimator_and_its_metrics(tmp_path: Path) -> None:
    """Also after an interruption: the fingerprint is that of a run which was never stopped."""
    remembering = {"kind": "fedstale", "beta": 0.8, "memory": {"kind": "int8", "folder": "rows"}}
    wrapped = {"kind": "extrapolated", "strategy": {"kind": "clipped", "bound": 0.1, "strategy": remembering}}
    entries = [wrapped, {"kind": "clipped", "bound": 1e6, "strategy": "fedau"}, "fedau"]
    entries += [{"kind": "extrapolated", "strategy": "auto"}]
    experiment = check(RAW | {"algorithms": entries})
    never, stopped = (plan(experiment, open_store(tmp_path / name)) for name in ("never", "stopped"))
    list(execute(experiment, never, checkpoint_seconds=0.0, keep_checkpoints=True))
    assert list((never[0].folder.path / "rows").rglob("memory-*.rows"))
    results = [p.folder.result() for p in never]
    assert results[1]["fingerprint"] == results[2]["fingerprint"] != results[0]["fingerprint"]
    assert "own_objective" in [*never[0].folder.metrics()][-1]
    assert [*never[3].folder.metrics()][-1]["beta"] != 0.5
    interrupted(experiment, stopped, after=3)
    list(execute(experiment, stopped, resume=True))
    assert [p.folder.result()["fingerprint"] for p in stopped] == [result["fingerprint"] for result in results]


@pytest.mark.parametrize("place", ["..", "rows/../../..", "/nowhere/rows"])
def test_rows_outside_the_run_are_refused_before_any_work(place: str, tmp_path: Path) -> None:
    """The run could not find and remove them when it is computed again."""
    fedstale = {"kind": "fedstale", "memory": {"kind": "int8", "folder": place}}
    experiment = check(RAW | {"algorithms": ["fedavg", fedstale]})
    planned = plan(experiment, open_store(tmp_path / "runs"))
    with pytest.raises(
        BadInput, match=f"memory.folder must be inside the run's folder, such as 'rows', got '{place}'"
    ):
        list(execute(experiment, planned))
    assert not any(p.folder.path.exists() for p in planned)


def test_metrics_that_vanish_during_a_run_are_one_sentence_and_resuming_repairs_it(
    experiment: Experiment, planned: list[Planned]
) -> None:
    first = planned[0].folder
    rounds = execute(experiment, planned)
    next(rounds)
    (first.path / "metrics.jsonl").unlink()
    with pytest.raises(
        BadInput, match=r"metrics\.jsonl was cut or deleted during the run; --resume starts it again"
    ):
        list(rounds)
    assert not first.finished
    list(execute(experiment, planned, resume=True))
    assert all(p.folder.finished for p in planned)


def test_a_resumed_run_goes_on_with_belief_channel_and_momentum(tmp_path: Path) -> None:
    """Every part that learns or remembers something from round to round, stopped in the middle."""
    burst = {"kind": "gilbert-elliott", "worsen": 0.3, "recover": 0.4}
    stateful = check(RAW | {"algorithms": ["fedau"], "rounds": 12, "server": "momentum", "channel": burst})
    whole, broken = (plan(stateful, open_store(tmp_path / name)) for name in ("whole", "broken"))
    list(execute(stateful, whole))
    interrupted(stateful, broken, 5)
    assert reused(execute(stateful, broken, resume=True)) == [False]
    assert broken[0].folder.metrics() == whole[0].folder.metrics()
    assert broken[0].folder.result()["fingerprint"] == whole[0].folder.result()["fingerprint"]


def test_a_run_starts_from_the_end_of_its_warm_up(tmp_path: Path) -> None:
    raw = RAW | {"algorithms": ["fedavg"], "rounds": 1, "participation": {"kind": "bernoulli", "p": 1.0}}
    warm, cold = check(raw | {"warmup": {"rounds": 3, "lr": 0.1}}), check(raw | {"rounds": 4})
    ends = []
    for name, experiment in (("warm", warm), ("cold", cold)):
        (p,) = plan(experiment, open_store(tmp_path / name))
        list(execute(experiment, [p]))
        ends.append(p.folder.result()["distance"]["final"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)  # without noise three rounds and one are four


def counted(model: Any, data: Any, context: Any) -> None:
    context.state["rounds"] = context.state.get("rounds", 0) + 1


def test_clients_go_on_with_what_they_kept_in_the_warm_up(tmp_path: Path) -> None:
    raw = RAW | {
        "algorithms": ["fedavg"], "rounds": 1, "participation": {"kind": "bernoulli", "p": 1.0},
        "data": {"dataset": "synthetic", "clients": 2, "max_samples": 5}, "model": {"kind": "linear"},
        "local": {"lr": 0.1, "train": f"{__name__}:counted"},
        "warmup": {"rounds": 3, "lr": 0.1, "train": f"{__name__}:counted"},
    }  # fmt: skip
    (p,) = plan(check(raw), open_store(tmp_path / "runs"))
    list(execute(check(raw), [p]))
    assert p.folder.client_states() == {i: {"loop": {"rounds": 4}} for i in range(2)}


@pytest.mark.parametrize(("chosen", "threads"), [("serial", {1}), ("batched", {2})])
def test_evaluations_take_no_more_threads_than_training(
    chosen: str, threads: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, evaluate, before = set(), Supervised.evaluate, torch.get_num_threads()

    def watched(task: Supervised, *arrays: Any) -> dict[str, float]:
        used.add(torch.get_num_threads())
        return evaluate(task, *arrays)

    monkeypatch.setattr(Supervised, "evaluate", watched)
    monkeypatch.setattr(auto, "calibrate", lambda task, local: 0.0)
    if chosen == "serial":
        monkeypatch.setattr(auto, "_batched", lambda task, local: None)
    data = {"dataset": "digits", "clients": 4, "fraction": 0.1}
    experiment = check({**RAW, "rounds": 1, "data": data, "model": "linear", "engine": "auto"})
    torch.set_num_threads(2)
    try:
        list(execute(experiment, plan(experiment, open_store(tmp_path / "runs"))))
    finally:
        torch.set_num_threads(before)
    assert used == threads


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_a_stop_and_a_hang_up_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Stop() as stop:
            assert not stop()
            os.kill(os.getpid(), number)
            assert stop()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with Stop():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_ends_when_nobody_waits_for_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    waits = SimpleNamespace(is_alive=lambda: True)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: waits)
    with Stop(worker=True) as stop, Stop() as alone:
        assert not stop()
        waits.is_alive = lambda: False
        assert not alone()
        assert not ended
        stop()
    assert ended == [130]

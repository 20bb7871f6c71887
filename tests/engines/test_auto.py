import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstale.core import Job, Local
from fedstale.engines import Serial, auto, make
from fedstale.engines.auto import LOOKS, PATIENCE, Auto, Turns
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.shortcuts import laid_out
from fedstale.tasks.supervised import Supervised
from fedstale.testing import check_engine
from tests.engines.slow_tasks import Slow
from tests.engines.tasks_for_engines import vectors

LOCAL = Local(0.05, steps=2, batch=16)


def test_small_model_is_batched_and_equals_the_reference() -> None:
    engine = make("auto", vectors(), LOCAL)
    assert isinstance(engine, Auto)
    assert engine.name == "batched"
    assert engine.note.startswith("engine batched: clients side by side")
    check_engine(engine, rounds=3, tolerance=1e-4)


@pytest.mark.parametrize(("seconds", "name"), [(0.0001, "serial"), (3.0, "pool")])
def test_times_choose_only_between_engines_of_the_same_bits(
    seconds: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "calibrate", lambda task, local: seconds)
    monkeypatch.setattr(auto, "cores", lambda: 2)
    monkeypatch.setattr(auto, "SMALL", 1)
    task = vectors(tanh)
    job = Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)
    with Auto(vectors(), LOCAL) as engine:
        assert engine.name == "batched"  # a linear model, however fast the others are
    with Auto(task, LOCAL) as engine:
        assert engine.name == name
        assert f"serial {1000 * seconds:.3g} ms" in engine.note
        got = engine.train([job])[0].updates
    np.testing.assert_array_equal(got, Serial(task, LOCAL).train([job])[0].updates)


PLACES = {"idle": (1.0, 2.0), "busy": (5.0, 3.0)}  # seconds of a client in pool and serial


def played(turns: Turns, place: str, rounds: int) -> list[str]:
    """Who trained in these rounds."""
    names = []
    for _ in range(rounds):
        names.append(turns.name)
        turns.compare(PLACES[place][turns.name == "serial"])
    return names


def test_the_faster_engine_trains_while_the_machine_is_busy_and_when_it_is_idle_again() -> None:
    turns = Turns(vectors(tanh), LOCAL, 2.0)
    assert {*played(turns, "idle", 50)} == {"pool"}
    busy = played(turns, "busy", 400)
    assert busy[: 2 * LOOKS] == ["pool"] * LOOKS + ["serial"] * LOOKS
    assert busy.count("pool") <= 10 * LOOKS  # turns that it loses, ever more seldom
    assert played(turns, "idle", PATIENCE + LOOKS + 50)[-50:] == ["pool"] * 50
    turns.close()


def test_a_slow_machine_costs_a_pool_one_turn_of_serial() -> None:
    """Both are as slow then: what Serial took before is no measure any more."""
    turns = Turns(vectors(tanh), LOCAL, 2.0)
    for _ in range(100):
        turns.compare(3.0 if turns.name == "pool" else 6.0)
    assert turns.name == "pool"
    assert turns._other == 6.0
    turns.close()


def test_the_start_of_processes_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Turns, "compare", lambda turns, seconds: seen.append(seconds))
    task, turns = Slow(0.0), Turns(Slow(0.0), LOCAL, 1.0)
    job, nobody = (Job(task.init(0), np.arange(m), 0, 1, LOCAL) for m in (2, 0))
    for jobs, due in (([job], 0), ([job], 1), ([nobody], 1), ([job], 2)):
        turns.train(jobs)
        assert len(seen) == due
    turns.name = "serial"
    np.testing.assert_array_equal(turns.train([job])[0].updates, Serial(task, LOCAL).train([job])[0].updates)
    turns.close()


def test_the_choice_depends_on_a_runs_own_settings_alone() -> None:
    """Or a run would have other bits where it is computed beside others."""
    task, adam = vectors(), Local(0.05, steps=2, batch=16, optimizer="adam")
    job = Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)
    found = [Auto(task, first).train([job, job._replace(local=adam)]) for first in (LOCAL, adam)]
    np.testing.assert_array_equal(found[0][0].updates, found[1][0].updates)
    np.testing.assert_array_equal(
        found[0][1].updates, Serial(task, adam).train([job._replace(local=adam)])[0].updates
    )


def test_a_task_of_one_client_is_tried_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: 2)
    assert "ms" in Auto(Quadratic.random(n=1, d=2), LOCAL).note


def test_task_that_cannot_be_pickled_gets_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "calibrate", lambda task, local: 3.0)
    monkeypatch.setattr(auto, "SMALL", 1)
    assert Auto(vectors(lambda: tanh()), LOCAL).name == "serial"


def test_model_that_cannot_be_batched_is_not() -> None:
    assert Auto(vectors(dropout), LOCAL).name == "serial"


def tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.Tanh())


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])  # type: ignore[no-any-return]


def test_an_lstm_is_not_batched_and_nobody_is_warned() -> None:
    """torch warns that batching it is slow; warnings are errors here."""
    clients = [(torch.zeros(5, 4, 3), torch.zeros(5, 4, dtype=torch.long))] * 2
    engine = Auto(Supervised(Recurrent, clients), Local(0.1, steps=1))
    assert engine.name == "serial"
    assert repr(engine) == f"Auto(Supervised(n=2, d=154), {engine.name!r})"


def test_task_without_torch_goes_to_a_pool_if_it_is_slow() -> None:
    task = Slow(0.05)
    with make("auto", task, LOCAL) as engine:  # type: ignore[attr-defined]
        job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
        np.testing.assert_array_equal(
            engine.train([job])[0].updates, Serial(Slow(0.0), LOCAL).train([job])[0].updates
        )


LAYOUTS: list[bool] = []  # of the inputs that an Image has seen: whether channels are last


class Image(nn.Module):
    """A convolution that Batched has no compiled loops for, and a layer behind it that may need a layout."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view, self.conv, self.last = view, nn.Conv2d(2, 3, 3, stride=2), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        LAYOUTS.append(x.is_contiguous(memory_format=torch.channels_last))
        x = torch.tanh(self.conv(x))
        flat: Tensor = self.last(x.view(len(x), -1) if self.view else x.flatten(1))
        return flat


def images(view: bool) -> Supervised:
    draws = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 2, 9, 9, generator=draws), torch.arange(8) % 4) for _ in range(3)]
    return Supervised(lambda: Image(view), data)


def test_convolutions_see_images_channels_last_where_their_model_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SMALL", 1)
    for view in (False, True):
        task = images(view)
        job = Job(task.init(0), np.arange(task.n), 0, 1, LOCAL)
        expected = Serial(task, LOCAL).train([job])[0].updates
        engine = Auto(task, LOCAL)
        LAYOUTS.clear()
        np.testing.assert_allclose(engine.train([job])[0].updates, expected, rtol=0, atol=1e-6)
        assert LAYOUTS
        assert all(last is not view for last in LAYOUTS)
    assert laid_out(vectors(tanh)).channels_last is False


def test_layout_does_not_depend_on_other_runs() -> None:
    task, adam = images(False), Local(0.05, steps=2, batch=16, optimizer="adam")
    job = Job(task.init(0), np.arange(task.n), 0, 1, adam)
    one, other = (Auto(task, first).train([job])[0].updates for first in (LOCAL, adam))
    np.testing.assert_array_equal(one, other)

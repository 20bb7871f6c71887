import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.core import BadInput, Job, Local, Task
from fedstale.core.system import large_pages
from fedstale.engines import Serial, make
from fedstale.engines.processes.pool import Pool, Worker
from fedstale.engines.processes.shared import Shared, dump, load
from fedstale.engines.processes.worker import Unit, units
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_engine
from tests.engines.ray.doomed_tasks import Doomed, marked, woken
from tests.engines.slow_tasks import LOCAL, Deadly, Failing, Slow, Unloadable
from tests.engines.tasks_for_engines import images, vectors


def everybody(task: Task, seed: int = 0) -> Job:
    return Job(task.init(0), np.arange(task.n), seed, 1, LOCAL)


def gone(pids: list[int], within: float = 300.0) -> bool:
    """Whether none of the processes is there any more; one that is dead but not yet buried is not."""

    def there(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    end = time.monotonic() + within
    while any(map(there, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(there, pids))


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are new processes, as for everybody but most tests."""
    monkeypatch.setattr("fedstale.engines.processes.pool.SPAWN", multiprocessing.get_context("spawn"))


@pytest.mark.usefixtures("spawned")
def test_same_bits_as_the_reference_with_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with make("pool", images(ridge=0.1), Local(0.05, steps=4, batch=16)) as pool:  # type: ignore[attr-defined]
            check_engine(pool, rounds=10)
    finally:
        torch.set_num_threads(before)


def test_killed_process_is_replaced_and_its_clients_are_trained_again(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    task = Doomed(mark, 600.0)
    jobs = [everybody(task, seed) for seed in (0, 1)]
    with Pool(task, LOCAL, workers=2) as pool:
        killer = Thread(target=lambda: os.kill(marked(mark), signal.SIGKILL))
        killer.start()
        replies = pool.train(jobs)
        killer.join()
        assert not woken(mark)
        assert len(pool._workers) <= 2
        again = pool.train(jobs)
    for due, reply, more in zip(Serial(task, LOCAL).train(jobs), replies, again, strict=True):
        np.testing.assert_array_equal(reply.updates, due.updates)
        np.testing.assert_array_equal(reply.losses, due.losses)
        np.testing.assert_array_equal(more.updates, due.updates)


def test_task_without_large_arrays() -> None:
    task = Quadratic.random(10, 30, noise=0.1)
    with Pool(task, LOCAL, workers=1) as pool:
        check_engine(pool, rounds=2)


def test_task_that_cannot_be_loaded_is_refused_with_the_reason() -> None:
    with (
        Pool(Unloadable(), LOCAL, workers=1) as pool,
        pytest.raises(BadInput, match=r"load the task.*RuntimeError: no"),
    ):
        pool.train([everybody(pool.task)])


def test_error_of_a_client_is_raised_and_the_pool_goes_on() -> None:
    task = Failing(0.0)
    with Pool(task, LOCAL, workers=1) as pool:
        with pytest.raises(BadInput, match="client 2 is out of order"):
            pool.train([everybody(task)])
        job = Job(task.init(0), np.array([0, 5]), 0, 1, LOCAL)
        np.testing.assert_array_equal(pool.train([job])[0].updates, Serial(task, LOCAL).train([job])[0].updates)


def test_client_that_kills_every_process_is_named() -> None:
    task = Deadly(0.0)
    job = Job(task.init(0), np.array([2]), 0, 1, LOCAL)
    with Pool(task, LOCAL, workers=1) as pool, pytest.raises(ChildProcessError, match=r"3 processes .* \[2\]"):
        pool.train([job])


def shared_memory() -> set[Path]:
    """Blocks of memory with a name, without the semaphores of whatever else is running here."""
    return {path for path in Path("/dev/shm").glob("*") if not path.name.startswith("sem.")}


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_is_left_behind(killed: bool, tmp_path: Path) -> None:
    """Neither by a parent that is killed while all are busy nor by one that forgets to close its pool."""
    folder, before = Path(__file__).parent, shared_memory()
    command = [
        sys.executable,
        str(folder / "parent_of_a_pool.py"),
        "600" if killed else "0",
        str(tmp_path / "begun"),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder.parents[1]), *filter(None, sys.path)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if killed:
            parent.kill()
    assert parent.returncode == (-signal.SIGKILL if killed else 0)
    assert gone(pids)
    assert shared_memory() <= before


@pytest.mark.usefixtures("spawned")
def test_close_ends_the_processes_and_frees_the_memory() -> None:
    task, before = Slow(0.0), set(os.listdir("/proc/self/fd"))
    pool = Pool(task, LOCAL, workers=2)
    pool.train([everybody(task)])
    pids = [worker.process.pid for worker in pool._workers]
    pool.close()
    assert gone(pids)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # multiprocessing's own tracker
    with pytest.raises(BadInput, match="closed"):
        pool.train([everybody(task)])


def clients_of(task: Task, jobs: list[Job]) -> list[list[int]]:
    made = units(task, jobs, workers=2, training=True)
    rows = sum(len(job.clients) for job in jobs)
    assert sorted(row for unit in made for row in unit.rows.tolist()) == list(range(rows))
    return [unit.job.clients.tolist() for unit in made]


def test_largest_clients_go_first_and_the_last_ones_alone() -> None:
    task = vectors()  # 3, 5, 20, 20, 21, 40 samples
    jobs = [Job(task.init(0), np.arange(6), 0, 1, Local(0.1, steps, batch=30)) for steps in (1, 2)]
    assert clients_of(task, jobs[1:]) == [
        [5],
        [4],
        [2],
        [3],
        [1],
        [0],
    ]  # two are more than two fifths of what is left
    assert clients_of(task, jobs) == [[5, 4, 2, 3], [5], [4], [2], [3], [1], [1, 0], [0]]
    alike = Quadratic.random(10, 2)
    job = Job(alike.init(0), np.arange(10), 0, 1, LOCAL)
    assert [*map(len, clients_of(alike, [job]))] == [4, 2, 1, 1, 1, 1]
    many = Quadratic.random(200, 2)
    assert {*map(len, clients_of(many, [job._replace(clients=np.arange(200))]))} == {6, 2}


class Heard:
    """A process in whose pipe messages are counted."""

    def __init__(self) -> None:
        self.units: deque[Unit] = deque()
        self.pipe = self
        self.sent: list[int] = []

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(len(message))


def test_a_unit_is_sent_ahead_of_time_only_if_it_fits_the_pipe() -> None:
    """Or the pool would wait for a process that waits for the pool."""
    task, heard = vectors(), Heard()
    job = Job(task.init(0), np.arange(6), 0, 1, LOCAL)
    kept = {0: {"loop": {"moments": np.zeros(1 << 15)}}}
    for states, sent in ((None, True), (kept, False)):
        waiting = units(task, [job._replace(states=states, clients=np.arange(1))], workers=2, training=True)
        assert Worker.give(heard, waiting, ahead=True) is sent  # type: ignore[arg-type]
        assert len(waiting) == (not sent)
    assert Worker.give(heard, waiting) is True  # type: ignore[arg-type]
    assert max(heard.sent) > 1 << 17


def test_processes_get_large_pages_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "GLIBC_TUNABLES"
    for before, inside in (
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.perturb=1", "glibc.malloc.perturb=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ):
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)
        with large_pages():
            assert os.environ[name] == inside
        assert os.environ.get(name) == before


def test_task_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(BadInput, match="pickle"):
        make("pool", vectors(lambda: nn.Linear(8, 3)), Local(0.1))


def test_large_arrays_travel_in_shared_memory() -> None:
    shared = Shared()
    thing = {"x": torch.arange(5000.0), "y": np.arange(3000), "few": np.arange(3)}
    packed = dump([thing, thing["x"]], shared, "it must be picklable")
    assert len(packed) < 1000
    again, x = load(packed, shared.array)
    assert torch.equal(again["x"], thing["x"])
    assert torch.equal(x, thing["x"])
    np.testing.assert_array_equal(again["y"], thing["y"])
    np.testing.assert_array_equal(again["few"], thing["few"])
    shared.close()


def test_a_model_of_a_notebook_is_refused_in_one_sentence() -> None:
    code = "import torch, fedstale as fs\ndef net(): return torch.nn.Linear(2, 2)\n"
    code += "task = fs.Supervised(net, [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))])\n"
    code += "try: fs.engine('pool', task, fs.Local(lr=0.1))\nexcept fs.BadInput as error: print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot see what is defined in the cells of a notebook: put the model into a module" in done.stdout


def test_freed_memory_is_kept() -> None:
    """Three arrays of 64 MB, one after the other, are one place in memory: it is got from the system once."""
    program = """
import resource, numpy as np
from fedstale.core.system import keep_memory
kept, faults = keep_memory(), []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 23)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(kept), *faults)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, first, *others = map(int, done.stdout.split())
    if kept:  # with glibc
        assert first > 100
        assert max(others) < first / 10

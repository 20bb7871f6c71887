"""Rows in a file: the same bits as in RAM, through copies, checkpoints and kills at any moment."""

import contextlib
import copy
import gc
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale.memory.file as files
from fedstale.core import BadInput, Checkpoint, Local, Snapshot
from fedstale.engines import Serial
from fedstale.lab.runs import store
from fedstale.lab.runs.store import RunFolder
from fedstale.memory import Coding, Float16, Float32, Int8, Memory, rows
from fedstale.participation import Bernoulli
from fedstale.simulate import Run, checked, first, simulate
from fedstale.strategies import MIFA, FedStale, FedVARP
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy
from tests.forks import forked

ENGINE = Serial(Quadratic.random(6, 8, noise=1.0), Local(lr=0.05, steps=2))
ROUNDS, EVERY = 13, 3
CODINGS = [Float32, Float16, Int8]
every_coding = pytest.mark.parametrize("coding", CODINGS)


def played(coding: Coding, start: Checkpoint | None = None, rounds: int = ROUNDS) -> Iterator[Snapshot]:
    return simulate(ENGINE, FedStale(0.5, memory=coding), Bernoulli(0.5), rounds=rounds, seed=4, start=start)


def resumed(folder: RunFolder, coding: Coding) -> Checkpoint | None:
    run = checked(Run(ENGINE, FedStale(0.5, memory=coding), Bernoulli(0.5), ROUNDS, 4))
    found: Checkpoint | None = folder.load_checkpoint(first(run)) if folder.started else None
    return found


def finished(folder: RunFolder, coding: Coding) -> Snapshot:
    """Go on from the last checkpoint to the end, saving now and then."""
    for s in played(coding, resumed(folder, coding)):
        if s.t % EVERY == 0:
            folder.save_checkpoint(s.checkpoint)
    return s


def last(snapshots: Iterator[Snapshot]) -> Snapshot:
    for s in snapshots:  # noqa: B007
        pass
    return s


def same(a: Snapshot, b: Snapshot) -> None:
    assert a.params.tobytes() == b.params.tobytes()
    for name in ("rows", "total", "scales", "written"):
        x, y = getattr(a.checkpoint.state, name), getattr(b.checkpoint.state, name)
        assert x.tobytes() == y.tobytes(), name


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@every_coding
def test_a_file_has_the_bits_of_ram_with_and_without_checkpoints(coding: Any, folder: RunFolder) -> None:
    plain = last(played(coding()))
    filed = last(played(coding(str(folder.path))))
    same(plain, filed)
    same(plain, finished(folder, coding(str(folder.path))))
    ended = finished(folder, coding(str(folder.path)))  # from the checkpoint of round 12
    same(plain, ended)


@every_coding
def test_rows_in_ram_are_in_the_checkpoint(coding: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for few in (0, 4096):  # in the order of arrival, in order
        monkeypatch.setattr(rows, "FEW", few)
        plain = last(played(coding()))
        same(plain, finished(folder, coding()))
        same(plain, finished(folder, coding()))
        assert plain.checkpoint.state.kept.ordered == (few > 0)


class Killed(BaseException):
    pass


def crash(patch: pytest.MonkeyPatch, at: int) -> list[int]:
    """From now on the write with this number is cut off in its middle, and nothing is written after it."""
    count, whole, replace = [0], files.File._write, store.write

    def write(self: files.File, data: memoryview, offset: int) -> None:
        count[0] += 1
        if count[0] >= at:
            whole(self, data[: len(data) // 2], offset) if count[0] == at else None
            raise Killed
        whole(self, data, offset)

    def save(path: Path, writer: Any, durable: bool = True) -> None:
        count[0] += 1
        if count[0] >= at:
            raise Killed  # the rows are safe, the checkpoint that knows them is not there yet
        replace(path, writer, durable)

    patch.setattr(files.File, "_write", write)
    patch.setattr(store, "write", save)
    return count


def test_the_rows_of_a_checkpoint_are_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory.zeros(3, 2, Float32(str(tmp_path)))
    memory.write(1, np.ones(2, np.float32), np.ones(2, np.bool_), 1)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert isinstance(memory.kept, files.File)
    memory.saved()
    assert synced == [memory.kept.fd]


def test_a_kill_at_every_write_resumes_to_the_same_bits(tmp_path: Path) -> None:
    plain = last(played(Int8()))
    with pytest.MonkeyPatch.context() as patch:
        total = crash(patch, 1 << 30)
        finished(RunFolder(tmp_path), Int8(str(tmp_path)))
    assert total[0] > 30
    for at in range(1, total[0] + 1):
        folder = RunFolder(tmp_path / str(at))
        folder.path.mkdir()
        for moment in (at, 3):  # and once more, soon after
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                crash(patch, moment)
                finished(folder, Int8(str(folder.path)))
        same(plain, finished(folder, Int8(str(folder.path))))


CHILD = """
import os, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.memory import test_file as t
folder, coding, left = t.RunFolder(Path(sys.argv[1])), t.Int8(sys.argv[1]), int(sys.argv[3])
for s in t.played(coding, t.resumed(folder, coding), t.LONG):
    if s.t % 4 == 0:
        folder.save_checkpoint(s.checkpoint)
    left = left - 1
    if left == 0:
        threading.Timer(float(sys.argv[4]), os.kill, [os.getpid(), 9]).start()
folder.save_params(s.params)
"""  # it kills itself soon after so many rounds
LONG = 120


def test_kill_9_at_any_moment_resumes_to_the_same_bits(tmp_path: Path) -> None:
    plain = last(played(Int8(), rounds=LONG))
    moments, lives = random.Random(0), 0
    program = tmp_path / "program.py"
    program.write_text(CHILD)
    while lives < 20:
        lives += 1
        doom = moments.randint(15, 50), moments.uniform(0.0, 0.002)
        ended = forked(program, tmp_path, Path(__file__).parents[2], *doom)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, f"the child failed by itself: {ended.stderr}"
    assert lives > 2
    assert RunFolder(tmp_path).params().tobytes() == plain.params.tobytes()
    assert len(list(tmp_path.glob("*.rows"))) == 1


def test_only_rows_that_change_are_written_and_places_are_used_again(tmp_path: Path) -> None:
    n, d = 1000, 4096
    memory = Memory.zeros(n, d, Int8(str(tmp_path)))
    memory.weighted_sum(np.full(n, 1 / n, np.float32))
    saw = []
    for t in range(1, 31):
        for i in (5, 700, 999):
            memory.write(i, np.full(d, t, np.float32), np.ones(1, np.bool_), t)
        memory.saved()
        saw.append(next(tmp_path.glob("*.rows")).stat().st_size)
    assert saw[0] == files.FIRST + 3 * d
    assert saw[-1] == files.FIRST + 6 * d, "what is in the checkpoint, and what comes after it"
    np.testing.assert_allclose(memory.row(700), 30, rtol=0.01)


def test_copies_go_on_alike_and_apart(tmp_path: Path) -> None:
    for s in played(Int8(str(tmp_path))):
        if s.t == 5:
            break
    copies = [copy.deepcopy(s.checkpoint), pickle.loads(pickle.dumps(s.checkpoint))]
    ends = [list(played(Int8(str(tmp_path)), start))[-1] for start in (*copies, s.checkpoint)]
    plain = last(played(Int8()))
    for end in ends:
        same(plain, end)
    assert len(list(tmp_path.glob("*.rows"))) == 3


@pytest.mark.parametrize("strategy", [FedStale, MIFA, FedVARP])
def test_strategies_keep_their_promises_with_files(strategy: Any, tmp_path: Path) -> None:
    check_strategy(strategy(memory=Float16(str(tmp_path / "deep" / "er"))))
    gc.collect()
    assert not list((tmp_path / "deep" / "er").iterdir())


def test_a_file_goes_with_its_memory_unless_a_checkpoint_knows_it(tmp_path: Path) -> None:
    folder, coding = RunFolder(tmp_path / "run"), Int8(str(tmp_path / "rows"))
    folder.path.mkdir()
    Memory.zeros(3, 4, coding)
    assert not (tmp_path / "rows").exists(), "nothing was written yet"
    end = finished(folder, coding)
    other = last(played(coding))
    assert len(list((tmp_path / "rows").iterdir())) == 2
    del other
    gc.collect()
    kept = [p.name for p in (tmp_path / "rows").iterdir()]
    del end
    gc.collect()
    assert [p.name for p in (tmp_path / "rows").iterdir()] == kept == [kept[0]]
    same(next(iter(played(Int8(), rounds=1))), next(iter(played(coding, rounds=1))))
    moved = tmp_path / "elsewhere"
    (tmp_path / "rows").rename(moved)
    plain = last(played(Int8()))
    same(plain, finished(folder, Int8(str(moved))))


def test_a_run_that_lost_its_file_is_told_so(folder: RunFolder) -> None:
    """Never the rows of another run or of another time."""
    coding = Int8(str(folder.path))
    seen = {}
    for s in played(coding):
        if s.t in (3, 6):
            folder.save_checkpoint(s.checkpoint)
            seen[s.t] = (folder.path / "checkpoint.npz").read_bytes()
    newest = resumed(folder, coding)
    (folder.path / "checkpoint.npz").write_bytes(seen[3])
    with pytest.raises(BadInput, match="after a newer checkpoint"):
        resumed(folder, coding)

    (folder.path / "checkpoint.npz").write_bytes(seen[6])
    one, two = played(coding, newest), played(coding, resumed(folder, coding))
    next(one), next(two)
    with pytest.raises(BadInput, match="changed by another run"):
        list(one)
    plain = last(played(Int8()))
    same(plain, last(two))

    rows = next(folder.path.glob("*.rows"))
    whole = rows.read_bytes()
    for damage, sentence in (
        (whole[:100], "cut off"),
        (whole[: files.FIRST + 8], "cut off"),
        (b"x" + whole[1:], "not a file of rows"),
    ):
        rows.write_bytes(damage)
        with pytest.raises(BadInput, match=sentence):
            resumed(folder, coding)
    rows.unlink()
    with pytest.raises(BadInput, match="is not there"):
        resumed(folder, coding)
    with pytest.raises(BadInput, match="cannot be read"):
        resumed(folder, Int8())


@every_coding
def test_a_byte_that_was_flipped_on_the_disk_is_found(coding: Any, folder: RunFolder) -> None:
    for s in played(coding(str(folder.path)), rounds=6):
        if s.t in (3, 6):
            folder.save_checkpoint(s.checkpoint)
    file, (rows,) = s.checkpoint.state.kept, folder.path.glob("*.rows")
    whole = rows.read_bytes()
    for client in np.flatnonzero(file.index >= 0).tolist():
        damaged = bytearray(whole)
        damaged[files.FIRST + int(file.index[client] + 1) * file.size - 1] ^= 1
        rows.write_bytes(damaged)
        with pytest.raises(BadInput, match=rf"{rows.name} was damaged: the row of client {client} is not"):
            resumed(folder, coding(str(folder.path)))
    rows.write_bytes(whole)
    same(last(played(coding())), finished(folder, coding(str(folder.path))))


def test_a_forked_process_leaves_the_file_alone(tmp_path: Path) -> None:
    files._remove(str(tmp_path / "none"), os.getpid())
    path = tmp_path / "file"
    path.touch()
    files._remove(str(path), os.getpid() + 1)
    assert path.exists()
    files._remove(str(path), os.getpid())
    assert not path.exists()


MANY = """
import sys, numpy as np
from fedstale.core import Round
from fedstale.memory import Int8
from fedstale.strategies import FedStale

def used(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024

n, d, m = 120_000, 1000, 6000
strategy, weights = FedStale(0.5, memory=Int8(sys.argv[1] or None)), np.full(n, 1 / n, np.float32)
updates = np.random.default_rng(0).standard_normal((m, d)).astype(np.float32)
memory, before = strategy.init(n, d), 0.0
for t in range(1, 21):
    clients = np.arange(m) + (t - 1) * m % n
    r = Round(t, updates[0], clients, updates, np.ones((m, 1), bool), updates[:, 0], weights, weights + 0.5)
    _, memory = strategy.aggregate(memory, r)
    before = before or used("VmRSS")
print(used("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_many_clients_stays_on_the_disk(tmp_path: Path) -> None:
    """120 MB of rows in a file do not stay in the process; in RAM they take what they are."""
    grown = []
    for where in (str(tmp_path), ""):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", MANY, where], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        grown.append(float(done.stdout))
    assert grown[0] < 60, f"{grown[0]} MB for a file"  # scratch of the pass itself, more without numba
    assert 60 < grown[1] < 200, f"{grown[1]} MB in RAM"


def test_more_rows_than_there_is_memory_for() -> None:
    """Only who is heard takes room: a million clients, 1.6 TB if all were."""
    n, d = 1_000_000, 400_000
    memory = Memory.zeros(n, d)
    for i in (999_999, 3):
        memory.write(i, np.full(d, i, np.float32), np.ones(1, np.bool_), 1)
    assert memory.row(3)[-1] == 3
    assert memory.row(999_999)[0] == 999_999
    assert not memory.row(4).any()
    assert memory.kept.count == 2

"""Secure aggregation over processes whose clients are killed: `python -m tools.secure_chaos --rounds 100`.

Every client is a process with a folder for its memory and a pipe to the server's process, which carries Flower's
messages as bytes. Clients kill themselves by SIGKILL in each of the four stages, when a message has come, when its
answer is ready and not sent, or when it is sent; they are started again for the next round. Printed for each rule:

* how far the step of any round is from that of a simulation that hears the same clients, against the tolerance,
* how far the server's sum of all memories is from what the clients hold, after any round,
* whether anything that the server's process has received is an update, a memory or a message without its mask.

The search is tried on a message without a mask first. Exit 1 if something does not hold.
"""

import argparse
import logging
import multiprocessing as mp
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedstale as fs
from fedstale.core.rng import stream
from fedstale.flower import FedStale, SecAgg, SecureMod
from fedstale.flower.federation.client.own_memory import read_memory
from fedstale.flower.secure_mod import SECURE
from fedstale.privacy.ring import Ring

N, D, SEED, FIRST = 8, 300, 1, 1000
STAGES, MOMENTS = ("train", "keys", "sum", "unmask"), ("received", "ready", "sent")
EXAMPLES = (20, 10, 30, 20, 40, 5, 20, 15)
TASK = fs.Quadratic.random(N, D, seed=3, noise=0.2)
LOCAL = fs.Local(lr=0.05, steps=3)
RULES = {"auto": fs.recipe("auto").strategy, "fedstale": fs.FedStale(0.5)}
TOLERANCE = 1e-4  # of an entry of a step, the largest of which is 0.2
DRIFT = N * SecAgg().ring.step  # of the sum of N rounded memories
Kills = dict[tuple[int, int], tuple[str, str]]  # (round, client) → stage, moment


def kills_of(rounds: int, seed: int) -> Kills:
    """Who kills itself when: up to two of the eight clients, or five in one of ten rounds; nobody in the first."""
    rng, found = np.random.default_rng(seed), Kills()
    for t in range(2, rounds + 1):
        many = 5 if rng.random() < 0.1 else rng.integers(0, 3)  # with five dead too few are left
        for k in rng.choice(N, many, replace=False).tolist():
            found[t, k] = STAGES[rng.integers(4)], MOMENTS[rng.integers(3)]
    return found


def client(k: int, folder: Path, rule: Any, kills: Kills, pipe: Any) -> None:
    """The process of a client: answers messages until it is killed; its secrets are copied for the search."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    context = Context(1, FIRST + k, {"partition-id": k, "own": str(folder)}, RecordDict(), {})
    mod, encode, t, own = SecureMod(rule), Ring.encode, 0, dict[str, Any]()

    def kept(ring: Ring, *given: Any) -> Any:
        codes = encode(ring, *given)
        np.savez(folder / f"secret-{t}.npz", codes=codes, h=given[2], **own)
        return codes

    def train(message: Message, context: Context) -> Message:
        w = (sent := message.content["arrays"]["w"].numpy()).copy()
        for batch in TASK.batches(k, LOCAL, stream(SEED, "local", t, k)):
            loss, gradient = TASK.gradient(w, k, batch)
            w -= np.float32(LOCAL.lr) * gradient
        own["update"] = w - sent
        metrics = MetricRecord({"num-examples": EXAMPLES[k], "train_loss": float(loss)})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)

    Ring.encode = kept  # type: ignore[method-assign]
    while True:
        message = message_from_proto(Proto.FromString(pipe.recv_bytes()))
        record = message.content.config_records[SECURE]
        stage, t = str(record["stage"]), int(record.get("round", t))
        die = lambda moment, now=(t, stage): kills.get((now[0], k)) == (now[1], moment) and _die()  # noqa: E731
        die("received")
        answer = message_to_proto(mod(message, context, train)).SerializeToString()
        die("ready")
        pipe.send_bytes(answer)
        die("sent")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Processes(Grid):
    """A grid whose nodes are processes; `received` is every byte that came from them."""

    def __init__(self, folder: Path, rule: Any, kills: Kills) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.folder, self.rule, self.kills, self.received = folder, rule, kills, list[bytes]()
        self.fork, self.sent, self.dead, self.t, self.stage = mp.get_context("forkserver"), 0, Counter[int](), 0, ""
        self.fork.set_forkserver_preload(["fedstale.flower.strategy", "fedstale.flower.secure_mod"])
        self.clients: dict[int, tuple[Any, Any]] = {k: self._started(k) for k in range(N)}

    def _started(self, k: int) -> tuple[Any, Any]:
        here, there = self.fork.Pipe()
        (self.folder / str(k)).mkdir(exist_ok=True)
        process = self.fork.Process(
            target=client, args=(k, self.folder / str(k), self.rule, self.kills, there), daemon=True
        )
        process.start()
        there.close()
        return process, here

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=FIRST + k, public_key=b"key %d" % k) for k in range(N)]

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        if not (asked := [*messages]):
            return []
        self.stage = str(asked[0].content[SECURE]["stage"])
        if self.stage == "train":  # a new round
            self.t = int(asked[0].content[SECURE]["round"])
            self._revive()
        for message in asked:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"m{self.sent}"
            pipe = self.clients[message.metadata.dst_node_id - FIRST][1]
            try:
                pipe.send_bytes(message_to_proto(message).SerializeToString())
            except OSError:
                continue  # it is dead
        return [reply for message in asked if (reply := self._reply(message)) is not None]

    def _reply(self, message: Message) -> Message | None:
        k = message.metadata.dst_node_id - FIRST
        process, pipe = self.clients[k]
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            process.join()
            return None
        self.received.append(data)
        if self.kills.get((self.t, k)) == (self.stage, "sent"):
            process.join()
        return message_from_proto(Proto.FromString(data))

    def _revive(self) -> None:
        for k, (process, _) in self.clients.items():
            if process.exitcode is not None:
                self.dead[-process.exitcode] += 1
                self.clients[k] = self._started(k)

    def stop(self) -> None:
        for process, _ in self.clients.values():
            process.kill()
            process.join()

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]


class Found(NamedTuple):
    """What came of a training."""

    steps: Any  # (rounds, d)
    heard: Any  # (rounds, n)
    drift: float  # the largest |H − Σ v_i h_i|
    total: float  # the largest |H|
    anew: int  # how often all memories began anew
    clipped: int


def trained(grid: Processes, rule: Any, rounds: int) -> Found:
    """Train, and look at the clients' memories after every round."""
    strategy = FedStale(rule, secure=SecAgg(), stop_after=None, fraction_evaluate=0.0)
    params, drifts, sizes, clipped = [TASK.init(0)], [0.0], [0.0], 0

    def look(t: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal clipped
        if t:
            params.append(arrays["w"].numpy().copy())
            state, held = strategy._training.population.checkpoint.state, np.zeros(D)
            for k in range(N):
                own = Context(1, FIRST + k, {"own": str(grid.folder / str(k))}, RecordDict(), {})
                mine = read_memory(own).counted(int(state.counted[k]), state.epoch)
                held += mine.weight * mine.h.astype(np.float64) if len(mine.h) else 0.0
            drifts.append(float(np.abs(state.total - held).max()))
            sizes.append(float(np.abs(state.total).max()))
            clipped += state.clipped
        return MetricRecord({})

    strategy.start(grid, ArrayRecord({"w": Array(params[0])}), num_rounds=rounds, evaluate_fn=look)
    names = {strategy._identities.names[FIRST + k]: k for k in range(N)}
    heard = np.zeros((rounds, N), np.bool_)
    for report in strategy.reports:
        heard[report.t - 1, [names[name] for name in report.heard]] = True
    epoch = strategy._training.population.checkpoint.state.epoch
    return Found(np.diff(np.array(params, np.float64), axis=0), heard, max(drifts), max(sizes), epoch, clipped)


def simulated(rule: Any, heard: Any) -> Any:
    """(rounds, d) the steps of a simulation that hears the same clients."""
    task = fs.Quadratic(TASK.centers, TASK.curvature, noise=TASK.noise, weights=EXAMPLES)
    run = fs.simulate(
        fs.Serial(task, LOCAL), rule, fs.Trace(heard), rounds=len(heard), seed=SEED, estimator=fs.Intervals()
    )
    return np.array([s.step for s in run], np.float64)


class Search:
    """Looks in what the server has received for what only the clients may know."""

    def __init__(self, folder: Path) -> None:
        self.secrets = [dict(np.load(path)) for path in sorted(folder.glob("*/secret-*.npz"))]

    def leaks(self, received: Iterable[bytes]) -> int:
        """How many secrets are in it: as floats, in a row of four, or as codes of a message, three at one place."""
        everything, arrays = b"".join(received), []
        for data in received:
            try:
                arrays += [a.numpy() for r in _arrays(data) for a in r.values()]
            except Exception:  # it is no message: its bytes are searched all the same
                continue
        return sum(self._has(secret, everything, arrays) for secret in self.secrets)

    def _has(self, secret: dict[str, Any], everything: bytes, arrays: list[Any]) -> bool:
        rows = [secret["update"].astype(np.float32), secret["h"].astype(np.float32)]
        plain = any(np.float32(row[:4]).tobytes() in everything for row in rows if row[:4].any())
        codes = secret["codes"]
        return plain or any(a.shape == codes.shape and ((a == codes) & (codes != 0)).sum() >= 3 for a in arrays)


def _arrays(data: bytes) -> Iterable[Any]:
    return message_from_proto(Proto.FromString(data)).content.array_records.values()


def unmasked(secret: dict[str, Any]) -> bytes:
    """A message of the third stage with its mask left out."""
    content = RecordDict({"masked": ArrayRecord({"masked": Array(secret["codes"])})})
    return bytes(message_to_proto(Message(content, dst_node_id=1, message_type="train")).SerializeToString())


class Verdict(NamedTuple):
    """What must hold, in numbers."""

    apart: float  # the largest distance of an entry of a step to the simulation's
    leaks: int  # secrets of clients in what the server has received
    planted: tuple[int, int]  # those that the search finds in a message without a mask, and in an update

    def holds(self, found: Found) -> bool:
        near = self.apart <= TOLERANCE and found.drift <= DRIFT and not found.clipped
        return near and not self.leaks and min(self.planted) > 0


def tried(name: str, rounds: int, seed: int) -> bool:
    """Train with a rule, print what came of it, and say whether everything holds."""
    rule, kills = RULES[name], kills_of(rounds, seed)
    with tempfile.TemporaryDirectory() as folder:
        grid = Processes(Path(folder), rule, kills)
        try:
            found = trained(grid, rule, rounds)
        finally:
            grid.stop()
        search = Search(Path(folder))
    some = search.secrets[0]
    planted = search.leaks([unmasked(some)]), search.leaks([some["update"].tobytes()])
    apart = float(np.abs(found.steps - simulated(rule, found.heard)).max())
    verdict = Verdict(apart, search.leaks(grid.received), planted)
    told(name, found, verdict, grid, Counter(stage for stage, _ in kills.values()), len(search.secrets))
    return verdict.holds(found)


def told(
    name: str, found: Found, verdict: Verdict, grid: Processes, stages: Mapping[str, int], secrets: int
) -> None:
    """Print what came of a training."""
    closed, entry = int((found.heard.sum(axis=1) >= 3).sum()), np.abs(found.steps).max()
    where = ", ".join(f"{stage} {stages[stage]}" for stage in STAGES)
    lines = (
        f"{name}: {len(found.heard)} rounds, {closed} with a sum; memories began anew: {found.anew}",
        f"clients killed by SIGKILL: {grid.dead[signal.SIGKILL]}; planned in {where}",
        f"steps: {verdict.apart:.1e} from the simulation (tolerance {TOLERANCE:.0e}, entries to {entry:.2g})",
        f"|H - sum a_i h_i|: at most {found.drift:.1e} (rounding {DRIFT:.1e}, |H| to {found.total:.2g})",
        f"entries cut at the range: {found.clipped}",
        f"received by the server: {len(grid.received)} messages, {sum(map(len, grid.received)):,} bytes",
        f"secrets of clients found in it: {verdict.leaks} of {secrets}",
        f"the same search in a message without a mask, in an update: {' and '.join(map(str, verdict.planted))}",
        "holds" if verdict.holds(found) else "DOES NOT HOLD",
    )
    print("\n  ".join(lines), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rules", nargs="+", default=[*RULES], choices=[*RULES])
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    failed = [name for name in asked.rules if not tried(name, asked.rounds, asked.seed)]
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

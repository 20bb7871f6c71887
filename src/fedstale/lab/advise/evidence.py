"""What is known about participation, in one form: from a trace, probabilities, an experiment or a run."""

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, BadInput, Floats, Mask, Mixes, Task, WarmsUp, WithTruth, keep, normalised, require
from fedstale.core.abilities import names_of
from fedstale.core.rng import stream
from fedstale.core.text_files import csv_lines, open_text
from fedstale.lab import build as catalogue
from fedstale.lab import schema
from fedstale.lab.runs.query import HEARD, NOT_SELECTED, recorded_presence
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.schema import Experiment
from fedstale.lab.spec import Spec, Table, build, override
from fedstale.participation import Bernoulli, LabelTied, Markov, MarkovClasses, Trace, TwoGroups
from fedstale.participation.files import BROKEN, read_array, read_arrays
from fedstale.participation.log import is_log
from fedstale.participation.trace import Recorded, matched
from fedstale.registry import CHANNELS, ESTIMATORS, PARTICIPATION

INDEPENDENT = (Bernoulli, TwoGroups, LabelTied, Markov, MarkovClasses)  # clients come independently of each other
DRAWN = 20_000  # most rounds that are simulated of any other participation
ENTRIES = 2**24  # most entries of that table


class Evidence(NamedTuple):
    """What is known about the participation of n clients, whatever it was taken from."""

    source: str  # what it was taken from, in words
    p: Floats  # (n,) chance that an update of client i is here
    weights: Floats  # (n,) a_i, sums to 1
    here: Mask | None = None  # (rounds, n) who was there; None: clients that come independently
    recorded: bool = False  # whether `here` happened, or was drawn
    mixing: Floats | None = None  # (n,) λ_i, where they are known rather than measured
    arrival: Floats | None = None  # (n,) chance that an update gets through; None: it always does
    d: int | None = None  # parameters of the model
    planned: int | None = None  # rounds of training
    believed: Floats | None = None  # (n,) p̂_i of the run's estimator
    known: bool = True  # whether training will know the p_i
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the clients, where they have names


def of_probs(p: Floats, weights: Floats | None) -> Evidence:
    """Clients that come independently, each with its own probability in (0, 1]: of others nothing can be said."""
    require(p.size > 0, "probs must be one chance per client, got none")
    bad = np.flatnonzero(~((p > 0) & (p <= 1)))
    got = ", ".join(f"{p[i]:g} for client {i}" for i in bad[:3].tolist())
    require(len(bad) == 0, f"probs must be in (0, 1], got {got}; leave out a client that never comes")
    return Evidence("the given probabilities", p, normalised(weights, len(p)))


def of_table(name: str, here: Mask, weights: Floats | None) -> Evidence:
    """A recording, rounds × clients."""
    return Evidence(name, here.mean(axis=0), normalised(weights, here.shape[1]), here, recorded=True, known=False)


def of_experiment(experiment: Experiment, weights: Floats | None) -> Evidence:
    """The participation and the channel of an experiment, with its task and rounds."""
    task = task_of(experiment)
    n = task.n
    part: Any = matched(catalogue.make_participation(experiment.participation, experiment.data), names_of(task))
    p = np.asarray(part.probs(n), np.float64)
    here, arrival = _table(part, n), arrival_of(experiment.channel, n, task.d)
    if here is not None and arrival is not None:
        here = here & (stream(0, "advise", "channel").random(here.shape) < arrival)
    return Evidence(
        source=f"{experiment.name}, participation {_kind(experiment.participation)}",
        p=p if arrival is None else p * arrival,
        weights=normalised(task.weights if weights is None else weights, n),
        here=here,
        recorded=isinstance(part, Recorded),
        mixing=np.asarray(part.mixing(n), np.float64) if isinstance(part, Mixes) else None,
        arrival=arrival,
        d=task.d,
        planned=experiment.rounds,
        known=_kind(experiment.estimator) == "known",
        names=names_of(task) or names_of(part),
    )


def with_task(e: Evidence, experiment: Experiment, weights: Floats | None) -> Evidence:
    """The same participation, with the model, weights and rounds of an experiment."""
    task = task_of(experiment)
    e = _in_order(e, names_of(task))
    n = len(e.p)
    require(task.n == n, f"the participation is of {n} clients, the experiment of {task.n}")
    a = normalised(task.weights if weights is None else weights, n)
    return e._replace(weights=a, d=task.d, planned=experiment.rounds)


def _in_order(e: Evidence, names: tuple[str, ...]) -> Evidence:
    """What is known, with the clients in the order of the task's, where both have names."""
    if not (names and e.names and e.here is not None):
        return e._replace(names=e.names or names)
    trace = Trace(e.here, clients_first=False)
    keep(trace, "names", e.names)
    here = np.asarray(matched(trace, names).recording())  # type: ignore[attr-defined]
    return e._replace(here=here, p=here.mean(axis=0), names=names)


def task_of(experiment: Experiment) -> Task:
    """The task that an experiment trains."""
    return catalogue.make_task(experiment.data, experiment.model.model_dump(), experiment.device)


def arrival_of(spec: Spec, n: int, d: int) -> Floats | None:
    """(n,) chance that an update gets through the channel; None if it always does."""
    arrival = np.asarray(build(spec, CHANNELS, "channel").probs(n, d), np.float64)
    return arrival if bool((arrival < 1).any()) else None


def of_run(folder: RunFolder, weights: Floats | None) -> Evidence:
    """The participation that the run has recorded so far, with its task if that can be loaded."""
    config, here = folder.config(), _there(folder)
    far = "finished" if folder.finished else f"{len(here)} of {config['rounds']} rounds so far"
    e = of_table(f"{folder.path.name}, {far}", here, weights)
    e = e._replace(names=tuple(folder.clients().get("name", ())))
    told = config["estimator"]["kind"] == "known"
    e = e._replace(believed=believed(config, here), planned=int(config["rounds"]), known=told)
    try:
        e = with_task(e, experiment_of(folder.path), weights)
        return e._replace(arrival=arrival_of(config["channel"], len(e.p), e.d or 1))
    except (BadInput, OSError) as error:  # elsewhere the data may be missing: the participation is still known
        return e._replace(weights=normalised(weights, len(e.p)), notes=(f"the task is left out: {error}",))


def _there(folder: RunFolder) -> Mask:
    """(rounds, clients) who was heard from, or there and not selected."""
    return np.isin(recorded_presence(folder).T, (HEARD, NOT_SELECTED))


def believed(config: Table, here: Mask) -> Floats | None:
    """(n,) what the estimator holds after these rounds: it sees nothing else. None if it was told the p_i."""
    estimator: Any = build(config["estimator"], ESTIMATORS, "estimator")
    if isinstance(estimator, WithTruth) or (isinstance(estimator, WarmsUp) and estimator.warmup_rounds):
        return None
    belief = estimator.init(here.shape[1])
    for row in here:
        belief = estimator.observe(belief, row)
    return np.asarray(estimator.probs(belief), np.float64)


def in_python(config: Table) -> bool:
    """Whether the task of a run was made in Python: it cannot be built again."""
    return bool({"content", "version"} & {*config["data"]})


def experiment_of(path: Path) -> Experiment:
    """The experiment that a run was part of; a participation that its folder only names by a hash is replayed."""
    folder = RunFolder(path)
    config = folder.config()
    made = f"{config['data'].get('dataset')} was made in Python and cannot be built from the run"
    require(not in_python(config), made)
    kept = ("rounds", "data", "local", "participation", "estimator", "channel", "server")
    raw = {key: config[key] for key in kept} | {"name": "advise", "algorithms": ["fedavg"]}
    raw |= {"model": config["model"]} if config["model"] else {}
    if "sha256:" in json.dumps(config["participation"]):
        table = _there(folder).astype(int).tolist()
        raw["participation"] = {"kind": "trace", "matrix": table, "clients_first": False}
        raw["channel"] = "lossless"  # what was lost is already missing in what was heard
    return schema.check(raw)


def _kind(spec: Spec) -> str:
    return spec if isinstance(spec, str) else str(spec.get("kind"))


def _table(part: Any, n: int) -> Mask | None:
    """(rounds, n): the recording, or simulated rounds of dependent clients; None for independent ones."""
    if isinstance(part, INDEPENDENT):
        return None
    if isinstance(part, Recorded):
        return part.recording(n)
    rounds = max(2, min(DRAWN, ENTRIES // n))
    return np.array([*itertools.islice(part.rows(n, stream(0, "advise")), rounds)])


def read_trace(path: Path, changes: list[str], clients_first: bool = False) -> tuple[Mask, tuple[str, ...]]:
    """(rounds, clients) of a 0/1 table, a log, an event list or a grid, and the clients' names, if it has any.

    `changes` are settings of it, key=value.
    """
    settings: dict[str, Any] = {}
    override(settings, *changes)
    own = path.is_dir()  # of a Flower app's run, or of a federation
    path = path / "trace.csv" if own else path
    kind = _recording_kind(path, settings)
    require(path.is_file(), f"there is no trace file {path}")
    ok = not clients_first or kind not in ("log", "events")  # these name their clients in every line
    require(ok, f"--clients-first is for a table of zeros and ones, got {path} of kind {kind}")
    settings |= {"clients_first": clients_first} if kind == "trace" and (clients_first or own) else {}
    part: Any = build({"kind": kind, catalogue.RECORDINGS[kind]: str(path), **settings}, PARTICIPATION, kind)
    table: Mask = part.recording()
    turned = clients_first and kind != "trace"
    return table.T if turned else table, () if clients_first else names_of(part)


def draw_trace(kind: str, n: int, rounds: int, changes: list[str]) -> tuple[Mask, Array]:
    """(rounds, n) of a participation process, drawn as by a run with seed 0, and its p (n,)."""
    settings: dict[str, Any] = {"kind": kind}
    override(settings, *changes)
    process: Any = build(settings, PARTICIPATION, "participation")
    rows = itertools.islice(process.rows(n, stream(0, "participation")), rounds)
    return np.array([*rows], np.bool_), process.probs(n)


def is_log_file(path: Path) -> bool:
    """Whether a file is a presence log."""
    return path.is_file() and _recording_kind(path, {}) == "log"


def recording_spec(path: Path, name: str, round: str) -> Table:
    """The participation of an experiment that replays a recorded file, which it calls `name`."""
    kind = _recording_kind(path, {})
    return {"kind": kind, catalogue.RECORDINGS[kind]: name} | ({"round": round} if kind == "log" else {})


def _recording_kind(path: Path, settings: dict[str, Any]) -> str:
    """Events have a column t_s or are JSON; a grid is an .npz file with an array `avail`, or `key` names one."""
    if ".json" in path.suffixes[-2:]:
        return "events"
    try:
        if path.suffix == ".npz":
            return "grid" if {"key", "unknown"} & {*settings} or "avail" in read_arrays(path) else "trace"
        if ".csv" in path.suffixes[-2:]:
            with open_text(path) as file:
                header, first = [*itertools.islice(csv_lines(file), 2), [], []][:2]
                return "events" if "t_s" in header else "log" if is_log(header, first) else "trace"
    except BROKEN:
        pass  # reading it says what is wrong
    return "trace"


def read_numbers(text: str, what: str) -> Floats:
    """`0.9,0.05`, or the path of a .npy or text file of numbers, or of a CSV file with a column p or share."""
    try:
        return np.array(text.replace(",", " ").split(), np.float64)
    except ValueError:
        pass
    path = Path(text)
    require(path.is_file(), f"{what} must be numbers such as 0.9,0.05 or a file of them; there is no file {text}")
    try:
        if path.suffix == ".npy":
            return np.asarray(read_array(path), np.float64).ravel()
        return np.array(_column(path.read_text(encoding="utf-8-sig")), np.float64)
    except (OSError, ValueError) as error:
        allowed = "numbers or a .npy, .csv or text file of them"
        raise BadInput(f"{what} must be {allowed}, got {text}: {error}") from None


def _column(text: str) -> list[str]:
    header = next(csv.reader(io.StringIO(text)), [])
    for name in ("p", "probs", "share", "weight"):
        if name in header:
            return [row[name] for row in csv.DictReader(io.StringIO(text))]
    return text.replace(",", " ").split()

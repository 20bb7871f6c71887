"""Runs that begin where others ended: a longer run of the same settings, and a fork from any other run."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from fedstale.core import BadInput, Checkpoint, require
from fedstale.lab.runs import checks, named, store
from fedstale.lab.runs.metrics import ROUND_KEYS
from fedstale.lab.runs.store import RunFolder

if TYPE_CHECKING:  # `fedstale show` reads runs without what plans them
    from fedstale.lab.plan import Planned

LAST = "last.npz"  # the checkpoint of a finished run, where it is small
SMALL = 2**21  # n · d up to which it is kept without being asked for: 8 MB
STATES = {
    "state": "strategy", "belief": "estimator", "server": "server", "channel": "channel", "defence": "defence",
}  # fmt: skip


class Begun(NamedTuple):
    """What a run begins with that goes on from another one, and what is said of it."""

    saved: Any  # (checkpoint, tally); None: it begins with round 1
    note: str
    before: RunFolder


def checkpoint_of(folder: RunFolder) -> Path | None:
    """The file of the latest checkpoint of a run, if it has one."""
    return next((path for name in ("checkpoint.npz", LAST) if (path := folder.path / name).exists()), None)


def shorter(p: "Planned") -> RunFolder | None:
    """The longest finished run in the store that differs from this one in having fewer rounds, if there is one."""
    found = alike(p.folder, p.config)
    return found[max(found)] if found else None


def alike(folder: RunFolder, config: Mapping[str, Any]) -> dict[int, RunFolder]:
    """By their rounds, the finished runs in the store that differ from this one in having fewer of them."""
    found = dict[int, RunFolder]()
    same = store.canonical({k: v for k, v in config.items() if k != "rounds"})
    for path in folder.path.parent.glob(f"{folder.path.name.rpartition('-')[0]}-*/config.json"):
        other = RunFolder(path.parent)
        if not other.finished or checks.damage(path.parent, [path.name]):
            continue
        theirs = store.read_json(path)
        rounds = int(theirs.pop("rounds"))
        shorter = store.canonical(theirs) == same and rounds < config["rounds"] and not other.damage
        if shorter and "stopped" not in other.result():
            found[rounds] = other
    return found


def go_on(p: "Planned", like: Any, due: Callable[[int], bool] | None = None) -> Begun | None:
    """The end of a shorter run of the same settings: this one has the bits of a run that was never stopped.

    With `due`, so do its lines of metrics, which are evaluated in these rounds alone; or it begins with round 1.
    """
    before = shorter(p)
    if before is None:
        return None
    who, path = p.title, checkpoint_of(before)
    try:
        require(path is not None, f"{before.path.name} kept no checkpoint (--keep-checkpoints does)")
        saved = store.read_tree(cast(Path, path), like)
    except BadInput as error:  # such as a file that a power cut has torn
        return Begun(None, f"{who} begins with round 1: {error}", before)
    _copy_metrics(before, p.folder, saved[0].t)
    if due and not _evaluated_when(p.folder, due):
        return None
    return Begun(saved, f"{who} goes on from round {saved[0].t} of {before.path.name}", before)


def _evaluated_when(folder: RunFolder, due: Callable[[int], bool]) -> bool:
    """Whether the rounds that are due are evaluated; the values of all others are taken out."""
    every = {*ROUND_KEYS, "epsilon"}
    lines = [(line, due(line["round"])) for line in folder.metrics()]
    ok = all(line.keys() - every for line, wanted in lines if wanted)
    every.remove("weights")  # they are recorded with what is evaluated
    kept = [line if wanted else {k: v for k, v in line.items() if k in every} for line, wanted in lines]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept if ok)
    (folder.path / "metrics.jsonl").write_text(text)
    return ok


def source(start: str | Path | RunFolder, out: Path) -> tuple[RunFolder, int]:
    """The run and the round that `RUN[@ROUND]` names; RUN is the folder of a run, or the name of one in a store.

    A run has its latest round, and those that shorter runs of the same settings ended with.
    """
    text = str(start.path if isinstance(start, RunFolder) else start)
    whole = "@" not in text or named.is_run(Path(text)) or named.is_run(out / text)  # a folder's name may have an @
    folder = named.one(text if whole else text.rpartition("@")[0], out)
    stored = alike(folder, folder.config()) | {_round(folder): folder}
    asked = str(max(stored)) if whole else text.rpartition("@")[2]
    rounds = ", ".join(map(str, sorted(stored, reverse=True)))
    ok = asked.isdecimal() and int(asked) in stored
    early = asked.isdecimal() and 0 < int(asked) < max(stored)
    way = f"; the same run with rounds = {asked} stores that round" if early else ""
    told = f"can be started from the rounds that are stored, {rounds}, got @{asked[:20]}{way}"
    require(ok, f"{folder.path.name} {told}")
    return stored[int(asked)], int(asked)


def started(planned: "Sequence[Planned]", start: str | Path | RunFolder | None) -> "Sequence[Planned]":
    """The runs, to begin where another one is (see `source`); None: with round 1."""
    return planned if start is None else [forked(p, *source(start, p.folder.path.parent)) for p in planned]


def _round(folder: RunFolder) -> int:
    path = checkpoint_of(folder)
    if path is None:
        require(folder.finished, f"{folder.path} has no checkpoint and is not finished: nothing can start from it")
        return int(folder.result()["rounds"])
    return int(_shapes(path)["items"]["0"]["items"]["0"]["value"])


def _shapes(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as file:
            return json.loads(str(file["structure"]))
    except Exception as error:  # damage shows as any error, as in the store
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def forked(p: "Planned", before: RunFolder, t: int) -> "Planned":
    """The run, to begin where another one is after round t; that is a part of its key."""
    rounds = p.config["rounds"]
    require(rounds > t, f"rounds must be above {t}, the round that {before.path.name} is at, got {rounds}")
    ours, theirs = p.config["data"].get("clients"), before.config()["data"].get("clients")
    require(ours == theirs, f"a run of {ours} clients cannot start from {before.path.name}, which has {theirs}")
    config = {k: v for k, v in p.config.items() if k != "warmup"} | {"start": {"run": before.path.name, "round": t}}
    folder = RunFolder(p.folder.path.parent / store.run_name(p.algorithm.label, p.seed, config))
    return p._replace(config=config, folder=folder, warmup=None, start=before)


def fork(p: "Planned", first: Checkpoint, like: Any) -> Begun:
    """The model of another run with the states of the parts that both share; other parts begin anew."""
    before = p.start
    assert before is not None
    t, config, path = p.config["start"]["round"], before.config(), checkpoint_of(before)
    fresh = _other_parts(p.config, config) if path else [*STATES.values()][:4]
    if path:
        anew: Any = {field: None for field, part in STATES.items() if part in fresh}
        saved = store.read_tree(path, like._replace(checkpoint=first._replace(**anew)))
        now = saved.checkpoint._replace(**{field: getattr(first, field) for field in anew})
        saved = saved._replace(checkpoint=now)
    else:
        kept: Any = {"params": before.params(), "buffers": before.buffers(), "clients": before.client_states()}
        saved = like._replace(checkpoint=first._replace(t=t, **kept))
    d, got = len(first.params), len(saved.checkpoint.params)
    require(got == d, f"{before.path.name} has a model of {got} parameters, this run one of {d}")
    _copy_metrics(before, p.folder, t)
    told = f"; {' and '.join(fresh)} begin{'s' * (len(fresh) == 1)} anew" if fresh else ""
    note = f"{p.title} starts from round {t} of {before.path.name}{told}"
    return Begun(saved, note, before)


def _other_parts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The parts whose settings differ, so that the state of one says nothing to the other."""
    pairs = {part: (ours.get(part), theirs.get(part)) for part in STATES.values()}
    return [part for part, (a, b) in pairs.items() if store.canonical({"": a}) != store.canonical({"": b})]


def _copy_metrics(before: RunFolder, folder: RunFolder, t: int) -> None:
    """The first t rounds of another run, which are this one's too."""
    folder.path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(before.path / "metrics.jsonl", folder.path / "metrics.jsonl")
    folder.open_metrics(t).close()

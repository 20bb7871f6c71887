"""Runs in order: a setting is what several algorithms share, a group is one algorithm over its seeds."""

import ast
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, require
from fedstale.lab.runs import checks, metrics, status
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.store import RunFolder, canonical

ALGORITHM = ("label", "strategy", "estimator", "server", "channel", "local", "algorithm_sources")
# the rest of a configuration is the setting
HOW = ("seed", "warmup", "engine")  # but for these: an engine changes how a run is computed, not what
KEYS = {"label": str, "seed": int, "rounds": int, "data": dict, "strategy": dict}  # that every configuration has
SILENT = 3  # rounds without an answer after which a client of a federation is called mute
# What a client did in a round; not selected: there, but left out by the rule; lost: asked, but nothing was used.
AWAY, HEARD, NOT_SELECTED, LOST = 0, 1, 2, 3
NAMED = {"heard": HEARD, "not_selected": NOT_SELECTED, "lost": LOST}  # by the key of a line
Line = dict[str, Any]  # of metrics.jsonl: one round
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
States = npt.NDArray[np.int8]  # (clients, rounds)


class Run(NamedTuple):
    """A run with what its folder says about it."""

    folder: RunFolder
    config: dict[str, Any]
    result: dict[str, Any] | None  # none: interrupted or diverged
    tuned: Mapping[str, Any] = {}  # of a run of `reproduce`: the algorithm's name, and the settings that it tunes

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def algorithm(self) -> str:
        """The label of its algorithm, in words and without what is tuned."""
        return label_in_words(self.tuned.get("algorithm", self.config["label"]))


class Group(NamedTuple):
    """One algorithm in one setting."""

    label: str
    runs: list[Run]  # finished, by seed
    broken: list[Run]  # without a result
    note: str = ""  # how a rate was chosen, where one was

    @property
    def all(self) -> list[Run]:
        """Finished or not."""
        return self.runs + self.broken

    @property
    def config(self) -> dict[str, Any]:
        """Of its first run; the others differ in the seed, and perhaps in the engine."""
        return self.all[0].config

    def values(self, name: str, which: str) -> list[float]:
        """Of each seed; `which` is final, last10 or best."""
        return [r.result[name][which] for r in self.runs if r.result and name in r.result]


class Setting(NamedTuple):
    """What several algorithms share, and the algorithms."""

    config: dict[str, Any]
    groups: list[Group]


def settings(folders: Iterable[RunFolder]) -> list[Setting]:
    """The runs by setting and algorithm, each run once; a warm-up is no run of its own.

    A warning names a run whose configuration cannot be read; the others go on. So it does with a damaged model.
    """
    unique = {f.path.resolve(): f for f in folders}.values()
    read = [r for r in map(load, unique) if r]
    for why in filter(None, (checks.damage(r.folder.path, checks.OF_MODEL) for r in read if r.result)):
        warnings.warn(why, stacklevel=2)
    warm = {(r.folder.path.parent, r.config["warmup"]) for r in read if "warmup" in r.config}
    of_own = [r for r in read if (r.folder.path.parent, r.folder.path.name) not in warm]
    places = grouped(of_own, lambda r: canonical(setting_of(r)))
    return [Setting(setting_of(some[0]), _groups(some)) for some in places.values()]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, in the order in which the keys come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def load(folder: RunFolder) -> Run | None:
    """A run with its configuration and result; None, and a warning, where they cannot be read."""
    try:
        config, result = folder.config(), _result(folder)
        lacking = [key for key, kind in KEYS.items() if not isinstance(config.get(key), kind)]
        require(not lacking, f"{folder.path} is not a run: its config.json has no {' and no '.join(lacking)}")
        return Run(folder, config, result, config.pop("tuned", {}))
    except BadInput as error:
        warnings.warn(f"a run is left out: {error}", stacklevel=3)
        return None


def _result(folder: RunFolder) -> dict[str, Any] | None:
    """The result of a finished run; of a damaged one none, and a warning."""
    try:
        checks.require_result_file(folder.path)
        return folder.result() if (folder.path / "result.json").exists() else None
    except BadInput as error:
        warnings.warn(f"the run counts as unfinished, and --resume computes it again: {error}", stacklevel=4)
        return None


def setting_of(r: Run) -> dict[str, Any]:
    """What a run shares with other algorithms: its configuration without the algorithm and the seed."""
    shared = {key: value for key, value in r.config.items() if key not in (*ALGORITHM, *HOW)}
    parts = canonical({key: r.config.get(key) for key in ALGORITHM})
    sources = {name: of for name, of in shared.pop("sources", {}).items() if f'"{name}"' not in parts}
    shared |= {"sources": sources} if sources else {}  # those of the algorithm's own parts are not shared
    if isinstance(clock := shared.get("clock"), dict):  # an algorithm may have a pace of its own
        shared["clock"] = {key: value for key, value in clock.items() if key != "pace"}
    if "warmup" not in r.config:
        return shared
    before = RunFolder(r.folder.path.parent / r.config["warmup"])
    known = before.config() if (before.path / "config.json").exists() else {"rounds": "?"}
    return shared | {"warmup": {key: known[key] for key in ("rounds", "local") if key in known}}


def _groups(runs: Iterable[Run]) -> list[Group]:
    groups = []
    for seeds in grouped(runs, lambda r: canonical(_parts(r.config, (*ALGORITHM, "sources")))).values():
        finished_last = sorted(seeds, key=lambda r: r.result is not None)  # and counts, if a seed comes twice
        ordered = sorted({r.seed: r for r in finished_last}.values(), key=lambda r: r.seed)
        broken = [r for r in ordered if r.result is None]
        label = label_in_words(seeds[0].config["label"])
        groups.append(Group(label, [r for r in ordered if r.result], broken))
    return _distinct(groups)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """The same with a name for each: what differs is added where two have one name, and a number if need be."""
    found = []
    for label, some in grouped(groups, lambda g: g.label).items():
        keys = [key for key in apart(some) if key.endswith((".kind", "lr", "beta"))][:2]
        told = [", ".join(f"{k} {flat(g.config).get(k)}" for k in keys) for g in some]
        for k, g in enumerate(some):
            more = [told[k]] if told[k] else []
            more += [f"no. {k + 1}"] if told.count(told[k]) > 1 else []
            found.append(g._replace(label=f"{label} ({', '.join(more)})") if len(some) > 1 else g)
    return found


def apart(groups: Sequence[Group]) -> list[str]:
    """The settings of an algorithm's parts in which groups differ."""
    return [key for key in varying([_parts(g.config) for g in groups]) if not key.startswith("algorithm_sources")]


def _parts(config: Mapping[str, Any], keys: Sequence[str] = ALGORITHM[1:]) -> dict[str, Any]:
    pace = {"pace": config["clock"]["pace"]} if isinstance(config.get("clock"), dict) else {}
    return {key: config.get(key) for key in keys} | pace


def tuned(setting: Setting) -> Setting:
    """Of an algorithm at several settings the best, as `fedstale run` and `reproduce` choose it."""
    families: dict[str, list[tuple[str, str, Group]]] = {}
    for g in setting.groups:
        of = g.all[0].tuned
        name, settings = g.all[0].algorithm, of.get("settings", {})
        rate = " ".join(f"{k}={v:g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in settings.items())
        touched = {"local", "server"} if rate else set()  # what is tuned may be a setting of any part
        others = [key for key in settings if key not in g.config.get("local", {})]
        touched |= {key.partition(".")[0] if "." in key else "strategy" for key in others}
        rest = {k: v for k, v in _parts(g.config).items() if k not in touched}
        families.setdefault(canonical({"name": name, **rest}), []).append((name, rate, g))
    chosen = []
    for members in families.values():
        by = members[0][2].all[0].tuned.get("by", OBJECTIVE)
        apart = {seed for _, _, g in members for r in g.all for seed in r.tuned.get("seeds", [])}
        name, rate, best = min(members, key=lambda m: tuning_score([r.result for r in _on(m[2], apart).all], by))
        seeds = f"seeds {', '.join(map(str, sorted(apart)))}" if apart else "these seeds"
        best_of = f", of {len(members)} the one of best {metrics.metric(by).label} on {seeds}"
        note = rate + best_of * (len(members) > 1)
        chosen.append(_on(best, apart, other=True)._replace(label=name, note=note))
    return setting._replace(groups=_distinct(chosen))


def _on(g: Group, seeds: Collection[int], other: bool = False) -> Group:
    """The runs of these seeds, or all if there are none; with `other`, those of the other seeds."""
    runs, broken = ([r for r in some if (r.seed in seeds) is not other] for some in (g.runs, g.broken))
    found = g._replace(runs=runs, broken=broken)
    return found if found.all else g


def tuning_score(results: Sequence[Mapping[str, Any] | None], by: str = OBJECTIVE) -> float:
    """Mean over the seeds of a metric in the last 10 rounds, the less the better; infinite if a run has none."""
    sign = -metrics.metric(by).score(1.0)
    values = [sign * float(r[by]["last10"]) if r and by in r else math.inf for r in results]
    mean = float(np.mean(values))
    return mean if math.isfinite(mean) else math.inf


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"local": {"lr": 1}}` → `{"local.lr": 1}`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys that are not the same in all of them."""
    flats = [flat(c) for c in configs]
    keys = list(dict.fromkeys(key for f in flats for key in f))
    return [key for key in keys if len({canonical({"": f.get(key)}) for f in flats}) > 1]


def in_words(value: Any) -> str:
    """A setting as people read it: `sampling(size=100, base=bernoulli(p=0.1))`; long lists are cut."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}={in_words(v)}" for key, v in value.items() if key != "kind" and v is not None)
        return f"{value['kind']}({inner})" if "kind" in value and inner else str(value.get("kind", inner))
    if isinstance(value, list | tuple):
        shown = ", ".join(map(in_words, value[:8] if len(value) <= 8 else value[:3]))
        return f"[{shown}]" if len(value) <= 8 else f"[{shown}, … {len(value)} values]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def label_in_words(label: str) -> str:
    """A label as people read it: `clipped strategy=fedavg`, where a run's key has `{'kind': 'fedavg'}`."""
    start = label.find("{")
    for stop in [k + 1 for k, c in enumerate(label) if c == "}" and 0 <= start < k]:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):  # it ends there, or somewhere behind
            if isinstance(table := ast.literal_eval(label[start:stop]), dict) and table:
                return label[:start] + in_words(table) + label_in_words(label[stop:])
    return label


def run_row(folder: RunFolder) -> dict[str, Any]:
    """What a run is, how far it got, and the final value of its main metric; a damaged run says what is damaged."""
    row: dict[str, Any] = dict.fromkeys(("name", "algorithm", "seed", "lr", "engine", "state", "round", "rounds"))
    row |= {"name": folder.path.name, "metric": None, "final": None, "megabytes": None, "hours": None}
    try:
        checks.require_result_file(folder.path)
        config = folder.config()
        row |= {key: config.get(key) for key in ("seed", "engine", "rounds")}
        row |= {"algorithm": label_in_words(str(config.get("label", ""))), "lr": flat(config).get("local.lr")}
        result = folder.result() if (folder.path / "result.json").exists() else {}
        row["state"] = status.state(folder)
        row["round"] = result["rounds"] if result else len(folder.metrics())
        for m in metrics.shown(result, main=config.get("main"))[:1]:
            row |= {"metric": m.name, "final": float(result[m.name]["final"])}
        if "bytes_up" in result:
            row["megabytes"] = (result["bytes_up"] + result["bytes_down"]) / 1e6
        if "clock" in result:
            row["hours"] = result["clock"]["seconds"] / 3600
    except (BadInput, KeyError, TypeError, ValueError) as error:
        row["state"] = "damaged: " + str(error).removeprefix(f"{folder.path}/")
    return row


def origin(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Where a run comes from, in words; nothing if it began with round 1."""
    if start := config.get("start"):
        return f"started from {start['run']}, round {start['round']}"
    return f"continued from {environment['continued']}" if "continued" in environment else ""


def recorded_presence(folder: RunFolder) -> States:
    """(clients, rounds) what each client did, as far as the run got; see `presence`."""
    lines = folder.metrics()
    require(len(lines) > 0, f"{folder.path} has no rounds yet")
    require(names_clients(lines), f"{folder.path} has too many clients for its rounds to name them one by one")
    return presence(folder.config(), lines)


def readable(folder: RunFolder) -> list[Line]:
    """The metrics of a run; where they are damaged or missing nothing, and a warning that names them."""
    try:
        lines = folder.metrics()
        require(len(lines) > 0, f"{folder.path}/metrics.jsonl is empty or missing")
        return lines
    except BadInput as error:
        warnings.warn(f"a run is left out: {error}", stacklevel=2)
        return []


def client_values(folder: RunFolder) -> dict[str, list[float | None]]:
    """What a run says of each client; where that is damaged nothing, and a warning that names it."""
    try:
        return folder.clients()
    except BadInput as error:
        warnings.warn(f"the values of clients are left out: {error}", stacklevel=2)
        return {}


def curve(seeds: Sequence[Sequence[Line]], name: str) -> tuple[list[int], Floats]:
    """The rounds in which every seed has the number, and its values (seeds, rounds)."""
    values = [
        {line["round"]: line[name] for line in lines if isinstance(line.get(name), int | float)} for lines in seeds
    ]
    rounds = sorted(set[int].intersection(*map(set, values))) if values else []
    table = np.array([[of[t] for t in rounds] for of in values], np.float64)
    return rounds, table.reshape(len(values), len(rounds))


def over_time(seeds: Sequence[Sequence[Line]], name: str, points: int, end: float) -> tuple[Floats, Floats]:
    """Seconds from the first at which every seed has the number, and its latest values there (seeds, points)."""
    told = [[(of["seconds"], of[name]) for of in lines if isinstance(of.get(name), int | float)] for lines in seeds]
    at = np.linspace(max((of[0][0] for of in told), default=0.0), end, points)
    rows = [np.array(of)[np.searchsorted([s for s, _ in of], at, side="right") - 1, 1] for of in told]
    return at, np.array(rows, np.float64).reshape(len(told), points)


def names_clients(lines: Sequence[Line]) -> bool:
    """Whether every round names the clients that were heard from; it does not where they are too many."""
    return all("heard" in line for line in lines)


def clients(config: Mapping[str, Any], lines: Sequence[Line]) -> int:
    """The number of clients, also of those that never came; with early exits a client is a (node, exit) pair."""
    traced = next((len(line["weights"]) for line in lines if "weights" in line), 0)
    seen = (max(line[key]) for line in lines for key in NAMED if line.get(key))
    return max(traced or int(config.get("data", {}).get("clients", 0)), max(seen, default=-1) + 1)


def presence(config: Mapping[str, Any], lines: Sequence[Line]) -> States:
    """(clients, rounds): AWAY, HEARD, NOT_SELECTED or LOST, from lines that name the clients."""
    states = np.zeros((clients(config, lines), len(lines)), np.int8)
    for key, state in NAMED.items():
        named = [line.get(key, ()) for line in lines]
        who = np.fromiter(itertools.chain.from_iterable(named), np.int64)
        states[who, np.repeat(np.arange(len(lines)), [len(some) for some in named])] = state
    return states


def ages(states: States) -> npt.NDArray[np.int64]:
    """(clients, rounds): after each round, the rounds since a client was last heard from."""
    rounds = np.arange(1, states.shape[1] + 1)
    return np.asarray(rounds - np.maximum.accumulate(np.where(states == HEARD, rounds, 0), axis=1))


def mute(lines: Sequence[Line]) -> list[int]:
    """The clients of a federation that did not answer in the last SILENT rounds that asked them."""
    found, decided = dict[int, int](), set[int]()
    for line in reversed(lines):
        absent = {*line.get("absent", ())} - decided
        decided |= {*line.get("asked", ())} - absent
        for client in absent:
            found[client] = found.get(client, 0) + 1
    return sorted(client for client, rounds in found.items() if rounds >= SILENT)

"""From a part's settings to the part, and back: build, describe, the parts of an algorithm, dotted overrides."""

import copy
import dataclasses
import functools
import hashlib
import json
import tomllib
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from fedstale import core, registry
from fedstale.core import BadInput, Local, check_types, known, require, shown
from fedstale.core.local import OURS
from fedstale.core.parts import alternatives, opened
from fedstale.defence import Defence, Liars
from fedstale.memory import Coding
from fedstale.participation.clock import Clock, Latency, Pace
from fedstale.participation.profiles import Profile
from fedstale.privacy.ledger import Privacy

Table = dict[str, Any]
Field = dataclasses.Field[Any]
Spec = str | Table  # a part: its name, or a table with `kind` and the part's settings
NESTED: Mapping[Any, registry.Names] = {
    core.Strategy: registry.STRATEGIES, core.Participation: registry.PARTICIPATION, core.Server: registry.SERVERS,
    Coding: registry.MEMORIES, core.Schedule: registry.SCHEDULES, core.Workload: registry.WORKLOADS,
    Profile: registry.PROFILES, Pace: registry.PACES, Latency: registry.LATENCIES,
}  # by type hint  # fmt: skip
LOCAL_ALWAYS = ("lr", "steps", "batch", "decay", "prox")  # in every run's key
AMOUNTS = {"steps", "epochs", "work"}  # one of them says how much a client trains
PARTS = {"estimator": registry.ESTIMATORS, "server": registry.SERVERS, "channel": registry.CHANNELS}
ELSEWHERE = {  # names that people look for among the algorithms, and what they are here
    "fedavgm": 'server = { kind = "momentum" }', "fedadam": 'server = { kind = "adam" }',
    "fedyogi": 'server = { kind = "yogi" }', "fedprox": "prox = 0.1 in [local]",
    "fedbn": 'buffers = "local" in [model]', "fedper": "personal in [model]",
}  # fmt: skip
SECTIONS = {"defence": Defence, "liars": Liars, "privacy": Privacy, "clock": Clock}  # that runs may do without
LOCAL_KEYS = tuple(f.name for f in dataclasses.fields(Local))


class Algorithm(NamedTuple):
    """The parts of one algorithm."""

    label: str
    strategy: core.Strategy
    estimator: core.Estimator
    server: core.Server
    channel: core.Channel
    local: Local
    pace: Pace | None = None  # instead of the clock's; a part of the run's clock, not of the algorithm's key

    def described(self) -> Table:
        """The settings of all parts, for a run's key."""
        tables = {"strategy": registry.STRATEGIES, **PARTS}
        parts = {key: describe(getattr(self, key), names) for key, names in tables.items()}
        return {"label": self.label, **parts, "local": describe_local(self.local)}


def describe_local(local: Local) -> Table:
    """The table that builds these settings again: of the later settings only those that are not the default."""
    return _settings(local, later=lambda f: f.name not in LOCAL_ALWAYS)


def algorithm(
    spec: Spec,
    where: str,
    *,
    local: Table,
    estimator: Spec,
    server: Spec = "sgd",
    channel: Spec | None = "lossless",
) -> Algorithm:
    """The parts that an entry such as "auto" or {kind = "fedstale", beta = 0.3, estimator = "intervals"} names.

    What the entry says wins over its recipe, and the recipe over the arguments, which are the file's settings.
    `channel = None` is for a real network: the entry cannot have one.
    """
    entry = as_table(spec, where)
    recipe = _recipe(entry, f"{where}.kind")
    parts: Table = {"estimator": recipe.estimator_spec or estimator, "server": server}
    parts |= {} if channel is None else {"channel": channel}
    own = ("kind", "label", *parts, *LOCAL_KEYS, *(() if channel is None else ("pace",)))
    settings = {key: value for key, value in entry.items() if key not in own}
    rule = registry.STRATEGIES.find(recipe.kind, f"{where}.kind")
    for key in settings:
        known(key, dict.fromkeys([*settings_of(entry, where), *own]), f"{where} setting")
    strategy = make(rule, {**recipe.settings, **settings}, where)
    core.check_hooks(strategy)
    changed = ", ".join(f"{key}={value}" for key, value in settings.items())
    label = entry.get("label", entry["kind"] + (f" {changed}" if changed else ""))
    require(isinstance(label, str), f"{where}.label must be a text, got {shown(label)}")
    parts = {"channel": "lossless"} | parts | {key: entry[key] for key in parts if key in entry}
    built = {key: build(parts[key], names, key) for key, names in PARTS.items()}
    training = _local(local, {key: entry[key] for key in LOCAL_KEYS if key in entry}, where)
    pace = build(entry["pace"], registry.PACES, f"{where}.pace") if "pace" in entry else None
    return Algorithm(label, strategy, **built, local=training, pace=pace)


def settings_of(spec: Spec, where: str) -> dict[str, Any]:
    """The settings of the strategy that an entry names, with their defaults."""
    rule = registry.STRATEGIES.find(_recipe(as_table(spec, where), f"{where}.kind").kind, f"{where}.kind")
    return {f.name: f.default for f in dataclasses.fields(rule) if f.init}


def _local(local: Table, own: Table, where: str) -> Local:
    """Local training as the file says, changed by the settings of one entry."""
    other = {*AMOUNTS, "drop_last"} if AMOUNTS & {*own} else set()
    other |= {"momentum", "nesterov"} if "optimizer" in own else set()  # they are settings of the file's optimizer
    other |= {*OURS} if own.get("train") else set()
    made: Local = make(Local, {key: value for key, value in local.items() if key not in other} | own, where)
    kind = made.optimizer.get("kind") if isinstance(made.optimizer, Mapping) else made.optimizer
    for name, value in {"optimizer": kind, "train": made.train}.items():
        if registry.OWN.fullmatch(str(value)):
            registry.own_object(str(value), f"{where}.{name}")
    if made.train is not None:
        made.loop()  # refuses what cannot be called as a training loop is
    return made


def _recipe(entry: Table, where: str) -> registry.Recipe:
    """The recipe that an entry names, or one of the strategy alone."""
    require("kind" in entry, f"{where} is missing; known: {', '.join(registry.RECIPES)}")
    kind, found = entry["kind"], registry.Recipe(entry["kind"])
    if not (isinstance(kind, str) and registry.OWN.fullmatch(kind)):
        fixed = f'{where}: FedStale has a fixed beta; the rule that learns it is kind "auto" (SelfTuning)'
        require(not (kind == "fedstale" and entry.get("beta") == "auto"), fixed)
        other = ELSEWHERE.get(str(kind).lower().replace("-", ""))
        require(other is None, f"{where}: {kind} is no rule of its own here: it is fedavg with {other}")
        known(kind, dict.fromkeys([*registry.RECIPES, *registry.STRATEGIES]), where)
        found = registry.RECIPES.get(kind, found)
    if "strategy" not in entry:
        return found
    inside = where.removesuffix("kind") + "strategy"
    inner = _recipe(as_table(entry["strategy"], inside), f"{inside}.kind")  # whose estimator is the wrapper's, too
    return found._replace(estimator_spec=found.estimator_spec or inner.estimator_spec)


def as_table(spec: object, where: str) -> Table:
    """A part's name and settings as a table."""
    if isinstance(spec, str):
        return {"kind": spec}
    if not isinstance(spec, Mapping):
        raise BadInput(f"{where} must be a name or a table with `kind`, got {shown(spec)}")
    return dict(spec)


def build(spec: object, names: registry.Names, where: str) -> Any:
    """The part that a name, or a table with `kind` and settings, asks for; a part is returned as it is."""
    if dataclasses.is_dataclass(spec):
        return spec
    settings = as_table(spec, where)
    if names is registry.STRATEGIES and "kind" in settings:
        named = _recipe(settings, f"{where}.kind")
        settings = {**named.settings, **settings, "kind": named.kind}
    require("kind" in settings, f"{where}.kind is missing; known: {', '.join(names)}")
    return make(names.find(settings.pop("kind"), f"{where}.kind"), settings, where)


_hints = functools.cache(typing.get_type_hints)


def make(cls: Any, settings: Table, where: str) -> Any:
    """A part of this class: every setting is checked against the type of its field, then by the part."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in settings:
        known(key, fields, f"{where} setting")
    needed = [name for name, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in settings]
    everybody = '; everybody is base = { kind = "bernoulli", p = 1.0 }' * ("base" in missing)
    require(not missing, f"{where} ({cls.__name__}) needs {' and '.join(missing)}{everybody}")
    hints = _hints(cls)
    values = {key: _value(hints[key], value, f"{where}.{key}") for key, value in settings.items()}
    try:
        part = cls(**values)
        check_types(cls, values)  # those of a user's own dataclass too
        return part
    except Exception as error:  # BadInput, or whatever a user's own part raises
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise BadInput(f"{where}: {' '.join(text.split())}") from error


def make_section(name: str, given: bool | Table | None) -> Any:
    """The part that a section of this name describes by its settings, or by `true`; None without one."""
    return None if given is None or given is False else make(SECTIONS[name], {} if given is True else given, name)


def described_clock(clock: Clock | None) -> Table:
    """The clock as a part of a run's configuration; nothing without one."""
    return {} if clock is None else {"clock": _settings(clock)}


def settings_in(part: Any) -> Table:
    """The settings of a part that are not the default, as a table in a file has them."""
    told = [f for f in dataclasses.fields(part) if not _has_default(part, f)]
    return {f.name: list(x) if isinstance(x := getattr(part, f.name), tuple) else x for f in told}


def describe(part: Any, names: registry.Names) -> Table:
    """The table that builds this part again; an array or a file is named by its content.

    A setting that came later (LATER) is left out where it has its default, so that stored runs stay valid.
    """
    return {"kind": names.name_of(part)} | _settings(part)


def _settings(part: Any, later: Callable[[Field], bool] = lambda f: "later" in f.metadata) -> Table:
    told = [f for f in dataclasses.fields(part) if f.init and not (later(f) and _has_default(part, f))]
    return {f.name: _plain(getattr(part, f.name)) for f in told}


def _has_default(part: Any, field: Field) -> bool:
    """Whether a setting has its default; an array is compared as a whole."""
    value, default = getattr(part, field.name), cast(Any, field.default)
    return np.array_equal(value, default) if isinstance(value, np.ndarray) else bool(value == default)


def _plain(value: Any) -> Any:
    for names in NESTED.values():
        if dataclasses.is_dataclass(value) and all(hasattr(value, method) for method in names.methods):
            return describe(value, names)
    if isinstance(value, np.ndarray) and value.size > 64:
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"{value.dtype}{list(value.shape)} sha256:{digest}"
    return value.tolist() if isinstance(value, np.ndarray) else value


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value of a setting as its field wants it: a nested part built, a list as a tuple, 1 as 1.0."""
    kinds = alternatives(hint)
    for names in (names for kind, names in NESTED.items() if kind in kinds):
        if not (value is None and type(None) in kinds):
            return build(value, names, where)
    if isinstance(value, list) and typing.get_origin(opened(hint)) is tuple:
        return tuple(value)
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return float(value) if whole and float in kinds and int not in kinds else value


def override(raw: Table, *changes: str) -> None:
    """Put each `a.b.0.c=value` in its place; the value is read as TOML, or as a word."""
    for change in changes:
        key, eq, text = change.partition("=")
        require(bool(eq and key), f"an override is key=value, got {shown(change)}")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except (tomllib.TOMLDecodeError, RecursionError, ValueError):
            value = text
        put(raw, key.strip(), value)


def as_toml(value: object) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def put(raw: Table, key: str, value: Any) -> None:
    """Set `a.b.0.c` in nested tables and lists; a bare name on the way becomes a table that can take settings."""
    *path, last = key.split(".")
    here: Any = raw
    for name in path:
        place = _place(here, name, key)
        if isinstance(here, dict):
            here.setdefault(place, {})
        if isinstance(here[place], str):
            here[place] = {"kind": here[place]}
        here = here[place]
    here[_place(here, last, key)] = copy.deepcopy(value)


def _place(here: Any, name: str, key: str) -> int | str:
    """Where in a table or a list a step of a dotted key leads."""
    if isinstance(here, dict):
        return name
    if not isinstance(here, list):
        what = f"what stands before {shown(name)} has no settings of its own, it is {shown(here)}"
        raise BadInput(f"{shown(key)}: {what}")
    ok = name.isdecimal() and int(name) < len(here)
    require(ok, f"{shown(key)}: the list has {len(here)} entries, got {shown(name)}")
    return int(name)

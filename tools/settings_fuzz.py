"""Hostile settings by the thousand: `python -m tools.settings_fuzz --cases 5000 --seed 7`.

Every case puts hostile values into some keys of an experiment, into the settings of a part that the registry
lists, into the arguments of a public function, or into an override. What must hold: the result is a valid object,
or BadInput with a sentence of one line. Nothing is accepted in silence: an object has the values that it was given,
none of them nan or of another type, and a setting that changes changes the runs.
Without --seed a fresh one is drawn and printed, so that a failure can be repeated.
"""

import argparse
import copy
import dataclasses
import datetime
import inspect
import math
import random
import secrets
import sys
import traceback
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedstale as fs
from fedstale.core import BadInput, Local
from fedstale.lab import schema
from fedstale.lab.plan import plan
from fedstale.lab.runs.store import canonical
from fedstale.lab.spec import describe, make, override
from fedstale.registry import TABLES, Names


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


NAMES = [name for table in TABLES.values() for name in table]
CLASSES = [(table, cls) for table in TABLES.values() for cls in table.values() if dataclasses.is_dataclass(cls)]
WHOLE = {
    "clock": fs.Clock,
    "privacy": fs.Privacy,
    "defence": fs.defence.Defence,
    "liars": fs.defence.Liars,
}  # a section each
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 10**6, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, -0.0, 0.1, 0.5, 1.5,
    1e-320, 1e308, math.nan, math.inf, -math.inf, "", " ", "word", "0.5", "1", "nan", "auto", "\0", "a\0b", "../..",
    "/", "~", "x" * 5000, "é" * 300, "{}", "%s", "a\nb", "os:getcwd", "no.such:Thing", "json:JSONDecoder", ":",
    "fedstale.core:Local", "a:b:c", "../mine:R", [], [[]], [1, [2]], [True], ["x"], [0.5, math.nan], [None], [{}],
    [0.5, 10**400], [[0, 1], [1]], [[0, 1], [1, 0]], [-1], [2**63], nested(10), nested(5000), {}, {"kind": 5},
    {"kind": None}, {"kind": "x"}, {"kind": ["a"]}, {"kind": {"kind": "sgd"}}, {"": 1}, {"a": {"b": [1]}},
    {"kind": "sgd", "lr": {"kind": "sgd"}}, {"kind": "bernoulli", "p": 0.5}, {"kind": "int8", "folder": 3},
    datetime.date(2024, 1, 1), datetime.time(1), datetime.datetime(2024, 1, 1), ["a", "b"], [1, 2, 3, 4], (0, 1),
    [["d", "v", 0, "AVL_TRAIN"]], 1e-9, "experiments",
]  # fmt: skip
SPOTS = {"participation": "participation", "estimator": "estimators", "channel": "channels", "server": "servers"}
MILD = [True, False, 0, 1, 2, 3, 8, 0.5, 2.0, "word", "accuracy", "1", [], [1], [0.5], [[1.0, 2.0]] * 4, {}]
UNKEYED = ("name", "device")  # change no number
MADE = ("algorithms", "local", *SPOTS)  # of parts, whose settings may be their defaults
TABLE = Path(__file__).parent / "patients.csv"
BASES: list[dict[str, Any]] = [
    {"data": {"dataset": "quadratic", "clients": 4}},
    {"data": {"dataset": "synthetic", "clients": 4}},
    {"data": {"dataset": "digits", "clients": 4}, "model": {"kind": "mlp"}},
    {"data": {"csv": str(TABLE), "client": "site", "label": "ill"}},
    {"data": {"dataset": "digits", "clients": 7, "cis": {"widths": [4, 2, 1], "mix": [5.0, 15.0, 80.0]}}},
]
REST = {
    "name": "fuzz",
    "rounds": 3,
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.5},
    "algorithms": ["fedavg", {"kind": "fedstale", "beta": 0.3}],
}
SECTIONS = {"": schema.Experiment, "model": schema.Model, "warmup": schema.Warmup, "data.cis": schema.Cis}


class Draw(random.Random):
    def hostile(self) -> Any:
        return self.choice(NAMES) if self.random() < 0.15 else copy.copy(self.choice(HOSTILE))

    def spec(self, names: Names, hurt: float = 0.4) -> Any:
        """A part of this kind, or of another, with settings of which some are hostile."""
        if self.random() < 0.1:
            names = self.choice(list(TABLES.values()))
        name = self.choice([*names])
        cls = names[name]
        if not dataclasses.is_dataclass(cls) or self.random() < 0.2:
            return name
        return {"kind": name} | self.settings(cls, hurt)

    def settings(self, cls: Any, hurt: float = 0.4) -> dict[str, Any]:
        """Required settings, sensible or hostile, and some of the others."""
        hints, found = typing.get_type_hints(cls), {}
        for field in dataclasses.fields(cls):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if field.init and (required or self.random() < 0.4):
                found[field.name] = self.hostile() if self.random() < hurt else self.sensible(hints[field.name])
        if self.random() < 0.05:
            found[self.choice(["kind", "bogus", "", "lr ", "p", "__class__"])] = self.hostile()
        return found

    def sensible(self, hint: Any) -> Any:
        text = str(hint)
        for name, table in (
            ("Participation", "participation"),
            ("Server", "servers"),
            ("Float32", "memories"),
            ("Latency", "latencies"),
            ("Pace", "paces"),
            ("Strategy", "strategies"),
        ):
            if name in text:
                return self.spec(TABLES[table])
        options: dict[str, list[Any]] = {"int": [1, 2, 4, 5], "float": [0.1, 0.5, 1.0, 2], "bool": [True, False]}
        arrays = [0.5, [0.5] * 4, [1, 0, 1, 0], [[1, 0, 1, 0], [0, 1, 1, 1]], [[0.5, 0.5], [0.5, 0.5]]]
        return self.choice(next((v for k, v in options.items() if f"'{k}'" in text), arrays))


def an_experiment(draw: Draw) -> Callable[[], Any]:
    raw = copy.deepcopy(REST | draw.choice(BASES))
    for key, table in SPOTS.items():
        if draw.random() < 0.3:
            raw[key] = draw.spec(TABLES[table])
    for key, cls in WHOLE.items():
        if draw.random() < 0.15:
            raw[key] = draw.settings(cls, hurt=0.3)
    if draw.random() < 0.3:
        raw["algorithms"] = [draw.spec(TABLES[draw.choice(["recipes", "strategies"])]) for _ in range(2)]
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        _damage(draw, raw)
    return lambda: plan(schema.check(raw), Path("nowhere"))


def _damage(draw: Draw, raw: dict[str, Any], values: Sequence[Any] = ()) -> None:
    """A hostile value, or one of these, for a key that an experiment knows, or for one that it does not."""
    section: str
    model: Any
    section, model = draw.choice(
        [*SECTIONS.items(), ("data", schema.Tabular), ("data", schema.DATA[draw.choice([*schema.DATA])])]
    )
    here: Any = raw
    for name in filter(None, section.split(".")):
        here = here.setdefault(name, {}) if isinstance(here, dict) else {}
    local = [f.name for f in dataclasses.fields(Local)]
    keys = [*model.model_fields, *(local if issubclass(model, schema.Training) else [])]
    listed = raw.get("algorithms")
    inside = [raw.get("local"), *(listed if isinstance(listed, list) else [])]
    place = draw.choice([here, here, *inside] if section == "" else [here])
    if isinstance(place, dict):
        extra = ["beta", "estimator", "server", "channel", "memory", "label", *local] if place is not here else keys
        place[draw.choice(extra or ["bogus"]) if draw.random() < 0.95 else "bogus"] = (
            copy.copy(draw.choice(values)) if values else draw.hostile()
        )


def a_changed_setting(draw: Draw) -> Callable[[], Any]:
    """An experiment with one setting that is changed to a value which may well be right."""
    base = REST | draw.choice(BASES)
    parts = {key: draw.spec(TABLES[table], hurt=0.0) for key, table in SPOTS.items() if draw.random() < 0.2}
    raw, changed = base | parts, copy.deepcopy(base) | parts
    _damage(draw, changed, MILD)
    return lambda: _counts(raw, changed)


def _counts(raw: dict[str, Any], changed: dict[str, Any]) -> None:
    """A changed setting is refused, or it is what the experiment has and other runs are planned."""
    after = schema.check(changed)
    for key, value in changed["data"].items():
        kept = after.data.get(key, value)
        assert key == "cis" or kept == value, f"data.{key} is {kept!r}, given {value!r}"
    names = [[p.folder.path.name for p in plan(e, Path("nowhere"))] for e in (schema.check(raw), after)]
    old, new = (e.model_dump(exclude={*UNKEYED, *MADE}) for e in (schema.check(raw), after))
    assert names[0] != names[1] or old == new, [(key, old[key], new[key]) for key in old if old[key] != new[key]]


def a_part(draw: Draw) -> Callable[[], Any]:
    table, cls = draw.choice(CLASSES)
    settings = draw.settings(cls)
    return lambda: canonical(describe(_as_given(settings, make(cls, settings, "part")), table))


def a_constructor(draw: Draw) -> Callable[[], Any]:
    cls = draw.choice([*(cls for _, cls in CLASSES), *(5 * [*WHOLE.values()])])
    settings = draw.settings(cls)
    return lambda: repr(_as_given(settings, cls(**settings)))


def _as_given(settings: dict[str, Any], made: Any) -> Any:
    """The object, if its values are those that were given, and are numbers where they must be."""
    hints = typing.get_type_hints(type(made))
    for name, value in settings.items():
        if name not in hints or not (items := [*_leaves(value)]):
            continue
        hint, numbers = str(hints[name]), all(isinstance(x, int | float) for x in items)
        assert not any(isinstance(x, float) and math.isnan(x) for x in items), f"{name} is nan"
        assert "bool" in hint or not any(isinstance(x, bool) for x in items), f"{name} is no number, got {value}"
        pair = np.broadcast_arrays(np.float32(getattr(made, name)), np.float32(value)) if numbers else (0, 0)
        assert np.array_equal(*pair), f"another {name}"  # one number may stand for all, one row for a table
    return made


def _leaves(value: Any) -> Iterator[Any]:
    """The numbers and texts in a list of lists; nothing of a table."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, bool | int | float | str):
        yield value


def an_override(draw: Draw) -> Callable[[], Any]:
    words = [
        "rounds",
        "algorithms",
        "0",
        "1",
        "-1",
        "99",
        "data",
        "clients",
        "participation",
        "x",
        "",
        "²",
        "local",
    ]
    key = ".".join(draw.choice(words) for _ in range(draw.choice([1, 2, 3, 4])))
    text = draw.choice([str(draw.choice(HOSTILE[:40])), "[" * 5000, "9" * 5000, "[1, 2]", "{a = 1}", '"""'])
    change = f"{key}{draw.choice(['=', '=', '=', '', ' = '])}{text}"
    raw = copy.deepcopy(REST | BASES[0])

    def run() -> Any:
        override(raw, change)
        return plan(schema.check(raw), Path("nowhere"))

    return run


THEORY = [
    f
    for name, f in vars(fs.theory).items()
    if inspect.isfunction(f) and name[0] != "_" and f.__module__.startswith(fs.theory.__name__)
]
FUNCTIONS: list[Callable[..., Any]] = [
    *THEORY,
    fs.runs,
    fs.metrics,
    fs.read_experiment,
    fs.Quadratic,
    fs.Quadratic.random,
]


def a_function(draw: Draw) -> Callable[[], Any]:
    """A call of a public function: some arguments are hostile, some are left out."""
    function = draw.choice(FUNCTIONS)
    settings = {}
    for name, given in inspect.signature(function).parameters.items():
        if (given.default is inspect.Parameter.empty and draw.random() < 0.95) or draw.random() < 0.4:
            settings[name] = draw.hostile() if draw.random() < 0.5 else draw.sensible(given.annotation)
    return lambda: repr(function(**settings))


KINDS = [
    an_experiment, an_experiment, a_changed_setting, a_changed_setting, a_part, a_part, a_constructor, an_override,
    a_function, a_function,
]  # fmt: skip


def cases(seed: int, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for k in range(count):
        draw = Draw(f"{seed} {k}")
        kind = draw.choice(KINDS)
        yield f"{kind.__name__} {seed} {k}", kind(draw)


def verdict(case: Callable[[], Any]) -> str:
    """`valid`, `refused`, or the traceback of what must not be."""
    try:
        case()
    except BadInput as error:
        one_line = 0 < len(str(error)) < 2000 and "\n" not in str(error)
        return "refused" if one_line else f"not one line of at most 2,000 characters: {error!r:.300}"
    except Exception:
        return "".join(traceback.format_exc().splitlines(keepends=True)[-7:])
    return "valid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for name, case in cases(seed, options.cases):
        found = verdict(case)
        counts[found if found in ("valid", "refused") else "faults"] += 1
        if found not in ("valid", "refused"):
            faults[found.splitlines()[-1][:150]] += 1
            print(f"{name}:\n{found}")
    print(*(f"{count} × {fault}" for fault, count in faults.most_common()), sep="\n")
    print(f"seed {seed}: {options.cases} cases, {counts['valid']} valid, {counts['refused']} refused, "
          f"{counts['faults']} faults")  # fmt: skip
    return min(counts["faults"], 1)


if __name__ == "__main__":
    sys.exit(main())

"""A suite of the arena as data: rules × cells, where a cell is a task with a participation and a belief about p.

    rules = ["fedavg", …]             # entries as in `algorithms` of an experiment
    clocked = ["fedbuff", …]          # the rules of tasks with a `clock`, which gives every rule the same hours
    sums = ["focus"]                  # rules whose step is a sum over clients: their rates are divided by n
    seeds = [1, 2, 3]                 # of the evaluation
    estimator = "intervals"           # of cells in which p is estimated
    cells = [["TASK", "PARTICIPATION", "known"], …]   # or "all": every combination that is possible
    [tuning]                          # see fedstale.lab.arena.tuning
    [task.NAME]                       # keys of an experiment: rounds, data, model, local; and the first `rates`;
                                      # `with` names the only participations that "all" combines it with
    [participation.NAME]
    [size.NAME]                       # keys of this file by dotted key, at that size

The reference `full` of a task is FedAvg with every client in every round, tuned like everybody; `reference = false`
in a task leaves it out where that is too much to compute.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedstale.core import hooks_of, known, require, require_last_gradient
from fedstale.lab.arena.tuning import PROMISING, Setting
from fedstale.lab.plan import Cell, algorithm, plan
from fedstale.lab.schema import Section, check, load, validated
from fedstale.lab.spec import LOCAL_KEYS, Spec, Table, as_table, build, describe, put
from fedstale.registry import SERVERS

FULL = "full"  # the reference with every client in every round
BELIEFS = ("known", "estimated")
OWN = ("rates", "with", "reference")  # keys of a task that are not those of an experiment
ALIKE = {*LOCAL_KEYS, "channel"} - {"prox"}  # settings that no rule may have for itself; prox is FedProx's own
Rate = Annotated[float, Field(gt=0)]


class Tuning(Section):
    """How the rates of every rule are chosen: the same number of runs for each."""

    seeds: Annotated[list[int], Field(min_length=1)]  # other seeds than those of the evaluation
    factor: Annotated[float, Field(gt=1)] = 10**0.5  # from a rate to the next one beyond the list
    server: Annotated[list[Rate], Field(min_length=1)] = Field([1.0, 2.0, 4.0])  # factors of the server's step
    share: Annotated[float, Field(gt=0, le=1)] = 0.5  # of the rounds, in the runs that only sort out
    more: Annotated[int, Field(ge=0)] = 1  # rates that are tried after the list: beyond its end, or around the best
    keep: Annotated[int, Field(ge=1)] = 3  # settings that go on to runs of all rounds

    @property
    def tried(self) -> int:
        """The settings beside the list of rates that are tried over a share of the rounds."""
        return PROMISING * (len(self.server) - 1) + self.more


class Suite(Section):
    """The keys of a suite."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]  # of the suite; that of the file if left out
    size: str = ""  # the size that was chosen
    title: str = ""  # a line about it
    rules: Annotated[list[Spec], Field(min_length=1)]  # the rules that are compared
    clocked: list[Spec] = Field(default=[])  # those of tasks with a clock: their pace may be their own
    sums: list[str] = Field(default=[])  # labels of rules whose rates are divided by the number of clients
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]  # of the evaluation
    estimator: Spec = "intervals"  # where p is estimated, and the rule's recipe has no estimator of its own
    engine: str = "auto"  # how local training is executed
    cells: Literal["all"] | list[Annotated[list[str], Field(min_length=3, max_length=3)]]
    tuning: Tuning  # the same for every rule
    task: dict[str, Table]  # by name: keys of an experiment, and the first rates
    participation: dict[str, Spec]  # by name

    def rules_in(self, task: str) -> dict[str, Table]:
        """The entries of the rules that meet in the cells of a task, by label."""
        entries = [as_table(rule, "rules") for rule in (self.clocked if "clock" in self.task[task] else self.rules)]
        labels = [str(entry.get("label", entry["kind"])) for entry in entries]
        twice = [label for label in labels if labels.count(label) > 1 or label == FULL]
        require(not twice, f"every rule needs a label of its own, other than {FULL!r}, got {twice[:1]}")
        return dict(zip(labels, entries, strict=True))


class Place(NamedTuple):
    """A cell of a suite: where all rules meet, or where the reference of a task is computed."""

    task: str
    participation: str
    belief: str

    @property
    def name(self) -> str:
        return f"{self.task}, {self.participation}, p {self.belief}" if self.belief else f"{self.task}, {FULL}"


def read(path: Path, size: str) -> Suite:
    """The suite in a TOML file at a size."""
    raw = load(path, "suite")
    raw.setdefault("name", path.stem)
    sizes = raw.pop("size", {})
    changes = sizes[known(size, sizes, f"the size of suite {raw['name']}")]
    for key, value in changes.items():
        put(raw, key, value)
    return checked(raw | {"size": size})


def checked(raw: Table) -> Suite:
    """The suite in a table; every cell is made once, so that a mistake is found before training."""
    suite = validated(Suite, raw, "")
    for label in suite.sums:
        known(label, {label: rule for task in suite.task for label, rule in suite.rules_in(task).items()}, "sums")
    for label, rule in (pair for task in suite.task for pair in suite.rules_in(task).items()):
        own = [key for key in rule if key in ALIKE]
        alike = "all rules train alike, and rates are tuned"
        require(not own, f"rule {label} must not have {' and '.join(own)}: {alike}")
    first, *others = suite.tuning.server
    require(first == 1 and 1 not in others, f"tuning.server must begin with 1, got {suite.tuning.server}")
    both = {*suite.seeds} & {*suite.tuning.seeds}
    require(not both, f"tuning.seeds must be other seeds than those of the evaluation, got {sorted(both)} in both")
    for name, task in suite.task.items():
        for key in ("rounds", "data", "local"):
            require(key in task, f"task.{name}.{key} is missing")
        least = max(PROMISING, suite.tuning.keep - suite.tuning.tried)
        ok = isinstance(task.get("rates"), list) and len(task["rates"]) >= least
        require(ok, f"task.{name}.rates must be a list of at least {least} rates")
        timed = "clock" not in task or (isinstance(task["clock"].get("hours"), int | float) and suite.clocked)
        require(bool(timed), f"task.{name}.clock needs hours, and the suite a list `clocked` of rules")
    for place in places(suite):
        base = check(table(suite, place, suite.seeds, ["fedavg"], 1.0))
        for k, rule in enumerate(suite.rules_in(place.task).values()):
            made = algorithm(rule, base, f"rules.{k}")
            if hooks_of(made.strategy).needs_last_gradient:
                require_last_gradient(made.local)
    return suite


def places(suite: Suite) -> list[Place]:
    """The references of the tasks, then the cells, each once."""
    if suite.cells == "all":
        every = (Place(*parts) for parts in itertools.product(suite.task, suite.participation, BELIEFS))
        found = [place for place in every if _possible(suite, place)]
    else:
        found = [Place(*parts) for parts in suite.cells]
    for task, participation, belief in found:
        known(task, suite.task, "the task of a cell")
        known(participation, suite.participation, "the participation of a cell")
        known(belief, dict.fromkeys(BELIEFS), "the belief of a cell")
    tasks = [task for task in dict.fromkeys(p.task for p in found) if suite.task[task].get("reference", True)]
    return [Place(task, FULL, "") for task in tasks] + list(dict.fromkeys(found))


def _possible(suite: Suite, place: Place) -> bool:
    """A task may name its participations, which are then not those of others; labels need a divided dataset."""
    named = [name for task in suite.task.values() for name in task.get("with", [])]
    mine = suite.task[place.task].get("with")
    if place.participation not in mine if mine else place.participation in named:
        return False
    kind = as_table(suite.participation[place.participation], "participation").get("kind", "")
    return not str(kind).startswith("label-") or "partition" in suite.task[place.task]["data"]


def rules_of(suite: Suite, place: Place) -> dict[str, Table]:
    """The entries of the rules that are compared in a cell, by label."""
    if place.participation == FULL:
        return {FULL: {"kind": "fedavg"}}
    return suite.rules_in(place.task)


def first_settings(suite: Suite, place: Place, label: str) -> list[Setting]:
    """What a rule is tried with first, from the least rate."""
    task = suite.task[place.task]
    divisor = task["data"]["clients"] if label in suite.sums else 1
    return sorted(Setting(float(rate) / divisor) for rate in task["rates"])


def table(suite: Suite, place: Place, seeds: Sequence[int], algorithms: Sequence[Spec], share: float) -> Table:
    """A cell as the table of an experiment with these algorithms, seeds and share of the rounds."""
    task = copy.deepcopy({key: value for key, value in suite.task[place.task].items() if key not in OWN})
    if "clock" in task:
        task["clock"]["hours"] *= share
    return task | {
        "name": suite.name,
        "seeds": [*seeds],
        "rounds": max(1, round(share * task["rounds"])),
        "engine": suite.engine,
        "local": {"lr": 1.0} | task["local"],  # every entry of the algorithms has a rate of its own
        "participation": _participation(suite, place),
        "estimator": suite.estimator if place.belief == "estimated" else "known",
        "algorithms": [*algorithms],
    }


def _participation(suite: Suite, place: Place) -> Spec:
    """The participation of a cell; a recording has as many clients as the task, unless it says how many."""
    if place.participation == FULL:
        return {"kind": "bernoulli", "p": 1.0}
    spec = as_table(suite.participation[place.participation], f"participation.{place.participation}")
    recorded = spec.get("kind") in ("events", "grid")
    return ({"clients": suite.task[place.task]["data"]["clients"]} if recorded else {}) | spec


def planned(
    suite: Suite, place: Place, seeds: Sequence[int], settings: Mapping[str, Sequence[Setting]], share: float,
    folder: Path,
) -> Cell:  # fmt: skip
    """A cell with its rules, each at its settings, as a cell of a sweep whose runs are in the store `folder`."""
    rules, server = rules_of(suite, place), as_table(suite.task[place.task].get("server", "sgd"), "server")
    entries = [
        rules[label]
        | {"lr": s.rate, "label": labelled(label, s)}
        | ({"server": _longer(rules[label].get("server", server), s.server)} if s.server != 1 else {})
        for label in rules
        for s in settings[label]
    ]
    whole = check(table(suite, place, seeds, entries, share))
    return Cell(place.name, {}, [], whole, plan(whole, folder))


def _longer(server: Spec, factor: float) -> Table:
    """A server whose steps are longer by a factor."""
    own = describe(build(server, SERVERS, "server"), SERVERS)
    if "base" in own:
        return own | {"base": _longer(own["base"], factor)}
    return own | ({"lr": factor * own["lr"]} if "lr" in own else {})


def labelled(label: str, setting: Setting) -> str:
    """The name of a rule at a setting."""
    return f"{label} lr={setting.rate:.4g}" + (f" × {setting.server:g}" if setting.server != 1 else "")

"""Which rule follows from the measures, why, and what else may be worth a try.

Two cases need no evidence; in all others the arena decides (`lessons`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedstale.core import Floats, hooks_of
from fedstale.core.abilities import listed
from fedstale.lab.advise import lessons as arena
from fedstale.lab.advise.measures import VISITS, Measures
from fedstale.lab.runs.metrics import percent
from fedstale.memory import KeepsMemory
from fedstale.registry import recipe

ALWAYS = 0.01  # 1 / p_var below which everybody is as good as always there
SENDING = 0.5  # availability from which only the links are to blame for what is missing
STRETCHES = 0.5  # λ from which visits come in stretches
AMPLIFY = 2.0  # larger factors overshoot unless the local rate is cut as well
ROOM = 4 * 2**30  # bytes of memory rows that need no thought
LEARNT = {"kind": "beta-bernoulli", "n0": 1.0, "m0": 0.0}  # p̂_i = (visits + 1) / (rounds + 1)


class Rule(NamedTuple):
    """A case that needs no evidence."""

    name: str
    applies: Callable[[Measures], bool]
    use: str  # a recipe
    why: Callable[[Measures], str]
    basis: str  # what it rests on


class Hint(NamedTuple):
    """Another rule, as an entry of `algorithms`, and when it is the better one."""

    entry: dict[str, Any]
    when: str


OR_AUTO = Hint({"kind": "auto"}, "if the data of the clients differ and N × d numbers have room")
RULES: Sequence[Rule] = (
    Rule(
        "everybody comes",
        lambda m: m.inflation < ALWAYS,
        "fedavg",
        lambda m: (
            "Everybody who comes at all is there practically every round: all rules make nearly the same step, "
            "and FedAvg is the simplest."
        ),
        "with p_i = 1, FedAvg, Unbiased and FedStale coincide",
    ),
    Rule(
        "lossy links",
        lambda m: m.arrival is not None and m.availability >= SENDING,
        "upga-pl",
        lambda m: (
            f"The clients are there, the links lose {percent(1 - (m.arrival or 0), 0)} of the updates: "
            "dividing each update by its chance to arrive puts the weights right and needs no memory."
        ),
        "thesis, chapter 4: UPGA-PL reaches lossless FedAvg",
    ),
)


class Advice(NamedTuple):
    """What is recommended, why, and what else to try."""

    rule: str
    entry: dict[str, Any]  # of `algorithms`
    why: str
    basis: str
    also: list[Hint]
    warnings: list[str]


def advise(m: Measures, known: bool, lessons: Sequence[arena.Lesson] | None = None) -> Advice:
    """The recommendation for these measures; `known` says whether training is given the p_i or learns them."""
    for rule in RULES:
        if rule.applies(m):
            also = [OR_AUTO] if rule.use == "upga-pl" else []
            return Advice(rule.name, _entry(rule.use, m, known), rule.why(m), rule.basis, also, warnings(m))
    return _learnt(m, known, arena.read() if lessons is None else lessons)


def _learnt(m: Measures, known: bool, lessons: Sequence[arena.Lesson]) -> Advice:
    """The rule that follows from the cells of the arena."""
    x, names = arena.features(m, known), [name for name in lessons[0].missing if name != "amplified" or m.cycle]
    modest = arena.plain(names)
    how = arena.policy(lessons, modest)
    chosen, ranked = arena.choose(lessons, x, modest, how), arena.expected(lessons, x, modest)
    also = _also(chosen, ranked, arena.expected(lessons, x, names), m) if how.alike and not arena.case(x) else []
    why = " ".join((*_reason(m, chosen, lessons, x), *_evidence(lessons, x, chosen)))
    return Advice("as in the arena", _entry(chosen, m, known), why, "docs/advise.md", also, warnings(m))


def _reason(m: Measures, chosen: str, lessons: Sequence[arena.Lesson], x: Floats) -> list[str]:
    """What decides where clients are seen hardly ever, or count as they should without a correction."""
    if not (kind := arena.case(x)):
        return []
    seen = f"The average client is seen {(m.planned or 0) * m.p_avg:.1f} times in {m.planned} rounds"
    even = "All clients count as they should in plain averaging"
    first, same = seen if kind == "rare" else even, arena.alike(lessons, x)
    if chosen == arena.PLAIN:
        return [f"{first}: {'too seldom for a memory' if kind == 'rare' else 'there is no bias to correct'}."]
    many = f"{len(same)} test federation{'s' * (len(same) > 1)} like that"
    return [f"{first}, but in {many} a memory helped: {_told(same, [arena.DEFAULT, arena.PLAIN])}."]


def _evidence(lessons: Sequence[arena.Lesson], x: Floats, chosen: str) -> list[str]:
    """What the arena measured of a rule and of plain averaging, in sentences."""
    near, cells = lessons[int(arena.likeness(lessons, x).argmax())], len(lessons)
    rules = [r for r in (chosen, arena.DEFAULT if chosen == arena.PLAIN else arena.PLAIN) if r in near.missing]
    return [
        f"In {cells} test federation{'s' * (cells > 1)} the training objective ended on average so much short of "
        f"the best rule's progress: {_told(lessons, rules)}; in the one that is most alike ({near.cell}): "
        f"{_told([near], rules)}."
    ]


def _told(lessons: Sequence[arena.Lesson], rules: Sequence[str]) -> str:
    return ", ".join(f"{rule}'s {percent(arena.mean_missing(lessons, rule), 0)}" for rule in rules)


def _entry(name: str, m: Measures, known: bool) -> dict[str, Any]:
    """A rule as an entry of `algorithms`, with what it needs for these clients."""
    entry: dict[str, Any] = {"kind": name}
    if name == "amplified":
        entry |= {"period": m.cycle, "factor": AMPLIFY}
    strategy = recipe(name).strategy
    if hooks_of(strategy).inverse_weighting and not known and not recipe(name).estimator_spec:
        entry["estimator"] = dict(LEARNT)
    if isinstance(strategy, KeepsMemory) and (rows := memory(m)):
        entry["memory"] = rows
    return entry


def _also(
    first: str, ranked: Sequence[arena.Expected], everybody: Sequence[arena.Expected], m: Measures
) -> list[Hint]:
    """The next rule, the best one without a memory, and one that asks more of the clients, if it is better."""
    found = dict[str, str]()
    for other in [e for e in ranked if e.rule != first][:1]:
        found[other.rule] = _short_of(other)
    if lean := [e for e in ranked if e.rule in arena.plain([e.rule], memory=False)]:
        found[lean[0].rule] = f"if there is no room for N × d numbers; {_short_of(lean[0])}"
    if everybody[0].missing < ranked[0].missing:
        found[everybody[0].rule] = f"asks more of the clients than to train and send; {_short_of(everybody[0])}"
    return [Hint(_entry(name, m, known=True), when) for name, when in found.items() if name != first]


def _short_of(e: arena.Expected) -> str:
    return f"expected {percent(e.missing)} short of the best rule's progress"


def memory(m: Measures) -> dict[str, Any] | None:
    """The widest rows that fit ROOM, none if float32 does; too large for all, the narrowest in a file."""
    if m.memory is None or m.memory["float32"] <= ROOM:
        return None
    fits = [kind for kind, size in m.memory.items() if size <= ROOM]
    return {"kind": fits[0]} if fits else {"kind": "int8", "folder": "memory"}


def warnings(m: Measures) -> list[str]:
    """What about this participation deserves care, in sentences."""
    found = []
    if m.never:
        many, lost = f"{len(m.never)} client{'s' * (len(m.never) > 1)}", percent(m.lost, 0)
        found.append(
            f"{many} ({listed([m.name(i) for i in m.never], 5)}) never came and hold {lost} of the weight. "
            "Nothing can be learnt from them, and rules that divide by p_i refuse them: leave them out. All "
            "other numbers are of those who come."
        )
    if m.planned is not None and m.planned < m.enough_rounds:
        found.append(
            f"{m.planned} rounds see the rarest client {m.planned / m.least_rounds:.1f} times; "
            f"{VISITS} visits take {m.enough_rounds:.0f} rounds."
        )
    if m.dispersion >= 3:
        found.append(
            f"Clients come and go together: how many are there varies {m.dispersion:.1f} times as much as if each "
            "came on its own, which the theory of dividing by p_i assumes."
        )
    if m.misjudged is not None and not 0.5 <= m.misjudged.value <= 2:
        found.append(
            f"The run's estimator takes client {m.name(m.misjudged.client)} to come {m.misjudged.value:.2g} times "
            "as often as it does."
        )
    return found

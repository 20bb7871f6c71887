"""The decision table: the first of RULES that applies is recommended, then what else may be worth a try.

Every threshold is here, with what it rests on beside it; the runs behind the remarks are in docs/advise.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedstale.advise.measures import VISITS, Measures
from fedstale.core import divides
from fedstale.memory import KeepsMemory
from fedstale.registry import recipe

ALWAYS = 0.01  # 1 / p_var below which everybody is as good as always there
EVEN = 0.02  # bias below which plain averaging is right enough
LUCK = 1.5  # times the bias that chance alone shows in a recording, up to which it may be that
TURNS = 0.1  # bias below which turns still visit everybody about equally often
ALTERNATING = 0.25  # how far the clients of a round are from those of a cycle, for turns to matter
SENDING = 0.5  # availability from which only the links are to blame for what is missing
STRETCHES = 0.5  # λ from which visits come in stretches
AMPLIFY = 2.0  # larger factors overshoot unless the local rate is cut as well
ROOM = 4 * 2**30  # bytes of memory rows that need no thought
LEARNT = {"kind": "beta-bernoulli", "n0": 1.0, "m0": 0.0}  # p̂_i = (visits + 1) / (rounds + 1)


class Rule(NamedTuple):
    """One row of the decision table."""

    name: str
    applies: Callable[[Measures], bool]
    use: Callable[[Measures], dict[str, Any]]  # as an entry of `algorithms`
    why: Callable[[Measures], str]
    basis: str  # what it rests on


class Hint(NamedTuple):
    """Another rule, as an entry of `algorithms`, and when it is the better one."""

    entry: dict[str, Any]
    when: str


def turns(m: Measures) -> bool:
    """Whether the clients of a round change in a rhythm that visits all about equally often."""
    return m.cycle is not None and m.bias <= TURNS and m.round_distance >= ALTERNATING


def amplified(m: Measures) -> dict[str, Any]:
    """Amplified FedAvg with the period of the measured cycle."""
    return {"kind": "amplified", "period": m.cycle, "factor": AMPLIFY}


RULES: Sequence[Rule] = (
    Rule(
        "everybody comes",
        lambda m: m.inflation < ALWAYS,
        lambda m: {"kind": "fedavg"},
        lambda m: (
            "Everybody who comes at all is there practically every round: all rules make nearly the same step, "
            "and FedAvg is the simplest."
        ),
        "with p_i = 1, FedAvg, Unbiased and FedStale coincide",
    ),
    Rule(
        "lossy links",
        lambda m: m.arrival is not None and m.availability >= SENDING,
        lambda m: {"kind": "upga-pl"},
        lambda m: (
            f"The clients are there, the links lose {1 - (m.arrival or 0):.0%} of the updates: "
            "dividing each update by its chance to arrive puts the weights right and needs no memory."
        ),
        "thesis, chapter 4: UPGA-PL reaches lossless FedAvg",
    ),
    Rule(
        "turns, and no room for a memory",
        lambda m: turns(m) and m.memory is not None and m.memory["int8"] > ROOM,
        amplified,
        lambda m: (
            f"Groups of clients take turns: the same ones are back after {m.cycle} rounds, and plain averaging "
            "swings from group to group. Amplifying the progress of whole cycles follows what all of them want, "
            "without the N × d numbers that a memory would take."
        ),
        "Wang and Ji 2022: a period that covers a cycle",
    ),
    Rule(
        "turns",
        turns,
        lambda m: {"kind": "auto"},
        lambda m: (
            f"Groups of clients take turns: the same ones are back after {m.cycle} rounds, and plain averaging "
            "swings from group to group. A memory keeps the absent groups in every step."
        ),
        "the simulations of docs/advise.md, where it is well ahead of amplified FedAvg",
    ),
    Rule(
        "even participation",
        lambda m: m.bias <= max(EVEN, LUCK * m.chance),
        lambda m: {"kind": "fedavg"},
        lambda m: (
            f"All come about equally often: plain averaging misplaces only {m.bias:.1%} of the weight"
            + ("." if m.bias <= EVEN else ", no more than so few rounds do by chance.")
        ),
        "thesis, section 2.3: the bias of FedAvg vanishes with the total variation",
    ),
    Rule(
        "uneven participation",
        lambda m: True,
        lambda m: {"kind": "auto"},
        lambda m: (
            f"Some clients come rarely: plain averaging gives {m.bias:.0%} of the weight to the wrong clients, "
            f"and dividing by p_i alone makes noisy steps (1/p_var = {m.inflation:.3g}). auto corrects the "
            "weights, its memory takes out most of the noise, and it learns β itself."
        ),
        "FedStale, Theorem 1 and docs/auto.md",
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


def advise(m: Measures, known: bool) -> Advice:
    """The recommendation for these measures; `known` says whether training is given the p_i or learns them."""
    rule = next(r for r in RULES if r.applies(m))
    entry = rule.use(m)
    strategy = recipe(entry["kind"]).strategy
    if divides(strategy) and not known:
        entry["estimator"] = dict(LEARNT)
    if isinstance(strategy, KeepsMemory) and (rows := memory(m)):
        entry["memory"] = rows
    return Advice(rule.name, entry, rule.why(m), rule.basis, hints(m, entry["kind"]), warnings(m))


def memory(m: Measures) -> dict[str, Any] | None:
    """The widest rows that fit ROOM, none if float32 does; too large for all, the narrowest in a file."""
    if m.memory is None or m.memory["float32"] <= ROOM:
        return None
    fits = [kind for kind, size in m.memory.items() if size <= ROOM]
    return {"kind": fits[0]} if fits else {"kind": "int8", "folder": "memory"}


def hints(m: Measures, chosen: str) -> list[Hint]:
    """Other rules, each with when it is the better one."""
    found = []
    if chosen == "auto":
        found.append(Hint({"kind": "mifa"}, "needs no p_i and is calm, often as good; biased by long absences"))
        if m.mixing < STRETCHES:  # without the clip, a rare client that stays for a while carries the model away
            found.append(Hint({"kind": "auto-unbiased"}, "the same without its small bias; noisier"))
        spare = amplified(m) if turns(m) else {"kind": "fedau"}
        found.append(Hint(spare, "if there is no room for N × d numbers; farther from the best"))
    if chosen == "upga-pl" or (chosen == "fedavg" and m.inflation >= 1):
        found.append(Hint({"kind": "auto"}, "if the data of the clients differ and N × d numbers have room"))
    if absent_too_long(m):
        when = "leaves out clients that stay away for too long; behind in our own simulations, so simulate first"
        found.append(Hint({"kind": "ca-fed"}, when))
    return found


def listed(clients: list[int], most: int = 5) -> str:
    """`3 clients (0, 4, 7)`."""
    names = ", ".join(map(str, clients[:most])) + (", …" if len(clients) > most else "")
    return f"{len(clients)} client{'s' * (len(clients) > 1)} ({names})"


def absent_too_long(m: Measures) -> bool:
    """Visits come in stretches, and the training is too short to see the rarest client in enough of them."""
    rounds = m.planned or m.rounds
    return (
        m.cycle is None
        and m.mixing >= STRETCHES
        and rounds is not None
        and rounds * m.effective_share < m.enough_rounds
    )


def warnings(m: Measures) -> list[str]:
    """What about this participation deserves care, in sentences."""
    found = []
    if m.never:
        found.append(
            f"{listed(m.never)} never came and hold {m.lost:.0%} of the weight. Nothing can be learnt from them, "
            "and rules that divide by p_i refuse them: leave them out. All other numbers are of those who come."
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
            f"The run's estimator takes client {m.misjudged.client} to come {m.misjudged.value:.2g} times as often "
            "as it does."
        )
    return found

"""The recommendation as text of at most 100 columns: the rule first, then the numbers behind it."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedstale.lab.advise.evidence import Evidence
from fedstale.lab.advise.lessons import Lesson, held_out
from fedstale.lab.advise.measures import VISITS, Extreme, Measures
from fedstale.lab.advise.rules import STRETCHES, Advice
from fedstale.lab.arena.scores import NEAR
from fedstale.lab.runs.metrics import percent
from fedstale.lab.spec import as_toml
from fedstale.registry import RECIPES

WIDTH = 100
LABEL = 16


def lines(e: Evidence, m: Measures, a: Advice) -> Iterator[str]:
    """The whole recommendation, line by line."""
    rounds = f", {m.rounds} rounds recorded" if m.rounds else ""
    yield f"{e.source}: {m.clients} clients{rounds}"
    yield ""
    about = next(about for name, _, about in RECIPES.rows() if name == a.entry["kind"])
    yield from textwrap.wrap(f"Use {a.entry['kind']}: {about}", WIDTH, subsequent_indent="  ")
    yield from textwrap.wrap(a.why, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield from entry(a.entry)
    yield ""
    for sentence in (*a.warnings, *e.notes):
        yield from _row("careful", sentence)
    for label, text in _facts(m):
        yield from _row(label, text)
    for hint in a.also:
        yield from _row("or try", f"{named(hint.entry)}: {hint.when}")


def entry(rule: dict[str, Any]) -> Iterator[str]:
    """What goes into the experiment's file: one line if it fits, else a table."""
    if "estimator" in rule:
        yield "  # the p_i are learnt as training goes on: p̂_i = (visits + 1) / (rounds + 1)"
    line = f"  algorithms = [{as_toml(rule)}]"
    long = ["  [[algorithms]]", *(f"  {key} = {as_toml(value)}" for key, value in rule.items())]
    yield from [line] if len(line) <= WIDTH else long


def named(rule: dict[str, Any]) -> str:
    """A rule and its settings, in words."""
    return ", ".join([str(rule["kind"]), *(f"{key} {value:g}" for key, value in rule.items() if key != "kind")])


def _row(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, initial_indent=f"{label:{LABEL}}", subsequent_indent=" " * LABEL)


def _facts(m: Measures) -> Iterator[tuple[str, str]]:
    """What was measured, each with a name."""
    moved = f"; gains most: {_share(m, m.gains)}; loses most: {_share(m, m.loses)}" if m.bias > 5e-4 else ""
    luck = f" (chance alone: {percent(m.chance)})" if m.chance > 0.005 else ""
    yield "FedAvg's bias", f"{percent(m.bias)} of the weight at the wrong clients{luck}{moved}"
    much = f"{percent(m.noisiest.value, 0)} of it{' each' if m.noisiest.alike else ''}"
    noisy = f"; {_client(m, m.noisiest)}: {much}" if m.noisiest.value > 0.1 else ""
    yield "noise of 1/p_i", f"1/p_var = {m.inflation:.3g} (0 if all always come){noisy}"
    longest = f"; longest absence {m.absence.value:.0f} rounds, {_client(m, m.absence)}" if m.absence else ""
    yield "staleness", f"a client comes every {m.gap:.3g} rounds on average{longest}"
    yield "rarest", _rarest(m)
    yield "rounds", _rounds(m)
    if m.memory:
        yield "memory N × d", ", ".join(f"{_size(b)} in {kind}" for kind, b in m.memory.items())
    yield "in time", _rhythm(m)


def _rarest(m: Measures) -> str:
    p, ratio = m.rarest.value, m.p_avg / m.rarest.value
    seen = f", seen in {p * m.rounds:.0f} of {m.rounds} rounds" if m.rounds else ""
    return f"{_client(m, m.rarest)}, p = {p:.3g}{seen}" + (f"; p_avg / p_min = {ratio:.3g}" if ratio > 1.05 else "")


def _rounds(m: Measures) -> str:
    text = f"at least {m.least_rounds:.0f} = 1/p_min; {m.enough_rounds:.0f} for {VISITS} visits of it"
    if m.cycle:
        text += f", {VISITS * m.cycle} for {VISITS} cycles"
    elif m.mixing >= STRETCHES:
        text += f", {m.enough_rounds / m.effective_share:.0f} for {VISITS} independent ones"
    return text + (f"; yours: {m.planned}" if m.planned else "")


def _rhythm(m: Measures) -> str:
    far = f"visits come in stretches, 100 of them tell as much as {100 * m.effective_share:.2g} independent ones"
    text = f"λ = {m.mixing:.2g}: {far if m.mixing >= STRETCHES else 'a visit says little of the next round'}"
    return text + (f"; the same clients are back every {m.cycle} rounds" if m.cycle else "")


def _share(m: Measures, who: Extreme) -> str:
    return f"{_client(m, who)}, {100 * m.wanted[who.client]:.3g} % → {100 * m.realised[who.client]:.3g} %"


def _client(m: Measures, who: Extreme) -> str:
    name = m.names[who.client] if m.names else f"client {who.client}"
    return name + (f" (and {who.alike} other{'s' * (who.alike > 1)} alike)" if who.alike else "")


def _size(b: int) -> str:
    power = min(3, (len(str(b)) - 1) // 3)
    return f"{b / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"


def ranking_lines(found: dict[str, Any]) -> Iterator[str]:
    """The ranking of a simulation as a table, with its verdict."""
    seeds = ", ".join(map(str, found["seeds"]))
    yield ""
    yield f"Simulated: {found['rounds']} rounds, seeds {seeds}, all rules at the experiment's own learning rate"
    yield f"  {'place':5} {'rule':15} {'objective':>18} {'behind':>8} {'accuracy':>9} {'worst tenth':>12}"
    for row in found["ranking"]:
        rule = row["rule"] + ("*" if row["rule"] == found["advised"] else "")
        value = f"diverged with {row['diverged']}" if row["diverged"] else f"{row['objective']:.4g}"
        value += "" if row.get("objective_std") is None else f" ± {row['objective_std']:.1g}"
        values = (row.get(key) for key in ("behind", "accuracy", "worst_tenth"))
        shares = ["" if x is None else percent(x) for x in values]
        yield f"  {row['place']:<5} {rule:15} {value:>18} {shares[0]:>8} {shares[1]:>9} {shares[2]:>12}".rstrip()
    yield "  * advised; the same place: a paired t-test over the seeds cannot tell them apart, 5 %"
    for caution in found["cautions"]:
        yield f"  {caution}"
    yield found["verdict"]


def held_out_lines(lessons: Sequence[Lesson]) -> Iterator[str]:
    """The test of the advice as Markdown: every cell advised from the others, and one rule for all cells."""
    found = held_out(lessons)
    yield from ("| cell | advised from the others | missing progress | best rule |", "|---|---|---|---|")
    for a in found:
        yield f"| {a.cell} | {a.advised} | {percent(a.missing)} | {a.best} |"
    yield ""
    yield from (
        "| in all of these cells | missing progress, mean | median | worst | within 2 points |",
        "|---|---|---|---|---|",
    )
    rules = {r: [lesson.missing[r] for lesson in lessons] for r in lessons[0].missing}
    yield _summary("the advice", [a.missing for a in found])
    for rule in sorted(rules, key=lambda r: float(np.mean(rules[r]))):
        yield _summary(f"always `{rule}`", rules[rule])


def _summary(name: str, missing: Sequence[float]) -> str:
    mean, median, worst = (percent(f(missing)) for f in (np.mean, np.median, np.max))
    near = sum(x <= NEAR for x in missing)
    return f"| {name} | {mean} | {median} | {worst} | {near} of {len(missing)} |"

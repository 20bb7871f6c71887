"""One page for a practitioner: what plain averaging costs, who is left behind, which rule, and how sure that is."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedstale.lab.runs.metrics import OBJECTIVE, metric, percent
from fedstale.lab.runs.query import Setting
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.verdict import behind, compared, joined, leading
from fedstale.view.page import markup
from fedstale.view.page.page import Part, document, setting_part
from fedstale.view.page.plots import Table
from fedstale.view.page.series import Lines, names, read, shares
from fedstale.view.page.served import scored

PLAIN = "fedavg"
MUCH = 0.05  # of a share, or of the other rule's score, that a client must lose to be called left behind
WORST = 10  # clients in the table


class Diagnosis(NamedTuple):
    """The answers, each a question and sentences, and the clients that lose most."""

    answers: list[tuple[str, str]]
    clients: Table


def diagnose(setting: Setting, doubts: Sequence[str], about: Mapping[str, str]) -> tuple[Diagnosis, list[Lines]]:
    """The answers of the finished runs of a setting, with reasons not to be sure, and what each rule does."""
    lines = read([g for g in setting.groups if g.runs])
    by_label = {g.group.label: g for g in lines}
    done = [g.group for g in lines]
    main = compared(done)[0]
    near = leading(done, main)
    rules = [done[k].label for k in near]
    others = [label for label in rules if label != PLAIN]
    advised = others[0] if others else max(
        (g for g in done if g.label != PLAIN), key=lambda g: main.score(spread(g.values(main.name, "last10")).mean)
    ).label  # fmt: skip
    table, lost, said = _left_behind(by_label[PLAIN], by_label[advised])
    plain_is_best = PLAIN in rules and not lost
    rule = PLAIN if plain_is_best else advised
    answers = [
        ("What does plain averaging cost you?", _cost(by_label[PLAIN], by_label[advised])),
        ("Who is left behind?", said),
        ("Which rule?", _rule(rule, rules, plain_is_best, about[rule])),
        ("How sure is that?", "\n".join([_sure(by_label, advised), *doubts])),
    ]
    return Diagnosis(answers, table), lines


def page(found: Diagnosis, setting: Setting, lines: Sequence[Lines], title: str, command: str) -> str:
    """The page of a diagnosis: the answers, the clients that lose most, and all that the simulation shows."""
    lists = [(q, "".join(f"<li>{escape(line)}</li>" for line in a.split("\n"))) for q, a in found.answers]
    told = "".join(f"<h3>{escape(q)}</h3><ul>{a}</ul>" for q, a in lists)
    table = markup.table(found.clients, "The clients that lose most with plain averaging")
    more = f"<h3>To go on</h3><pre><code>{escape(command)}</code></pre>"
    return document(title, [Part("The answer", told + table + more, [], ""),
                            setting_part(setting, "The simulation behind it", lines)])  # fmt: skip


def _cost(plain: Lines, other: Lines) -> str:
    main, objective = compared([plain.group, other.group])[0], metric(OBJECTIVE)
    ours, theirs = (spread(g.group.values(main.name, "last10")).mean for g in (plain, other))
    gap = main.score(theirs) - main.score(ours)
    sure = behind(plain.group, other.group, main)
    ends = f"FedAvg ends at {main.text(ours)} {main.label}, {other.group.label} at {main.text(theirs)}"
    points = f"{100 * gap:.1f} points" if main.percent else f"{gap:.3g}"
    first = f"{ends}: it costs {points}." if gap > 0 and sure else f"{ends}: no difference beyond chance."
    if objective.name == main.name:
        return first
    mine, best = (spread(g.group.values(objective.name, "last10")).mean for g in (plain, other))
    worse = mine / best - 1 if best > 0 else 0.0
    side = "above" if worse >= 0 else "below"
    far = f"{percent(abs(worse), 0)} {side} the other's"
    return f"{first}\nIts training objective, in which all clients count, ends {far}."


def _left_behind(plain: Lines, other: Lines) -> tuple[Table, int, str]:
    """The clients that lose most with plain averaging, how many lose much, and that in words."""
    m, found = scored([plain, other])
    often = shares(plain)
    if len(found) < 2 or often is None:
        return Table(["client"], []), 0, "The clients were not tested one by one, so that cannot be told."
    ours, theirs = (values for _, values in found)
    loss = np.nan_to_num(theirs - ours if m.higher_is_better else ours - theirs)
    loss = (loss if m.percent else loss / np.maximum(np.abs(np.nan_to_num(theirs)), 1e-12)).round(9)  # 5 is 5
    called, order, unit = names(plain, len(ours)), np.argsort(-loss, kind="stable"), "points" if m.percent else "%"
    lost = [i for i in order if loss[i] > MUCH]
    head = ["client", "heard from", f"{m.label}, fedavg", f"{m.label}, {other.group.label}", f"lost, {unit}"]
    rows = [[called[i], percent(often[i]), m.text(ours[i]), m.text(theirs[i]), f"{100 * loss[i]:+.0f}"]
            for i in order[:WORST]]  # fmt: skip
    if not lost:
        return Table(head, rows), 0, f"Nobody: no client loses more than {100 * MUCH:.0f} {unit}."
    rest = [i for i in order if loss[i] <= MUCH]
    each = [f"{called[i]} ({100 * loss[i]:.0f}{'' if m.percent else ' %'})" for i in lost]
    who = joined(each if len(each) <= 6 else [*each[:5], f"{len(each) - 5} more"])
    rare = f"They were heard from in {percent(np.mean(often[lost]), 0)} of the rounds on average"
    rare += f", the others in {percent(np.mean(often[rest]), 0)}." if rest else "."
    many = f"{len(lost)} of {len(ours)} clients lose more than {100 * MUCH:.0f} {unit} of {m.label}"
    return Table(head, rows), len(lost), f"{many}: {who}.\n{rare}"


def _rule(rule: str, rules: Sequence[str], plain: bool, about: str) -> str:
    if plain:
        return "FedAvg: nothing here is better beyond chance, and it is the simplest."
    same = [label for label in rules if label not in (rule, PLAIN)]
    told = f"\n{joined(same)} cannot be told from it by the mean over the clients." if same else ""
    return f"Use {rule} in the place of FedAvg.\n{about}{told}"


def _sure(by_label: dict[str, Lines], advised: str) -> str:
    plain, other = by_label[PLAIN].group, by_label[advised].group
    seeds, rounds = len(plain.runs), plain.config["rounds"]
    tests = compared([plain, other])[:2]
    beyond = [m.label for m in tests if behind(plain, other, m)]
    how = f"FedAvg is worse in {joined(beyond)} beyond chance" if beyond else "no difference is beyond chance"
    tried = f"{advised} is the best of {len(by_label) - 1} alternatives that were tried"
    often = f"Simulated on your data {seeds} times (seeds), {rounds} rounds each"
    return f"{often}; by paired tests at 5 %, {how}; {tried}."

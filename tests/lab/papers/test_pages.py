"""The numbers on the pages in docs/reproduction: each is what the stored files give today, to the digits shown."""

import csv
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from fedstale.core import Floats
from fedstale.lab.papers import claims
from fedstale.lab.papers.figure import read as reproduced
from fedstale.lab.papers.pooled import OF_FIGURES, best_slope, lead
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.statistics import uncertainty
from tests.lab.papers.test_verdicts import FIGURES, ON_PAGES, PAGES, read


@cache
def lines(name: str) -> list[dict[str, str]]:
    with (PAGES / f"{name}.csv").open() as f:
        return list(csv.DictReader(f))


Source = tuple[str, str, dict[str, str]]  # a stored file, one of its columns, and which of its rows


def averages(file: str, column: str, where: Mapping[str, str], by: str) -> dict[str, float]:
    """The mean of a column over the rows asked for, by another column; rows without a value do not count."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines(file):
        if line[column] and all(line[key] == value for key, value in where.items()):
            found[line[by]].append(float(line[column]))
    scale = 100 if "accuracy" in (*where.values(), column.split("_")[0]) else 1e5 if "variance" in column else 1
    return {key: scale * fmean(of) for key, of in found.items()}


def cells(page: str, label: str) -> list[list[str]]:
    """The numbers of each row with this label; of a cell such as 62.9 / 43.6, the paper's and ours, ours."""
    rows = re.findall(rf"^\| {re.escape(label)} \|(.+)\|$", (PAGES / f"{page}.md").read_text(), re.M)
    return [re.findall(r"\| (?:[\d.]+ / )?([\d.]+)(?= \|)", f"|{row}|".replace("**", "")) for row in rows]


def row(
    page: str, label: str, *sources: Source, by: str = "algorithm", order: Sequence[str] = ()
) -> tuple[Any, ...]:
    """A row of a table on a page: whence its numbers, what a cell is of, and their order if not the file's."""
    return page, label, sources, by, order


def of(figure: str, column: str, **where: str) -> Source:
    return f"{figure}-laptop", column, where


KAPPAS = ("Unbiased", *(f"CA-Fed (κ̄² = {κ2})" for κ2 in ("10²", "10", "1", "10⁻¹", "10⁻²")), "More available")
FIVE = ("Unbiased", "More available", "CA-Fed", "AdaFed", "F3AST")
ONE, OWN = "Synthetic", "Synthetic, own models"
AT, LAST, TRAIN, LOSS = "accuracy_at", "accuracy_last10", "included_mean", "objective_last10"
TURN = "one round of each group's turn"
A1, A2, TABS = "amplified-fig1", "amplified-fig2", "thesis-tables"
F21, F22, F23, F24 = (f"thesis-fig2.{k}" for k in (1, 2, 3, 4))
TABLES = [
    *(
        row(A1, f"CIFAR-10: {label}", of("amplified-fig1-cifar", column))
        for label, column in (
            ("learning rate", "lr"),
            (f"test accuracy (%), {TURN}", AT),
            ("test accuracy (%), last 10 rounds", LAST),
            (f"training objective, {TURN}", "objective_at"),
        )
    ),
    row(A1, "learning rate", of(A1, "lr")),
    row(A1, "test accuracy (%), last 10 rounds", of(A1, LAST)),
    *(row(page, f"test accuracy (%), {TURN}", of(page, AT)) for page in (A1, A2)),
    *(row(page, f"training objective, {TURN}", of(page, "objective_at")) for page in (A1, A2)),
    *(
        row(
            F21,
            rule + ": here" * (rule == "CA-Fed"),
            *(of(F21, m, algorithm=rule) for m in (LAST, TRAIN)),
            by="panel",
        )
        for rule in (*FIVE, "CA-Fed, no factor 4", "CA-Fed, F* known", "CA-Fed, F* known, no factor 4")
    ),
    *(
        row(
            F21,
            rule,
            *(
                (f"{F21}{kind}-laptop-curves", "mean", {"metric": "accuracy", "round": "40", "algorithm": rule})
                for kind in ("", "-epochs", "-cifar")
            ),
            by="panel",
        )
        for rule in FIVE
    ),
    *(
        row(
            F21,
            label + what,
            of(f"{F21}-{kind}", m, panel=panel),
            order=(*FIVE[:3], f"CA-Fed, F* {known}, no factor 4", *FIVE[3:]),
        )
        for label, kind, panel, known in (
            ("Synthetic: ", "epochs", ONE, "known"),
            ("own models: ", "epochs", OWN, "known"),
            ("", "cifar", "CIFAR-10", "= 0"),
        )
        for what, m in (("test accuracy (%)", LAST), ("clients that train", TRAIN))
    ),
    *(
        row(F22, label, of(F22, m, panel=ONE), order=KAPPAS)
        for label, m in (
            ("one model", "accuracy_at_40"),
            ("one model", LAST),
            ("clients that train, one model", TRAIN),
            ("server rate that was chosen, one model", "server.lr"),
        )
    ),
    *(row(F22, "own models", of(F22, m, panel=OWN), order=KAPPAS) for m in ("accuracy_at_40", LAST, TRAIN)),
    *(
        row(F23, label, of(F23, LAST, panel=panel, gamma=gamma), order=KAPPAS)
        for label, panel in (("one model", ONE), ("own models", OWN))
        for gamma in ("0.0", "0.5", "1.0")
    ),
    row(F24, "mean error of π̂", of(F24, "probs_error"), by="warmup_rounds"),
    row(F24, "mean error of λ̂", of(F24, "mixing_error"), by="warmup_rounds"),
    row(F24, "clients that CA-Fed takes, of 49.8", of(F24, TRAIN, kappa2="1.0"), by="warmup_rounds"),
    *(
        row(
            F24,
            f"{rule} (%)",
            of(F24, LAST, algorithm=rule.replace("CA-Fed", "CA-Fed (κ̄² = 1)")),
            by="warmup_rounds",
        )
        for rule in FIVE
    ),
    *(
        row(figure.removesuffix("-epochs"), f"here, {panel}", of(figure, LAST, panel=panel))
        for figure in ("thesis-fig4.1", "thesis-fig4.1-epochs", "thesis-fig4.2-epochs")
        for panel in dict.fromkeys(line["panel"] for line in lines(f"{figure}-laptop"))
    ),
    *(
        row("thesis-fig4.2", f"{what}, here", of("thesis-fig4.2", m))
        for what, m in (("test accuracy (%)", LAST), ("training loss", LOSS))
    ),
    *(
        row(TABS, f"{mix}: here", of("thesis-tab5.1", LAST, panel=f"CIFAR-10 {mix}"))
        for mix in ("80-15-5", "5-15-80")
    ),
    *(
        row(TABS, f"{mix}, {what}", (f"thesis-tab5.1-mixes-laptop-{end}", LAST, {"panel": f"CIFAR-10 {mix}"}))
        for mix in ("80-15-5", "5-15-80")
        for what, end in (("ten times the samples", "long"), ("and the thesis' optimiser", "optimiser"))
    ),
    *(
        row(TABS, f"{mix}: here", of("thesis-tabD.2", LAST, panel=f"CIFAR-10 {mix}"))
        for mix in ("60-30-10", "10-30-60")
    ),
    row(TABS, "here", of("thesis-tab5.3", LAST)),
    *(
        row(
            TABS,
            f"{data}: here, after {when}",
            *(of("thesis-tabD.1", f"variance_exit_{k}_{m}", panel=data) for k in "123"),
            by="panel",
        )
        for data in ("CIFAR-10", "CIFAR-100")
        for when, m in (("one round", "at_1"), ("15 rounds", "final"))
    ),
]


@pytest.mark.parametrize(("page", "label", "sources", "by", "order"), TABLES)
def test_the_tables_are_those_of_the_stored_files(
    page: str, label: str, sources: list[Source], by: str, order: Sequence[str]
) -> None:
    due = []
    for source in sources:
        found = averages(*source, by)
        due += [found[key] for key in order or found if key in found]
    told = cells(page, label)
    same = [[f"{x:.{len(n.partition('.')[2])}f}" for x, n in zip(due, row, strict=False)] for row in told]
    assert any(
        row == to_its_digits and len(row) == len(due) for row, to_its_digits in zip(told, same, strict=True)
    ), (told, due)


COUNTED = [
    (name, *(int(n.replace(",", "") or 0) for n in numbers))
    for page in ON_PAGES
    for name, *numbers in re.findall(
        r"reproduce ([\w.-]+)(?: --scale \w+)?`[:\s(]+([\d,]+) runs(?: of ([\d,]+) rounds|, ([\d,]+) rounds)",
        (PAGES / page).read_text(),
    )
]


@pytest.mark.parametrize(("name", "runs", "each", "total"), COUNTED)
def test_the_runs_that_a_page_counts_are_those_of_its_files(name: str, runs: int, each: int, total: int) -> None:
    """Every rate with every seed that it was tried on; and the reported ones, if these have other seeds."""
    figure = next(figure for figure in FIGURES if figure.rpartition("-")[0] == name)
    reported, tried = lines(figure), lines(f"{figure}-tuning")
    place = list(reported[0])[: list(reported[0]).index("algorithm")]
    apart = reproduced(name, figure.rpartition("-")[2]).raw["tune"].get("seeds", [])
    seeds: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for line in reported:
        seeds[tuple(line[key] for key in place)][line["seed"]] = int(line["rounds"])
    found = []
    for line in tried:
        rounds = [*seeds[tuple(line[key] for key in place)].values()]
        found += rounds[:1] * len(apart) or rounds
    found += [int(line["rounds"]) for line in reported if apart]
    assert (runs, total or runs * each) == (len(found), sum(found))
    assert len(COUNTED) >= 25  # the pages say it in the words that are looked for here


def signed(value: float, digits: int = 1) -> str:
    return f"{value:z.{digits}f}".replace("-", "−")


SAMPLES, ALIKE = "weighted by samples", "weighted alike"
EPOCHS = (
    "5 epochs, by samples",
    "5 epochs, alike",
    "2 epochs, by samples",
    "2 epochs, momentum and decay, by samples",
)
OVER_DMA, NEAR_END = ("UPGA-PL", "DMA-PL", LAST), ("UPGA-PL", "FedAvg, lossless", LAST)
NEAR_150, HARM = ("UPGA-PL", "FedAvg, lossless", "accuracy_at_150"), ("FedAvg, lossless", "DMA-PL", LAST)


@pytest.mark.parametrize(
    ("label", "columns", "least"),
    [
        ("UPGA-PL above DMA-PL at the end", [(SAMPLES, OVER_DMA), (ALIKE, OVER_DMA)], True),
        ("UPGA-PL above lossless FedAvg at round 150", [(SAMPLES, NEAR_150), (ALIKE, NEAR_150)], True),
        ("UPGA-PL above lossless FedAvg at the end", [(SAMPLES, NEAR_END), (ALIKE, NEAR_END)], True),
        *((panel, [(panel, OVER_DMA), (panel, NEAR_150)], True) for panel in EPOCHS),
        *((panel, [(panel, HARM), (panel, OVER_DMA)], False) for panel in (SAMPLES, ALIKE, *EPOCHS)),
    ],
)
def test_the_leads_by_draw_are_those_of_the_runs(
    label: str, columns: list[tuple[str, tuple[str, str, str]]], least: bool
) -> None:
    """The mean over the draws, with the least and the largest one, or the largest alone."""
    told = f"| {label.replace('weighted', '5 minibatches,')} "
    for panel, (first, second, column) in columns:
        file = f"thesis-fig4.1{'-epochs' * (panel in EPOCHS)}-laptop"
        of, than = (
            averages(file, column, {"panel": panel, "algorithm": name}, "data.seed") for name in (first, second)
        )
        leads = [of[draw] - than[draw] for draw in of]
        ends = [signed(end(leads)) for end in ([min, max] if least else [max])]
        told += f"| {signed(fmean(leads))} ({' to '.join(ends)}) "
    assert f"{told}|" in (PAGES / "thesis-fig4.1.md").read_text(), told


def best_betas(figure: str, panel: str, column: str = LAST, lower: bool = False) -> list[tuple[str, str, str]]:
    """By p_min, falling: the best β, and what FedAvg and FedVARP lose to it in points, as the page writes them."""
    about = {"text": "", "of": "beta", "metric": column, "lower": lower, "where": {"panel": panel}}
    found = []
    for cell in claims._found(about, [*read(PAGES / f"{figure}-laptop.csv")]):
        means = {cell.numbers[name]: 100 * float(values.mean()) for name, values in cell.values.items()}
        beta = max(means, key=lambda b: means[b])
        found.append((f"{beta:g}", *(f"{means[beta] - means[b]:.2f}".lstrip("0") for b in (0.0, 1.0))))
    return found


def test_the_best_betas_and_what_the_others_lose_are_those_of_the_runs() -> None:
    page = (PAGES / "fedstale-fig5.md").read_text()
    for label, panel in (
        ("exact", "exact p"),
        ("FedAU", "FedAU p̂"),
        ("FedAU with cutoff 50", "FedAU p̂, cutoff 50"),
    ):
        row = [" / ".join((beta.lstrip("0"), *lost)) for beta, *lost in best_betas("fedstale-fig5", panel)]
        assert f"| here, {label} | {' | '.join(row)} |" in page, row
    for rate, (label, name) in itertools.product(("0.56", "1.0"), (("exact", "exact p"), ("FedAU", "FedAU p̂"))):
        row = [lost for _, _, lost in best_betas("fedstale-fig5-shared", f"{name}, rate {rate}")]
        assert f"| rate {rate}, {label} | {' | '.join(row)} |" in page, row
    found = [beta for beta, _, _ in best_betas("fedstale-fig2", "network", "objective_last10", True)]
    for k, swap in enumerate(("0", "0.2", "0.4", "0.6", "0.8", "1")):  # the least σ̂² comes first in each p_min
        assert f"| σ̂² = {swap} | {' | '.join(found[k::6])} |" in (PAGES / "fedstale-fig2.md").read_text()


NUMBER = r"[+−]?\d+(?:\.\d+)?"
SCALES = {"points": 100.0, " %": 100.0, "× 10⁻⁵": 1e5}  # the unit of a row, by what is said in it


def compared(claim: claims.Claim, rows: Sequence[Row]) -> list[Floats]:
    """(seeds,) each: what a claim compares, over all its cells if it is about all of them, and cell by cell."""
    found, check = claims._found(claim, rows), claim["check"]
    if check == "trend":
        return [values for cell in found for values in cell.values.values()]
    if check == "near_best":
        return [lead(cell, {**claim, "second": claims.best(cell)}) for cell in found]
    pooled = [OF_FIGURES[check](found, claim)] if check in ("lead_slope", "best_slope") else []
    if check == "within":
        return [cell.values[claim["first"]] for cell in found]
    by_cell = [lead(cell, claim) for cell in found] if check in ("above", "near", "mean_lead") else []
    pooled += [np.mean(by_cell, axis=0)] if check == "mean_lead" else []
    return pooled + by_cell


def tells(text: str, value: float) -> bool:
    """Whether a number on a page is this one, to its digits and, if it shows one, with its sign."""
    digits = len(text.partition(".")[2])
    return f"{value if text[0] in '+−' else abs(value):+.{digits}f}".replace("-", "−").lstrip("+") == text.lstrip(
        "+"
    )


@pytest.mark.parametrize("figure", FIGURES)
def test_what_was_measured_begins_with_the_numbers_of_the_claim(figure: str) -> None:
    """Up to the first colon, semicolon or bracket: means, ± half a 90 % interval, p, counts of cells or seeds."""
    table = next(tables[figure] for tables in ON_PAGES.values() if figure in tables)
    name, _, scale = figure.rpartition("-")
    of = {claim["text"]: claim for claim in reproduced(name, scale).about["claims"]}
    rows, stored = [*read(PAGES / f"{figure}.csv")], {line["claim"]: line for line in lines(f"{figure}-claims")}
    for text, _, measured in table:
        line, told = (
            stored[text],
            re.split(r"[:;(]|, which", re.sub(r"\d+-\d+-\d+|× 10⁻⁵|CIFAR-10", "", measured))[0],
        )
        if line["detail"] == "a run diverged":
            continue
        unit = next((unit for word, unit in SCALES.items() if word in measured), 1.0)
        values = [unit * v for v in compared(of[text], rows)]
        ends = [end(v) for v in values for end in (min, max)] if " from " in told else []
        means = [float(x) for x in [*ends, *map(np.mean, values)]]
        means += [unit * float(x) for x in re.findall(r"[+-][\d.e-]+", line["detail"])]
        cases = [int(line[key]) for key in ("holds", "noise", "fails")]
        counts = {*cases, sum(cases), *(n for v in values for n in (len(v), int((v > 0).sum())))}
        counts |= {int(n) for n in re.findall(r"\d+", line["detail"].partition("alone")[2])}
        for p in re.findall(r"p = ([\d.e-]*\d)", told):
            assert abs(float(p) - float(line["p"])) <= 0.51 * 10 ** int(Decimal(p).as_tuple().exponent), text
        told = re.sub(r"p = [\d.e-]*\d", "", told)
        for mean, around in re.findall(rf"({NUMBER}) ± ({NUMBER})", told):
            assert any(tells(mean, v.mean()) and tells(around, uncertainty(v)) for v in values), f"{text}: {told}"
        for number in re.findall(NUMBER, re.sub(rf"{NUMBER} ± {NUMBER}", "", told)):
            assert number in map(str, counts) or any(tells(number, x) for x in means), f"{text}: {number} in {told}"


@pytest.mark.parametrize(
    "figure", [figure for figure in FIGURES if figure.startswith(("thesis-tab5", "thesis-tabD.2"))]
)
def test_what_the_exits_gain_and_lose_is_that_of_the_runs(figure: str) -> None:
    """In "exit 3 loses 1.3 and 1.9" the numbers are of two mixes, in "exits 1 and 2 lose 14 and 3" of two exits."""
    of = {claim["text"]: claim for claim in reproduced(figure.removesuffix("-laptop"), "laptop").about["claims"]}
    for text, _, measured in ON_PAGES["thesis-tables.md"][figure]:
        told = re.findall(r"exits? (\d)(?: and (\d))? (?:\w+ )?([\d.]+)(?:,? and (?:loses )?([\d.]+))?", measured)
        for one, other, *numbers in told:
            for k, number in zip((one, other or one), filter(None, numbers), strict=False):
                cells = compared(
                    {**of[text], "metric": f"accuracy_exit_{k}_last10"}, [*read(PAGES / f"{figure}.csv")]
                )
                assert any(tells(number, 100 * float(lead.mean())) for lead in cells), f"{text}: exit {k}, {number}"


def test_the_published_runs_are_those_that_the_program_printed() -> None:
    page = (PAGES / "published-runs.md").read_text()
    names = {"fedavg": "FedAvg", "fedstale": "FedStale (β = 0.5)", "fedvarp": "FedVARP"}
    printed = [
        (PAGES / f"published-runs-{batches}.txt").read_text().splitlines()[1:] for batches in ("torch", "own")
    ]
    for theirs, ours in zip(*printed, strict=True):
        budget, rule = re.match(r"uniform-(\w+)-budget, (\w+):", theirs).groups()  # type: ignore[union-attr]
        row = f"| {budget} budget, {names[rule]} "
        for line, was in ((theirs, True), (ours, False)):
            published, here, gap = line.split(": ")[1].split(", ")
            row += f"| {100 * float(published):.2f} " * was + f"| {100 * float(here):.2f} | "
            row += gap.replace("-", "−").replace("+0.00", "0.00") + " "
        assert f"{row}|" in page.replace("**", "")


def test_what_estimates_do_at_each_rate_is_that_of_the_runs() -> None:
    best = {"text": "", "of": "beta", "metric": "objective_last10", "lower": True}
    told: dict[str, list[str]] = {"is higher by": [], "falls per unit of ln(p_avg/p_min) by": []}
    for figure, tail in (("", ""), ("-shared", ", rate 0.56"), ("-shared", ", rate 1.0")):
        exact, estimated = f"exact p{tail}", f"FedAU p̂{tail}"
        cells = claims.cells(best, [*read(PAGES / f"fedstale-fig5{figure}-laptop.csv")])
        apart = best_slope(cells, {"along": "panel", "order": [exact, estimated]})
        fall = {"along": "p_min", "scale": "ln_ratio", "up": False}
        falls = best_slope([cell for cell in cells if cell.place["panel"] == estimated], fall)
        for row, values in zip(told.values(), (apart, falls), strict=True):
            row.append(f"{signed(values.mean(), 2)} ± {uncertainty(values):.2f}")
    for what, row in told.items():
        assert f"{what} | {' | '.join(row)} |" in (PAGES / "fedstale-fig5.md").read_text()


def test_the_last_round_of_figure_1_and_the_best_beta_of_figure_2_are_those_of_the_runs() -> None:
    ends: dict[str, list[float]] = defaultdict(list)
    with (PAGES / "fedstale-fig1-paper.csv").open() as f:
        for row in csv.DictReader(f):
            ends[row["algorithm"]].append(float(row["distance_final"]) - float(row["distance_last10"]))
    for rule, of in (("FedVARP (β = 1)", " from the optimum"), ("FedStale (β = 0.8)", "")):
        at_end = [
            float(line["distance_final"]) for line in lines("fedstale-fig1-paper") if line["algorithm"] == rule
        ]
        low, middle, high = np.quantile(at_end, [0.25, 0.5, 0.75])
        ends_of_half = f"between {low:.2f} and {high:.2f}{of} (median {middle:.2f})"
        assert ends_of_half in (PAGES / "fedstale-fig1.md").read_text(), ends_of_half
    most = max(abs(fmean(apart)) for apart in ends.values())
    assert f"by at most {most:.2f} on average over the runs" in (PAGES / "fedstale-fig1.md").read_text()
    values: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (PAGES / "fedstale-fig2-laptop.csv").open() as f:
        for row in csv.DictReader(f):
            for metric in ("accuracy_last10", "accuracy_final"):
                values[metric, row["p_min"], row["swap.fraction"]][row["beta"]].append(float(row[metric]))
    best = Counter((at[0], max(cell, key=lambda b: fmean(cell[b]))) for at, cell in values.items())
    page = (PAGES / "fedstale-fig2.md").read_text().replace("\n", " ")
    for metric, told in (
        (
            "accuracy_last10",
            "β = 0.2 has the highest mean accuracy in {} of the 30 cells, β = 0.5 in {} and β = 0 in {}.",
        ),
        ("accuracy_final", "β = 0.2 has it in {}, β = 0.5 in {} and β = 0 in {}."),
    ):
        assert told.format(*(best[metric, b] for b in ("0.2", "0.5", "0.0"))) in page

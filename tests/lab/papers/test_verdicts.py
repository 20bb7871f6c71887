"""The pages in docs/reproduction: one verdict for every claim, supported by its file, counted in the top table."""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import pytest

from fedstale.lab.papers import claims
from fedstale.lab.papers.figure import read as reproduced
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.store import RunFolder

PAGES = Path(__file__).parents[3] / "docs" / "reproduction"
NOT, UNDECIDED = "not reproduced", "cannot be decided at this scale"
SUPPORT = {  # what the claims file may say where the page has this verdict
    "reproduced": {"holds"},
    "reproduced in another setting": {"holds"},
    NOT: {"does not hold", "within noise"},
    UNDECIDED: {"within noise", "not tested"},
}
FIGURES = [f.name.removesuffix("-claims.csv") for f in sorted(PAGES.glob("*-claims.csv"))]
JUDGED = FIGURES
AGAIN = ("auto-", "thesis-tab5.4")  # docs/auto.md has no paper's claims, Table 5.4 those of 5.3 once more
FIGURES = [name for name in JUDGED if not name.startswith(AGAIN)]


def verdicts(page: Path) -> dict[str, list[list[str]]]:
    """By claims file the rows of its table: claim, verdict, what was measured."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] | None = None
    for line in page.read_text().splitlines():
        if name := re.match(r"\| \[claim\]\((.+)-claims\.csv\) \| verdict \|", line):
            rows = found.setdefault(name[1], [])
        elif not line.startswith("|"):
            rows = None
        elif rows is not None and not line.startswith("|---"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


ON_PAGES = {page.name: verdicts(page) for page in sorted(PAGES.glob("*.md")) if page.name != "README.md"}


@pytest.mark.parametrize("figure", FIGURES)
def test_every_claim_has_exactly_one_verdict_and_its_file_supports_it(figure: str) -> None:
    tables = [table[figure] for table in ON_PAGES.values() if figure in table]
    assert len(tables) == 1, f"{figure} must have one table of verdicts, on one page"
    with (PAGES / f"{figure}-claims.csv").open() as f:
        judged = {row["claim"]: row["verdict"] for row in csv.DictReader(f)}
    assert sorted(row[0] for row in tables[0]) == sorted(judged)
    for claim, verdict, measured in tables[0]:
        assert judged[claim] in SUPPORT[verdict], f"{claim}: {verdict}, but the file says {judged[claim]}"
        assert measured, f"{claim}: the page must say what was measured"


def number(text: str) -> Any:
    """A field of a CSV file as it was before it was written."""
    try:
        return {"True": True, "False": False, "": None}[text] if text in ("True", "False", "") else float(text)
    except ValueError:
        return text


def read(path: Path) -> Iterator[Row]:
    """The rows of a figure: where, the algorithm, its settings, seed and rounds, then what was measured."""
    with path.open() as f:
        for line in csv.DictReader(f):
            found = [(key, number(text)) for key, text in line.items() if text]
            keys = [key for key, _ in found]
            a, s, d = (keys.index(key) for key in ("algorithm", "seed", "diverged"))
            about = dict(found[a + 1 : s]), dict[str, Any](), int(line["seed"]), int(line["rounds"])
            place, values = dict(found[:a]), dict(found[d + 1 : -1])
            yield Row(place, line["algorithm"], *about, line["diverged"] == "True", values, RunFolder(Path()))


@pytest.mark.parametrize("figure", JUDGED)
def test_the_stored_verdicts_are_those_that_the_stored_rows_give_today(figure: str) -> None:
    """A change of how claims are judged judges the published figures again; new claims may wait for their runs."""
    name, _, scale = figure.rpartition("-")
    with (PAGES / f"{figure}-claims.csv").open() as f:
        stored = {row["claim"]: (row["verdict"], row["detail"]) for row in csv.DictReader(f)}
    known = [claim for claim in reproduced(name, scale).about["claims"] if claim["text"] in stored]
    judged = claims.judge(known, [*read(PAGES / f"{figure}.csv")])
    assert {v.claim: (v.verdict, v.detail) for v in judged} == {c["text"]: stored[c["text"]] for c in known}


def test_every_table_of_verdicts_has_its_files_and_its_picture() -> None:
    for page, tables in ON_PAGES.items():
        for figure in tables:
            assert figure in FIGURES, f"{page}: there is no {figure}-claims.csv"
            assert f"]({figure}.png)" in (PAGES / page).read_text()


def test_the_top_table_counts_the_verdicts_of_the_pages() -> None:
    top = re.findall(
        r"^\| \[.+?\]\((.+?\.md)\) †? ?\|.*?((?:\| \d+ )+)\|$", (PAGES / "README.md").read_text(), re.M
    )
    assert 0 < len(top) <= 25
    counted: dict[str, Counter[str]] = {page: Counter() for page, _ in top}
    for page, numbers in top:
        counts = [int(n) for n in numbers.replace("|", " ").split()]
        counted[page] += Counter(dict(zip(SUPPORT, counts, strict=True)))
    due = {page: Counter(row[1] for rows in tables.values() for row in rows) for page, tables in ON_PAGES.items()}
    assert counted == {page: counts for page, counts in due.items() if counts}


def test_the_shares_of_the_verdicts_are_those_of_the_pages() -> None:
    counts = Counter(row[1] for tables in ON_PAGES.values() for rows in tables.values() for row in rows)
    here, elsewhere, failed, open_ = (counts[verdict] for verdict in SUPPORT)
    n, good = sum(counts.values()), here + elsewhere
    shares = [f"{100 * k / n:.0f} %" for k in (good, failed, open_)]
    said = (
        f"**Of the {n} claims {good} ({shares[0]}) are reproduced, {here} in the setting of their page and "
        f"{elsewhere} in another one that is stated; {failed} ({shares[1]}) are not, and {open_} ({shares[2]}) "
        "cannot be decided at this scale.**"
    )
    assert said in (PAGES / "README.md").read_text().replace("\n", " "), said


READING = re.compile(  # what a claim begins with if it tests a statement of the same figure in another reading
    r"^(\d epochs[^:]*|rate [\d.]+(, last round)?|FedAU p̂(, cutoff 50)?|Synthetic, own models"
    r"|(F\* known, )?decisions about all clients, κ̄² = 1/4): (with estimates )?|^weighted alike, |, with F\* known$"
)


def test_the_shares_of_the_papers_statements_are_those_of_the_pages() -> None:
    """A statement that is tested in several readings counts once, with the best of its verdicts."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for figure, rows in ((figure, rows) for tables in ON_PAGES.values() for figure, rows in tables.items()):
        for claim, verdict, _ in rows:
            name = re.sub(r"(-epochs|-shared|-mixes)?-(laptop|paper)$", "", figure)
            found[name, READING.sub("", claim)].append(verdict)
    here, elsewhere, failed, open_ = SUPPORT
    best = Counter(min(of, key=[here, elsewhere, open_, failed].index) for of in found.values())
    n, good = len(found), best[here] + best[elsewhere]
    shares = [f"{100 * k / n:.0f} %" for k in (good, best[failed], best[open_])]
    said = (
        f"Of these {n} statements {good} ({shares[0]}) are reproduced, {best[failed]} ({shares[1]}) are not, and "
        f"{best[open_]} ({shares[2]}) cannot be decided."
    )
    assert said in (PAGES / "README.md").read_text().replace("\n", " "), said


def test_the_top_table_can_be_read_in_two_minutes() -> None:
    """A picture in every row and short cells: at 200 words a minute."""
    rows = [
        line for line in (PAGES / "README.md").read_text().splitlines() if re.match(r"\| \[.+?\]\(.+?\.md\)", line)
    ]
    words = 0
    for row in rows:
        _, picture, paper, here, *_ = row.strip("| ").split(" | ")
        assert (PAGES / re.findall(r'src="(.+?)"', picture)[0]).is_file()
        words += len(f"{paper} {here}".split())
        assert max(len(paper), len(here)) <= 80, row
    assert words <= 400


def test_no_page_guesses() -> None:
    assert not [page.name for page in PAGES.glob("*.md") if re.search(r"\bguess", page.read_text(), re.I)]


@pytest.mark.parametrize(
    ("figure", "setting", "symbol"),
    [
        ("fedstale-fig3", "swap.fraction", "σ̂²"),
        ("fedstale-fig4", "p_min", "p_min"),
        ("fedstale-fig5", "p_min", "p_min"),
        ("fedstale-fig5-shared", "p_min", "p_min"),
    ],
)
def test_the_leads_in_the_last_round_are_those_of_the_runs(figure: str, setting: str, symbol: str) -> None:
    """By the mean of the last ten rounds, and by the last one alone."""
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (PAGES / f"{figure}-laptop.csv").open() as f:
        for row in csv.DictReader(f):
            for metric in ("accuracy_last10", "accuracy_final"):
                values[row["panel"], row[setting], row["algorithm"], metric].append(100 * float(row[metric]))
    page = (PAGES / f"{figure.removesuffix('-shared')}.md").read_text()
    for panel, at in {key[:2] for key in values}:
        told = f"| {panel}, {symbol} = {at} "
        for other in ("FedAvg (β = 0)", "FedVARP (β = 1)"):
            pairs = [
                [fmean(values[panel, at, rule, metric]) for rule in ("FedStale (β = 0.5)", other)]
                for metric in ("accuracy_last10", "accuracy_final")
            ]
            told += "| " + " → ".join(f"{a - b:.2f}".replace("-", "−") for a, b in pairs) + " "
        assert f"{told}|" in page


RULES = ("FedAvg (β = 0)", "FedStale (β = 0.5)", "FedVARP (β = 1)")


def accuracies(figure: str, *, at: str) -> dict[tuple[str, str, str], float]:
    """By panel, a setting and the algorithm: the mean accuracy of the last ten rounds over all runs, in %."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with (PAGES / f"{figure}-laptop.csv").open() as f:
        for row in csv.DictReader(f):
            if row["accuracy_last10"]:  # it did not diverge
                values[row["panel"], row.get(at, ""), row["algorithm"]].append(100 * float(row["accuracy_last10"]))
    return {key: fmean(of) for key, of in values.items()}


@pytest.mark.parametrize(
    ("figure", "at"),
    [("fedstale-fig3", "swap.fraction"), ("fedstale-fig4", "p_min")],
)
def test_the_accuracies_of_fedstale_are_those_of_the_runs(figure: str, at: str) -> None:
    found, page = accuracies(figure, at=at), (PAGES / f"{figure}.md").read_text()
    for panel in {key[0] for key in found}:
        for label, rule in zip(("FedAvg", "β = 0.5", "FedVARP"), RULES, strict=True):
            cells = [f"{value:.1f}" for key, value in found.items() if (key[0], key[2]) == (panel, rule)]
            assert f"| {panel}: {label} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize(
    ("figure", "page", "row"),
    [
        ("fedawe-tab2", "fedawe-tab2", 2),
        ("fedawe-tab2-shared", "fedawe-tab2", 2),
        ("thesis-tab5.1-mixes", "thesis-tables", 0),
        ("thesis-tab5.1-cifar100", "thesis-tables", 0),
        ("thesis-tab5.2", "thesis-tables", 0),
    ],
)
def test_the_accuracies_beside_a_papers_table_are_those_of_the_runs(figure: str, page: str, row: int) -> None:
    """In cells such as 62.9 / 43.6, the paper's and ours; a row is a panel (0) or an algorithm (2)."""
    due: dict[str, list[str]] = defaultdict(list)
    for key, value in accuracies(figure, at="").items():
        due[key[row]].append(f"{value:.1f}")
    lines = (PAGES / f"{page}.md").read_text().splitlines()
    for name, cells in due.items():
        told = [re.findall(r" / ([\d.]+)", line) for line in lines if re.match(rf"\| {re.escape(name)}\b", line)]
        assert cells in told, f"| {name} | {' | '.join(cells)} |"


def signed(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def test_who_is_left_out_by_ca_fed_is_that_of_the_runs() -> None:
    """Groups 0 and 1 come often, 2 seldom and correlated; in Figure 2.5 the groups are clusters."""
    counts: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in ("thesis-fig2.1", "thesis-fig2.1-epochs", "thesis-fig2.1-cifar"):
        with (PAGES / f"{figure}-laptop-left-out.csv").open() as f:
            for row in csv.DictReader(f):
                if row["algorithm"] == "CA-Fed":
                    counts[figure, row["panel"]][int(row["group"])].append(float(row["left_out"]))
    means = [{group: fmean(values) for group, values in of.items()} for of in counts.values()]
    page = (PAGES / "thesis-fig2.1.md").read_text()
    for told, values in (
        ("left out, of those that are there", [sum(of.values()) for of in means]),
        ("of these, often there", [of[0] + of[1] for of in means]),
        ("of these, seldom there and correlated", [of[2] for of in means]),
    ):
        assert f"| {told} | {' | '.join(f'{value:.1f}' for value in values)} |" in page
    with (PAGES / "thesis-fig2.5-laptop-left-out.csv").open() as f:
        rows = [row for row in csv.DictReader(f) if int(row["group"]) >= 5]
    known = [row for row in rows if "F* known" in row["algorithm"]]
    visits, shares = ([float(row[key] or 101) for row in known] for key in ("first", "left_out_of_all"))
    assert f"a correlation of {correlation(visits, shares):.2f}." in (PAGES / "thesis-fig2.5.md").read_text()
    assert {row["left_out_of_all"] for row in rows if not row["first"] and row not in known} == {"0.0"}


def test_the_accuracies_with_kept_momentum_are_those_of_the_runs() -> None:
    """A row for each server, with the panels and algorithms in their order."""
    found: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    with (PAGES / "thesis-fig2.1-kept.csv").open() as f:
        for row in csv.DictReader(f):
            found[row["server"]][row["panel"], row["algorithm"]].append(100 * float(row["accuracy"]))
    page = (PAGES / "thesis-fig2.1.md").read_text()
    for server, of in found.items():
        told = " | ".join(f"{fmean(values):.1f}" for values in of.values())
        assert re.search(rf"^\| {server}.* \| {re.escape(told)} \|$", page, re.M), f"| {server} … | {told} |"


def test_the_shares_of_figure_2_5_are_those_of_the_runs() -> None:
    shares: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    with (PAGES / "thesis-fig2.5-laptop.csv").open() as f:
        for row in csv.DictReader(f):
            if row["panel"] == "all data alike":
                for kind in ("left_out", "excluded"):
                    values = [float(row[f"{kind}_{c}"] or "nan") for c in range(10)]
                    shares[kind, row["algorithm"]].append(values)
    page = (PAGES / "thesis-fig2.5.md").read_text()
    for runs in shares.values():
        means = [fmean(x for x in of if x == x) for of in zip(*runs, strict=True)]  # nan: it never came
        assert f" | {' | '.join(f'{100 * x:.0f}' for x in means)} |" in page

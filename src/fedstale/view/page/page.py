"""The page: an overview, then every setting with its table, its plots, its configuration and its commands."""

from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from fedstale.core import BadInput
from fedstale.core.abilities import listed
from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import LISTED, TRACED, metric
from fedstale.lab.runs.query import Setting, client_values, clients, tuned
from fedstale.lab.runs.verdict import halves, verdict
from fedstale.view.page import markup, sweeps, tables
from fedstale.view.page.clients import alike, heard_weight, raster, realised, recorded, staleness
from fedstale.view.page.plots import BETA, KEYS, Plot, curves
from fedstale.view.page.series import Lines, read
from fedstale.view.page.served import EPSILON, everyone, served, visited
from fedstale.view.plots.palette import looks

WAYS = 3  # of choosing clients that are drawn in one setting
LEAST = (
    "A map of the best β needs FedStale at several β in settings that differ in p_min or in swap.fraction: "
    "see `fedstale reproduce fedstale-fig2`."
)


class Part(NamedTuple):
    """A section: its heading, what stands above the plots, the plots, and what stands below them."""

    title: str
    above: str
    plots: list[Plot]
    below: str


def page(found: Sequence[Setting], traces: Sequence[Path], title: str, most: int) -> str:
    """The whole document; of more than `most` settings the first are drawn and the others listed."""
    settings = [tuned(s) for s in found]
    drawn, names = settings[:most], tables.titles(settings)
    runs = sum(len(g.runs) for s in found for g in s.groups)
    parts = [_overview(settings, names, runs, len(drawn))] if len(settings) > 1 else []
    numbered = [f"{k}. {name}" for k, name in enumerate(names, 1)] if len(names) > 1 else names
    for s, name in zip(drawn, numbered, strict=False):
        parts.append(setting_part(s, name, read([g for g in s.groups if g.runs][:KEYS])))
    parts += [Part(f"Recorded participation: {path.name}", "", recorded(path), "") for path in traces]
    return document(title, parts)


def _overview(settings: Sequence[Setting], names: Sequence[str], runs: int, drawn: int) -> Part:
    lines = [f"{runs} finished runs in {len(settings)} settings."]
    if drawn < len(settings):
        others = "--settings, or the folders of single runs, show others"
        lines.append(f"The first {drawn} settings are drawn; {others}.")
    if len(settings) > tables.MOST:
        lines.append(f"The table has the first {tables.MOST} of them.")
    plots = sweeps.maps(settings)
    caption = "All settings, and who is best in the mean of the last 10 rounds"
    above = paragraph(" ".join(lines)) + markup.table(tables.overview(settings, names), caption)
    return Part("Overview", above, plots, "" if plots else _notes([LEAST]))


def setting_part(s: Setting, name: str, shown: Sequence[Lines], running: Collection[Path] = ()) -> Part:
    """The section of one setting: its table, the plots of these lines of metrics, and what is not shown.

    Runs in the folders `running` have no result yet, which is nothing to complain about.
    """
    drawn = looks([group.group.label for group in shown])
    above = ""
    if any(g.runs for g in s.groups):
        table, best = tables.final(s.groups, shown)
        above = markup.table(table, tables.FINAL, best) if table.rows else ""
        above = _verdict(s, shown) + above
    names = dict.fromkeys(key for group in shown for lines in group.seeds for key in lines[-1])
    main, aim = shown[0].group.config.get("main") if shown else None, tables.aim(shown)
    found = [curves(shown, m, drawn, aim) for m in metrics.shown(names, main=main)]
    found += [served(shown, drawn), visited(shown, drawn), visited(shown, drawn, EPSILON)]
    found += [realised(shown, drawn), curves(shown, BETA, drawn)]
    ways = alike(shown) if shown else []
    found += [plot(names, group) for names, group in ways[:WAYS] for plot in (raster, heard_weight, staleness)]
    plots = [p for p in found if p]
    notes = missing(s, shown, plots, len(ways), running)
    return Part(name, above, plots, _everyone(shown) + _notes(notes) + _origin(s))


def _everyone(shown: Sequence[Lines]) -> str:
    """All that is known of each client, folded away."""
    table = everyone(shown)
    caption = "The rarest clients first; scores are of the final model, means over the seeds"
    inside = markup.table(table, caption) if table else ""
    return f"<details><summary>Every client</summary>{inside}</details>" if inside else ""


def _verdict(s: Setting, shown: Sequence[Lines]) -> str:
    """The sentence on top of a setting: what its runs show."""
    pairs = {g.group.label: list(zip((r.folder for r in g.group.runs), g.seeds, strict=True)) for g in shown}
    rare = clients(shown[0].group.config, shown[0].seeds[0]) // 2 if shown else 0
    text = verdict(s.groups, {label: halves(of) for label, of in pairs.items()}, rare)
    return f'<p class="verdict">{escape(text)}</p>' if text else ""


def missing(
    s: Setting, lines: Sequence[Lines], plots: Sequence[Plot], ways: int, running: Collection[Path] = ()
) -> list[str]:
    """What the page leaves out of a setting, given what of it is drawn, and what would record it."""
    notes = _not_drawn(s, running)
    if not lines:
        return notes
    n, titles = clients(lines[0].group.config, lines[0].seeds[0]), {p.title.split(":")[0] for p in plots}
    if metric("accuracy").title not in titles:
        notes.append("No test accuracy: this task has no test samples; images and `synthetic` have.")
    elif not any(t.endswith("of each client") for t in titles) and not running:
        notes.append(f"The accuracy of each client is not recorded: {_not_served(lines[0], n)}")
    if "Realised weights" not in titles:
        notes.append(f"Realised weights are recorded up to {TRACED} clients (`data.clients`); here there are {n}.")
    if not any(t.startswith("β") for t in titles):
        notes.append('No run tunes its β while it goes; `algorithms = ["auto"]` does and records it.')
    if ways > WAYS:
        more = f"{WAYS} are drawn: name single runs for more"
        notes.append(f"The algorithms chose their clients in {ways} ways, {more}.")
    return notes


def _not_drawn(s: Setting, running: Collection[Path]) -> list[str]:
    notes, done = [], sum(bool(g.runs) for g in s.groups)
    broken = [r.folder.path.name for g in s.groups for r in g.broken if r.folder.path not in running]
    if broken:
        few = listed(broken)
        what = f"{len(broken)} runs have no result" if len(broken) > 1 else "One run has no result"
        notes.append(f"{what}: interrupted or diverged ({few}). The same command with `--resume` goes on with it.")
    if done > KEYS:
        notes.append(f"{KEYS} of {done} algorithms are drawn; the table has all of them.")
    return notes


def _not_served(lines: Lines, n: int) -> str:
    known = client_values(lines.group.runs[0].folder)
    if n > LISTED:
        return f"that is done up to {LISTED} clients, and here there are {n}."
    again = "run it again with `fedstale run FILE --again`."
    return "this task does not test clients one by one." if known else again


def _origin(s: Setting) -> str:
    commands, machines = tables.origins(s)
    told = "\n".join(commands) or "unknown: the runs do not say"
    settings = markup.table(tables.configuration(s), "Every key, and whose it is")
    return (
        f"<h3>How to run it again</h3><pre><code>{escape(told)}</code></pre>"
        + "".join(paragraph(f"Computed with {m}") for m in machines[:3])
        + f"<details><summary>The configuration</summary>{settings}</details>"
    )


def paragraph(text: str) -> str:
    """A paragraph; what stands between backticks is code."""
    pieces = escape(text).split("`")  # every second one is code
    return "<p>" + "".join(f"<code>{t}</code>" if k % 2 else t for k, t in enumerate(pieces)) + "</p>"


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{paragraph(note)[3:-4]}</li>" for note in notes)
    return f'<h3>Not shown</h3><ul class="missing">{items}</ul>' if notes else ""


def document(title: str, parts: Sequence[Part]) -> str:
    """One file: styles, plots, data and the library that draws them."""
    here = files("fedstale.view.page")
    plots: dict[str, dict[str, object]] = {}
    body = []
    for k, part in enumerate(parts, 1):
        figures = []
        for plot in part.plots:
            name = f"p{len(plots) + 1}"
            plots[name] = {"data": plot.data, "layout": plot.layout, **({"over": plot.over} if plot.over else {})}
            figures.append(markup.figure(plot, name))
        inside = f'{part.above}<div class="plots">{"".join(figures)}</div>{part.below}'
        body.append(f'<section id="s{k}"><h2>{escape(part.title)}</h2>{inside}</section>')
    links = "".join(f'<li><a href="#s{k}">{escape(part.title)}</a></li>' for k, part in enumerate(parts, 1))
    style = "".join((here / name).read_text() for name in ("report.css", "dark.css"))
    script = "".join((here / name).read_text() for name in ("figures.js", "report.js"))
    filled = {
        "TITLE": escape(title), "STYLE": style, "BODY": "".join(body),
        "NAV": f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if len(parts) > 1 else "",
        "DATA": markup.data(plots), "LIBRARY": library(), "SCRIPT": script,
    }  # fmt: skip
    pieces = (here / "report.html").read_text().split("@@")  # every second piece is a name
    return "".join(filled[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def library() -> str:
    """Plotly's script, which comes with its Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise BadInput("the report needs plotly: pip install 'fedstale[report]'") from None
    return str(get_plotlyjs())

"""What the page leaves out, and what would record it: a sentence each."""

from collections.abc import Sequence

from fedstale.report.plots import Plot
from fedstale.report.series import Lines, clients
from fedstale.report.style import KEYS
from fedstale.runs.metrics import LISTED, TRACED, metric
from fedstale.runs.query import Setting

WAYS = 3  # of choosing clients that are drawn in one setting


def missing(s: Setting, lines: Sequence[Lines], plots: Sequence[Plot], ways: int) -> list[str]:
    """Of a setting, given what of it is drawn."""
    notes = list(_runs(s))
    if not lines:
        return notes
    n, titles = clients(lines[0]), {p.title.split(":")[0] for p in plots}
    if metric("accuracy").label.capitalize() not in titles:
        notes.append("No test accuracy: this task has no test samples; images and `synthetic` have.")
    elif "Accuracy of each client" not in titles:
        notes.append(f"The accuracy of each client is not recorded: {_served(lines[0], n)}")
    if "Realised weights" not in titles:
        notes.append(f"Realised weights are recorded up to {TRACED} clients (`data.clients`); here there are {n}.")
    if not any(t.startswith("β") for t in titles):
        notes.append('No run tunes its β while it goes; `algorithms = ["auto"]` does and records it.')
    if ways > WAYS:
        notes.append(
            f"The algorithms chose their clients in {ways} ways, {WAYS} are drawn: name single runs for more."
        )
    return notes


def _runs(s: Setting) -> list[str]:
    notes, done = [], sum(bool(g.runs) for g in s.groups)
    broken = [r.folder.path.name for g in s.groups for r in g.broken]
    if broken:
        few = ", ".join(broken[:3]) + (", …" if len(broken) > 3 else "")
        what = f"{len(broken)} runs have no result" if len(broken) > 1 else "One run has no result"
        notes.append(f"{what}: interrupted or diverged ({few}). The same command with `--resume` goes on with it.")
    if done > KEYS:
        notes.append(f"{KEYS} of {done} algorithms are drawn; the table has all of them.")
    return notes


def _served(lines: Lines, n: int) -> str:
    known = lines.group.runs[0].folder.clients()
    if n > LISTED:
        return f"that is done up to {LISTED} clients, and here there are {n}."
    return (
        "this task does not test clients one by one." if known else "run it again with `fedstale run FILE --again`."
    )

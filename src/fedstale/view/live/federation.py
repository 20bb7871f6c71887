"""A federation on the page: its rounds, its clients and why replies were rejected, from the files of its folder."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import BadInput
from fedstale.core.abilities import listed
from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric, percent
from fedstale.lab.runs.query import SILENT, Group, Line, Run, mute
from fedstale.lab.runs.status import Tail
from fedstale.lab.runs.store import RunFolder, read_json
from fedstale.view.page import markup, page
from fedstale.view.page.clients import heard_weight, raster
from fedstale.view.page.plots import Plot, Table, curves, interval, layout, plain, scatter
from fedstale.view.page.series import Lines
from fedstale.view.plots.palette import look, looks

LOSS = Metric("train_loss", "training loss of the clients heard")
SHOWN = ("accuracy", "test_loss")  # that clients evaluate now and then
REASONS = 50  # rows of the table of rejected replies
HEAD = {
    "client": "client", "rounds": "rounds", "asked": "asked", "heard": "heard", "rejected": "rejected",
    "staleness": "rounds since heard", "p": "p̂", "p_low": "from", "p_high": "to", "weight_target": "weight aᵢ",
    "weight_realised": "realised weight",
}  # fmt: skip


class Now(NamedTuple):
    """A federation at one moment."""

    name: str
    round: int
    rounds: int
    state: str
    clients: list[dict[str, Any]]
    voids: int


def is_federation(folder: Path) -> bool:
    """Whether a folder is one of `fedstale federation init`."""
    return (folder / "federation.toml").exists()


def now(folder: Path) -> Now:
    """What the files of the folder say; what is missing or damaged is left out."""
    try:
        file = tomllib.loads((folder / "federation.toml").read_text())
        status = read_json(folder / "status.json") if (folder / "status.json").exists() else {}
    except (OSError, ValueError) as error:  # BadInput and a mistake in the file, too
        raise BadInput(f"{folder} cannot be read: {error}") from None
    t, rounds = int(status.get("round") or 0), int(file.get("rounds") or 0)
    state = "running" if RunFolder(folder / "state").busy else "finished" if t and t >= rounds else "interrupted"
    clients = [row for row in status.get("clients") or [] if isinstance(row, dict)]
    return Now(str(file.get("name", folder.name)), t, rounds, state, clients, int(status.get("voids") or 0))


def part(folder: Path, tail: Tail) -> page.Part:
    """The section of a federation."""
    found, lines = now(folder), [_as_run(line) for line in tail.update()]
    plots = _plots(found, lines) + ([_shares(found.clients)] if found.clients else [])
    last = lines[-1] if lines else {}
    said = [f"Round {found.round} of {found.rounds}, {found.state}; {found.voids} attempts at a round were void."]
    if "heard_weight" in last:
        heard = f"{last['participants']} clients, {percent(last['heard_weight'], 0)} of the weight"
        said.append(f"The last round heard {heard}.")
    if silent := mute(lines):
        few = listed([*map(str, silent)], 20)
        said.append(f"Mute, without an answer in the last {SILENT} rounds that asked them: {few}.")
    above = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    return page.Part(f"Federation {found.name}", above, plots, _rejected(lines))


def clients_table(found: Now) -> Table:
    """A row for each client of the roster, as `fedstale federation status` has it."""
    keys = [key for key in HEAD if found.clients and key in found.clients[0]]
    rows = [["–" if row.get(key) is None else f"{row[key]:.4g}" for key in keys] for row in found.clients]
    return Table([HEAD[key] for key in keys] or ["client"], rows)


def _as_run(line: Line) -> Line:
    """A line of a federation in the words of a run."""
    lost = [*line.get("absent", ()), *(int(client) for client in line.get("rejected") or {})]
    found = {"participants": len(line.get("heard", ())), "not_selected": line.get("idle", []), "lost": lost}
    return line | found


def _plots(found: Now, lines: list[Line]) -> list[Plot]:
    if not lines:
        return []
    config = {"label": found.name, "seed": 0, "data": {"clients": max(lines[-1].get("clients") or [0]) + 1}}
    group = Lines(Group(found.name, [Run(RunFolder(Path()), config, None)], []), [lines])
    drawn = looks([found.name])
    some = [p._replace(note="") for m in (*map(metrics.metric, SHOWN), LOSS) if (p := curves([group], m, drawn))]
    words = "Filled: heard from; orange: online, but not asked to train; pink: asked, but absent or rejected."
    took_part = raster("each client", group)._replace(note=words)
    return [*some, took_part, *filter(None, [heard_weight("each round", group)])]


def _shares(clients: Sequence[dict[str, Any]]) -> Plot:
    """How often each client is heard, with the 95 % interval."""
    who = [int(row["client"]) for row in clients]
    p, low, high = ([float(row.get(key) or 0.0) for row in clients] for key in ("p", "p_low", "p_high"))
    hover, mark = "client %{x}: heard in %{y:.1%} of its rounds", {"color": look(0).colour, "size": 8}
    trace = scatter("markers", who, plain(p), hover, marker=mark, error_y=interval(p, low, high))
    rows = [[str(i), percent(x), percent(a), percent(b)] for i, x, a, b in zip(who, p, low, high, strict=True)]
    axes = layout("client", "share of its rounds", yaxis={"tickformat": ".2~%", "range": [-0.02, 1.03]})
    ends = f"{percent(min(p), 0)} to {percent(max(p), 0)}"
    said = f"Share of its rounds in which each of {len(who)} clients was heard: {ends}."
    note = "With the 95 % interval of a share that is measured in so many rounds."
    table = Table(["client", "p̂", "from", "to"], rows)
    return Plot("How often each client is heard", [trace], axes, said, table, note=note)


def _rejected(lines: Sequence[Line]) -> str:
    """A table of the reasons for which replies were rejected, the most frequent first."""
    counts = Counter((str(c), str(why)) for line in lines for c, why in (line.get("rejected") or {}).items())
    rows = [[client, str(count), why] for (client, why), count in counts.most_common(REASONS)]
    return markup.table(Table(["client", "times", "why"], rows), "Rejected replies") if rows else ""

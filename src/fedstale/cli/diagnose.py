"""`fedstale diagnose DATA PRESENCE`: what uneven participation costs, from two CSV files, on one page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedstale.core import require
from fedstale.core.abilities import listed
from fedstale.data.tables import guess, rows
from fedstale.lab import schema
from fedstale.lab.advise import evidence, trial
from fedstale.lab.advise.measures import Measures, measure
from fedstale.lab.advise.rules import LEARNT
from fedstale.lab.plan import plan
from fedstale.lab.runs import query, store
from fedstale.lab.runs.store import write
from fedstale.lab.schema import Experiment
from fedstale.lab.spec import as_toml
from fedstale.registry import RECIPES
from fedstale.view.terminal.console import AsFormat, Format, command_line, parse_seeds, print_json, say
from fedstale.view.terminal.runs import simulate_rest

RULES = ("fedavg", "unbiased", "mifa", "auto")
MOST = 400  # rounds that are simulated, unless --rounds says more


def diagnose(
    data: Annotated[Path, typer.Argument(help="A .csv file: a row per sample, a column that names its client.")],
    presence: Annotated[Path, typer.Argument(help="Who was there when: a log, a 0/1 table, events.")],
    client: Annotated[str | None, typer.Option(help="Column of DATA that names the client; guessed.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of DATA that is to be predicted; guessed.")] = None,
    round: Annotated[str, typer.Option(help="Length of a round of a log, such as 1d, 6h, 30min.")] = "1d",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to simulate (default: those recorded).")] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds of the simulation.")] = "1,2,3",
    lr: Annotated[float, typer.Option(help="Learning rate of the clients.")] = 0.1,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the page, the runs and the experiment.")
    ] = Path("diagnosis"),
    format: AsFormat = Format.text,
) -> None:
    """What plain averaging costs you, who is left behind, which rule, and how sure: one page from two files.

    A small model is trained on your data, with the clients coming as recorded, by several rules.
    """
    from fedstale.view.page import diagnosis, page

    page.library()  # say now what is missing
    require(data.is_file(), f"there is no file {data}")
    here, names = evidence.read_trace(presence, [f'round="{round}"'] if evidence.is_log_file(presence) else [])
    columns = guess(data, names, client, label)
    say(f"clients are in the column {columns.client}, to be predicted is {columns.label} (--client, --label).")
    out.mkdir(parents=True, exist_ok=True)
    settings = {
        "rounds": rounds or min(MOST, max(len(here), 100)), "seeds": parse_seeds(seeds), "algorithms": [*RULES],
        "main": columns.main, "estimator": LEARNT,
        "data": {"csv": os.path.relpath(data, out), "client": columns.client, "label": columns.label},
        "local": {"lr": lr, "steps": 5, "batch": 32},
        "participation": evidence.recording_spec(presence, os.path.relpath(presence, out), round),
    }  # fmt: skip
    file = out / "experiment.toml"
    file.write_text("\n".join(f"{key} = {as_toml(value)}" for key, value in settings.items()) + "\n")
    experiment = schema.read(file)
    planned = plan(experiment, store.open_store(out / "runs"))
    simulate_rest(experiment, planned, command_line())
    m = measure(evidence.of_experiment(experiment, None))
    setting = query.settings(p.folder for p in planned)[0]
    unsure = doubts(experiment, m, columns.main == "accuracy")
    found, lines = diagnosis.diagnose(setting, unsure, {name: about for name, _, about in RECIPES.rows()})
    title = f"{data.name} with {presence.name}: {m.clients} clients"
    target = out / "diagnosis.html"
    more = f"fedstale run {file}  # the same runs; change the model or the rules in this file"
    text = diagnosis.page(found, setting, lines, title, more)
    write(target, lambda f: f.write(text.encode()))
    if format == Format.json:
        print_json({"answers": dict(found.answers), "clients": found.clients._asdict(), "page": str(target)})
        return
    print("\n\n".join(f"{q}\n{a}".replace("\n", "\n  ") for q, a in found.answers))
    print(f"\npage:       {target}\nexperiment: {file}  (fedstale run {file})")


def doubts(e: Experiment, m: Measures, classes: bool) -> list[str]:
    """Reasons not to be too sure, as sentences; `classes`: whether classes are predicted, not numbers."""
    found = [*trial.cautions(e, m)]
    if m.never:
        found.append(f"no rule learns from clients that never came: {listed([m.name(i) for i in m.never])}")
    tested = rows(Path(e.data["csv"])) * e.data["test_share"] / m.clients
    unsure = f", so that its own accuracy is uncertain by about {50 / tested**0.5:.0f} points" if classes else ""
    found.append(f"a client is tested on about {tested:.0f} rows{unsure}")
    found.append("the model is linear: yours may gain more or less")
    return [f"{text[0].upper()}{text[1:]}." for text in found]

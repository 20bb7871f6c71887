"""What a sweep leaves: a table of the best settings, all settings and runs as CSV, and a picture of each cell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstale.lab.plan import by_label
from fedstale.lab.runs import query
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.store import write_csv
from fedstale.lab.sweep import Cell, Choice, chosen, every_run, place, scores
from fedstale.view.terminal import console
from fedstale.view.terminal.console import Format, in_words, say
from fedstale.view.terminal.results import changed, stem, summary, table, title

CHOSEN = "chosen on the seeds that are reported, which flatters them a little"
PICTURES = 12  # cells that are drawn, at most: a picture takes a second
Row = dict[str, Any]


def write_and_print(cells: Sequence[Cell], overrides: list[str], out: Path, format: Format) -> None:
    """Write the files of a sweep and print the settings that were chosen."""
    keys, every, tuning = varied(cells), every_run(cells), [cell.tuning for cell in cells if cell.tuning]
    rows = [row for cell in cells for row in setting_rows(cell, keys)]
    base, best = out / stem(cells[0].experiment, every, overrides), [row for row in rows if row["chosen"]]
    rows += [{**row, "tuning": True} for cell in tuning for row in setting_rows(cell, keys)]
    files = {"numbers": f"{base}.csv", "all_runs": f"{base}-runs.csv"}
    write_csv(Path(files["numbers"]), [changed(overrides) | row for row in rows])
    runs = [changed(overrides) | row for cell in [*tuning, *cells] for row in run_rows(cell, keys)]
    write_csv(Path(files["all_runs"]), runs)
    pictures = [draw(cell, base) for cell in cells[:PICTURES]]
    lost = [p.folder.path for p in every if not p.folder.finished]
    if lost:
        say(f"{len(lost)} of {len(every)} runs diverged; {lost[0]}/diverged.json says why", style="yellow")
    if format == Format.json:
        names = [p.folder.path.name for p in every]
        console.print_json({"table": best, "settings": rows, "runs": names, "figures": pictures, **files})
        return
    console.screen().print(table(best, title(cells[0].experiment, len(cells)), keys))
    if any(choice.tuned for choice in cells[0].choices):
        best_by = f"those with the best {metric(cells[0].by).label} are shown"
        print(f"of the settings in [tune] {best_by}, {how_chosen(cells[0])}")
        print("".join(f"{sentence}\n" for sentence in applied(cells[0].choices)), end="")
    print(f"pictures: {pictures[0]}{f' and {len(pictures) - 1} more' if len(pictures) > 1 else ''}")
    print(f"numbers:  {files['numbers']} (all settings), {files['all_runs']} (all runs)\nruns:     {out}/")


def how_chosen(cell: Cell) -> str:
    """On which seeds settings were chosen."""
    apart = "chosen on other seeds than those that are reported"
    return f"{apart}: {', '.join(map(str, cell.tuning.experiment.seeds))}" if cell.tuning else CHOSEN


def applied(choices: Sequence[Choice]) -> list[str]:
    """Of every key that is tuned for some of the algorithms only, which they are."""
    keys, found = dict.fromkeys(key for c in choices for key in c.tuned), []
    for key in keys:
        rules = dict.fromkeys(c.algorithm for c in choices if key in c.tuned)
        others = dict.fromkeys(c.algorithm for c in choices if c.algorithm not in rules)
        if others:
            rest = "have it from themselves" if len(others) > 1 else "has it from itself"
            rest = f"{', '.join(others)} {rest} or not at all"
            found.append(f"{key} is tuned for {', '.join(rules)}; {rest}")
    return found


def varied(cells: Sequence[Cell]) -> list[str]:
    """The names of all settings that the sweep varies."""
    tuned = [key for cell in cells for choice in cell.choices for key in choice.tuned]
    return list(dict.fromkeys([*(key for cell in cells for key in place(cell)), *tuned]))


def setting_rows(cell: Cell, keys: Sequence[str]) -> list[Row]:
    """A row for each algorithm at each setting, over its seeds; `chosen` marks the best of an algorithm."""
    groups, scored = by_label(cell.runs), scores(cell)
    best, rows = chosen(cell, scored), []
    for c in cell.choices:
        results = [p.folder.result() for p in groups[c.label] if p.folder.finished]
        row = summary({c.algorithm: results})[0]
        rows.append({"algorithm": row.pop("algorithm")} | _about(cell, c, keys) | {"chosen": c in best} | row)
    return rows


def _about(cell: Cell, c: Choice, keys: Sequence[str]) -> Row:
    """All settings that vary, in the same order in every row."""
    return dict.fromkeys(keys) | place(cell) | c.tuned


def run_rows(cell: Cell, keys: Sequence[str]) -> list[Row]:
    """A row for each run: its settings, its seed and its results; a diverged one has none."""
    choices, rows = {c.label: c for c in cell.choices}, []
    for p in cell.runs:
        c = choices[p.algorithm.label]
        about = {"algorithm": c.algorithm} | _about(cell, c, keys)
        result = query.flat(p.folder.result()) if p.folder.finished else {}
        rows.append({"run": p.folder.path.name} | about | {"seed": p.seed, "finished": p.folder.finished} | result)
    return rows


def draw(cell: Cell, base: Path) -> str:
    """The picture of the chosen settings of a cell, and its path."""
    from fedstale.view.plots.comparison import comparison  # matplotlib is slow to load

    best, groups = chosen(cell, scores(cell)), by_label(cell.runs)
    where = ", ".join(f"{key}={in_words(value)}" for key, value in place(cell).items())
    name = re.sub(r"[^\w.=]+", "-", where)[:80].strip("-")
    path = Path(f"{base}{'-' if name else ''}{name}.png")
    drawn = {c.label: [p.folder for p in groups[c.label] if p.folder.finished] for c in best}
    named = f"{title(cell.experiment)}{', ' if where else ''}{where}"
    comparison({label: of for label, of in drawn.items() if of}, named, path)
    return str(path)

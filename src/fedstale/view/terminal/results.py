"""The table, the picture and the CSV files of finished runs: of a comparison, or of a sweep over settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedstale.lab import schema
from fedstale.lab.plan import Planned, by_label, digest
from fedstale.lab.runs import metrics, query, targets
from fedstale.lab.runs.metrics import WINDOWS
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.store import write_csv
from fedstale.view.terminal import console
from fedstale.view.terminal.console import Format


def write_and_print(
    experiment: schema.Experiment, planned: list[Planned], overrides: list[str], out: Path, format: Format
) -> None:
    """Write the picture and the CSV file of a comparison and print its table."""
    rows, figure, numbers = write_files(experiment, planned, overrides, out)
    if format == Format.json:
        names, files = [p.folder.path.name for p in planned], {"figure": str(figure), "numbers": str(numbers)}
        console.print_json({"table": rows, "runs": names, "overrides": changed(overrides)} | files)
    else:
        console.screen().print(table(rows, title(experiment)))
        print(f"picture: {figure}\nnumbers: {numbers}")
        print(f"runs:    {out}/  (fedstale list {out}, fedstale show RUN, fedstale ui {out})")


def write_files(
    experiment: schema.Experiment, planned: list[Planned], overrides: list[str], out: Path
) -> tuple[list[dict[str, Any]], Path, Path]:
    """Write the picture and the CSV file of a comparison; returns its rows and the two files."""
    groups = {label: [p.folder for p in runs] for label, runs in by_label(planned).items()}
    rows = summary({label: [folder.result() for folder in folders] for label, folders in groups.items()})
    rows = to_target(rows, experiment, {label: [query.readable(f) for f in of] for label, of in groups.items()})
    base = stem(experiment, planned, overrides)
    figure, numbers = out / f"{base}.png", out / f"{base}.csv"
    write_csv(numbers, [changed(overrides) | row for row in rows])

    from fedstale.view.plots.comparison import comparison  # matplotlib is slow to load

    comparison(groups, title(experiment), figure)
    return rows, figure, numbers


def stem(experiment: schema.Experiment, planned: Sequence[Planned], overrides: Sequence[str]) -> str:
    """The name of the files of an experiment without their ending; a variant has files of its own."""
    return f"{experiment.name}-{digest(planned)}" if overrides else experiment.name


def changed(overrides: Sequence[str]) -> dict[str, str]:
    """The overrides as columns of a CSV file."""
    return dict(change.split("=", 1) for change in overrides)


def title(e: schema.Experiment, cells: int = 1) -> str:
    """One line that says what is compared: the data, the participation and the number of seeds."""
    if cells > 1:
        return f"{e.name}: the best settings in each of {cells} cells"
    seeds = f"{len(e.seeds)} seed{'s' * (len(e.seeds) > 1)}"
    clients = f"{e.data['clients']} clients, {console.in_words(e.participation)}"
    return f"{e.name}: {e.data['dataset']}, {clients}, {seeds}"


def summary(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per algorithm: mean and standard deviation over the seeds of what the results hold."""
    rows = []
    for label, results in groups.items():
        row: dict[str, Any] = {"algorithm": label, "seeds": len(results)}
        for m in metrics.evaluated(*results):
            for which in WINDOWS:
                mean, std, _ = spread([result[m.name][which] for result in results])
                row |= {f"{m.name}_{which}": mean, f"{m.name}_{which}_std": std}
        speeds = [result["rounds_per_second"] for result in results if "rounds_per_second" in result]
        row["rounds_per_second"] = spread(speeds).mean if speeds else None
        row |= targets.took(results)
        rows.append(row)
    return rows


def to_target(
    rows: Sequence[dict[str, Any]], e: schema.Experiment, lines: Mapping[str, Sequence[Sequence[query.Line]]]
) -> list[dict[str, Any]]:
    """The rows with the rounds to the target, and the main metric where the experiment names it."""
    read = {label: found for label, seeds in lines.items() if (found := [of for of in seeds if of])}
    asked = {key: value for key in ("target", "monitor", "main") if (value := getattr(e, key)) is not None}
    main, aim = {"main": e.main} if e.main else {}, targets.target(asked, read)
    if aim is None:
        return [row | main for row in rows]
    told = main | {"target": aim.value, "target_metric": aim.metric.name, "target_origin": aim.origin}
    whens = {label: targets.reached(seeds, aim).rounds for label, seeds in read.items()}
    never = targets.When(None, 0.0, 0, 0)
    return [
        row | told | {"rounds_to_target": w.mean, "rounds_to_target_std": w.std, "reached_target": w.reached}
        for row in rows for w in [whens.get(str(row["algorithm"]), never)]
    ]  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], title: str, settings: Sequence[str] = ()) -> Table:
    """The rows as a table: settings, three views of the main metric, the end of the others, and the speed."""
    names = dict.fromkeys(key.removesuffix("_final") for row in rows for key in row if key.endswith("_final"))
    found = metrics.shown(names, main=rows[0].get("main"))
    views = zip(found[:1] * 3, WINDOWS, ("final", "last 10", "best"), strict=False)
    columns = [*views, *((m, "final", m.name) for m in found[1:])]
    out = Table(title=Text(title), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, show_edge=False,
                padding=(0, 1, 0, 0))  # fmt: skip
    out.caption = f"final, mean of the last 10 rounds and best {found[0].label}" if found else ""
    if rows[0]["seeds"] > 1:
        out.caption += f"; mean ± standard deviation over {rows[0]['seeds']} seeds"
    aim = _aim(rows)
    if aim and aim.origin:
        out.caption += f"; rounds to {aim.text}"
    timed = [key for key in ("hours", "megabytes") if all("hours" in row for row in rows)]
    if timed and any(row["never_heard"] for row in rows):
        most = max(row["never_heard"] for row in rows)
        out.caption += f"; {most} clients were never heard: for them no rule is unbiased"
    out.add_column("algorithm", no_wrap=True)
    goal = [f"to {aim.metric.text(aim.value)}"] if aim else []
    for heading in (*settings, *(heading for *_, heading in columns), *goal, *timed, "rounds/s"):
        out.add_column(heading, justify="right", no_wrap=heading not in settings)
    for row in rows:
        cells = ["" if row[key] is None else console.in_words(row[key]) for key in settings]
        for k, (m, which, _) in enumerate(columns):
            key = f"{m.name}_{which}"
            cells.append(
                m.text(row.get(key), row.get(f"{key}_std") if (k < 3 or m.own) and row["seeds"] > 1 else None)
            )
        if aim:
            when = (row["rounds_to_target"], row["rounds_to_target_std"], row["reached_target"], row["seeds"])
            cells.append(targets.When(*when).text)
        late = timed and any(0 < r["stopped"] > row["stopped"] for r in rows)  # it did not reach the target
        cells += [f"{'>' * bool(late)}{row[key]:.3g}" for key in timed]
        speed = row["rounds_per_second"]
        out.add_row(str(row["algorithm"]), *cells, "–" if speed is None else f"{speed:.3g}")
    return out


def _aim(rows: Sequence[Mapping[str, Any]]) -> targets.Target | None:
    """The target of rows that tell how soon it was reached."""
    if not all("target" in row for row in rows):
        return None
    first = rows[0]
    return targets.Target(metrics.metric(first["target_metric"]), first["target"], first["target_origin"])

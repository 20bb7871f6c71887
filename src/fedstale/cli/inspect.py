"""`fedstale inspect TRACE`: measure a recorded participation before anything is trained."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from fedstale import theory
from fedstale.core import Floats, Mask, normalised
from fedstale.lab.runs.metrics import percent
from fedstale.lab.runs.store import write_csv
from fedstale.view.terminal import console

WATCHED = 5
DIFFER = {"diversity": "σ_g² at the first model", "gradient": "‖∇F‖ at the first model"}


def inspect(
    trace: Annotated[Path, typer.Argument(help="A 0/1 table, on/off events, a grid, or a .toml experiment.")],
    weights: console.Weights = None,
    clients_first: console.ClientsFirst = False,
    period: Annotated[
        int | None, typer.Option(help="Length P, in rounds, of the windows of δ̃²(P); about 1 / p_min if omitted.")
    ] = None,
    config: console.Config = None,
    out: Annotated[Path, console.out_option("Folder for the picture and the CSV file.")] = Path("."),
    format: console.AsFormat = console.Format.text,
) -> None:
    """Measure a recorded participation: how often and for how long clients come, and what that costs training.

    -c sets a setting of the event list or grid, such as variant=2_state. Of an experiment, a .toml
    file, the clients' gradients are measured (σ_g²) and, with a clock, the timeline: its hours, how old updates
    are, and who is never heard.
    """
    if trace.suffix == ".toml":
        _inspect_timeline(trace, config or [], format)
        return
    from fedstale.lab.advise.evidence import read_numbers, read_trace  # pydantic is slow to load

    here, names = read_trace(trace, config or [], clients_first)
    a = None if weights is None else read_numbers(weights, "weights")
    seen = theory.summary(here, a)
    clients = per_client(here, seen, a, names)
    found = report(here, seen, clients, period)
    stem = trace.name.split(".")[0] or "trace"
    picture, numbers = out / f"{stem}-trace.png", out / f"{stem}-trace.csv"
    out.mkdir(parents=True, exist_ok=True)
    write_csv(numbers, clients)

    from fedstale.view.plots.recording import recording  # matplotlib is slow to load

    counts = (seen.on.histogram, seen.off.histogram, seen.staleness.histogram)
    title = f"{trace.name}: {seen.clients} clients, {seen.rounds} rounds"
    recording(here, seen.mixing, *counts, title).savefig(picture, dpi=160)
    found |= {"file": str(trace), "picture": str(picture), "numbers": str(numbers)}
    if format == console.Format.json:
        console.print_json(found)
    else:
        _print(trace.name, found)


def _inspect_timeline(path: Path, overrides: list[str], format: console.Format) -> None:
    """Print what the clock of an experiment makes of its clients."""
    from fedstale.lab import schema, timelines  # torch is slow to load

    found = timelines.describe(schema.read(path, overrides))
    if format == console.Format.json:
        console.print_json(found)
        return
    steps = f", {found.pop('steps')} steps" if "steps" in found else ""
    print(f"{path.name}: {found.pop('clients')} clients{steps}\n")
    never = found.pop("never_heard", 0)
    for key, value in found.items():
        print(f"  {DIFFER.get(key, key.replace('_', ' ')):12} {value:.4g}")
    if never:
        print(f"\n{never} clients are not heard in these steps: p_i is 0 there, and no rule is unbiased for them")


def per_client(
    here: Mask, seen: theory.Summary, weights: npt.ArrayLike | None, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One row per client; clients are numbered from 0, in the order of the file, and named where it names them."""
    n = here.shape[1]
    columns = {
        "client": np.arange(n), "share": seen.marginals, "mixing": seen.mixing,
        "longest_absence": seen.longest_absence, "weight": normalised(weights, n),
        "plain_weight": theory.plain_weights(here, weights), **({"name": np.array(names)} if names else {}),
    }  # fmt: skip
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def report(
    here: Mask, seen: theory.Summary, clients: list[dict[str, Any]], period: int | None = None
) -> dict[str, Any]:
    """All that is said of a trace, in plain numbers."""
    p = seen.marginals
    if period is None:  # a window in which the rarest client that ever comes is expected once
        period = max(1, min(math.ceil(1 / p[p > 0].min()), seen.rounds // 2))
    come = theory.spread(p[p > 0])
    rarest = sorted((c for c in clients if c["share"] > 0), key=lambda c: (c["share"], -c["longest_absence"]))
    return {
        "rounds": seen.rounds, "clients": seen.clients, "never": int((p == 0).sum()), "share": _spread(p),
        "spread": seen.spread._asdict(), "spread_of_those_who_come": come._asdict(),
        "presence": _quantiles(seen.on), "absence": _quantiles(seen.off), "mixing": _spread(seen.mixing),
        "staleness": _quantiles(seen.staleness) | {"before_first": seen.unseen},
        "tau_max": seen.staleness.quantiles[-1].item(), "tau_avg": seen.staleness.mean,
        "plain_averaging_bias": seen.bias,
        "delta2": {str(P): theory.delta2(here, P) for P in sorted({1, period, seen.rounds})}, "period": period,
        "least_rounds": seen.least_rounds, "least_rounds_of_those_who_come": 1 / come.p_min,
        "watch": rarest[:WATCHED],
    }  # fmt: skip


def _spread(values: Floats) -> dict[str, float]:
    numbers = values.min(), np.median(values), values.mean(), values.max()
    return dict(zip(("min", "median", "mean", "max"), map(float, numbers), strict=True))


def _quantiles(counts: theory.Counts) -> dict[str, float]:
    names = "min", "q25", "median", "q75", "max"
    return {"mean": counts.mean} | dict(zip(names, counts.quantiles.tolist(), strict=True))


def _print(name: str, found: dict[str, Any]) -> None:
    windows = ", ".join(f"{value:.3g} for P = {P}" for P, value in found["delta2"].items())
    stale, come = dict(found["staleness"]), found["spread_of_those_who_come"]
    first, bias = percent(stale.pop("before_first")), percent(found["plain_averaging_bias"])
    never, least = found["never"], f"{found['least_rounds']:.4g} = 1 / p_min, or a multiple"
    lines = {
        "share of the rounds": _numbers(found["share"]),
        "participation": _numbers(found["spread"]),
        **({"never there": f"{never} client{'s' * (never > 1)}; without them {_numbers(come)}"} if never else {}),
        "rounds in a row there": _numbers(found["presence"]),
        "rounds in a row away": _numbers(found["absence"]),
        "correlation λ": _numbers(found["mixing"]),
        "staleness in rounds": _numbers(stale),
        "delay": f"τ_max {found['tau_max']:.3g}, τ_avg {found['tau_avg']:.3g}",
        "before the first time": f"{first} of all clients' rounds",
        "bias of plain averaging": f"{bias} of the weight is at the wrong clients",
        "δ̃²(P) with d² = 1": f"{windows} (0: all alike in each window of P rounds)",
        "rounds to learn, Ω": least + (f"; without those never there {1 / come['p_min']:.4g}" if never else ""),
    }
    print(f"{name}: {found['clients']} clients, {found['rounds']} rounds\n")
    grid = Table.grid(padding=(0, 2))
    for key, value in lines.items():
        grid.add_row(f"  {key}", value)
    console.screen().print(grid, highlight=False, markup=False)
    named = [{**({"name": row["name"]} if "name" in row else {}), **row} for row in found["watch"]]
    console.print_table(named, "the rarest clients, numbered from 0")
    print(f"picture: {found['picture']}\nnumbers: {found['numbers']}")


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.3g}" for key, value in values.items())

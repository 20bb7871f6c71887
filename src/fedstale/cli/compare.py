"""`fedstale compare A B`: what differs in configuration and in results, tested over the seeds that both have."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedstale.cli.inspect import Format
from fedstale.papers import claims
from fedstale.runs.pairing import Pair, matched, sides
from fedstale.runs.query import Group, Run, flat
from fedstale.runs.store import RunFolder

LOWER = ("loss", "objective", "distance")  # less is better; of an accuracy, more
SHOWN = ("last10", "final")
WORDS = {claims.HOLDS: "B is better", claims.FAILS: "A is better", claims.NOISE: "cannot be told from chance"}
TITLES = {"last10": "mean of the last 10", "final": "last round"}


def compare(
    a: Annotated[str, typer.Argument(help="A run, a folder of runs, or FOLDER:LABEL for one algorithm of it.")],
    b: Annotated[str, typer.Argument(help="The same.")],
    format: Annotated[Format, typer.Option(help="How results are printed.")] = Format.text,
) -> None:
    """What differs between two runs or experiments, with a paired test over their common seeds."""
    pairs = matched(sides(a), sides(b), (a, b))
    found = {"a": a, "b": b, "configuration": differing(pairs), "environment": machines(pairs)}
    found["results"] = [result(pair) for pair in pairs]
    if format == Format.json:
        print(json.dumps(found, indent=2, default=str))
    else:
        _print(found)


def differing(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The keys of the configuration that differ in some pair, with their values where all pairs agree on them."""
    return _differences([(flat(p.a.config), flat(p.b.config)) for p in pairs])


def machines(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The same of where the first runs of each pair were computed."""
    found = [tuple(_environment(side.group.runs[0].folder) for side in pair) for pair in pairs]
    return _differences([(a, b) for a, b in found])


def _environment(folder: RunFolder) -> dict[str, Any]:
    there = (folder.path / "environment.json").exists()
    return {k: v for k, v in flat(folder.environment() if there else {}).items() if k not in ("started", "command")}


def _differences(both: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for a, b in both for key in (*a, *b) if a.get(key) != b.get(key))
    rows = []
    for key in keys:
        values = [
            {json.dumps(side.get(key), default=str): side.get(key) for side in some}
            for some in zip(*both, strict=True)
        ]
        a, b = (next(iter(v.values())) if len(v) == 1 else f"{len(v)} values" for v in values)
        rows.append({"key": key, "a": a, "b": b})
    return rows


def result(pair: Pair) -> dict[str, Any]:
    """Both means and the difference B - A over the common seeds, of everything that both were evaluated on."""
    left, right = ({r.seed: r for r in side.group.runs} for side in pair)
    seeds = sorted(left.keys() & right.keys())
    same = [s for s in seeds if _mark(left[s]) is not None and _mark(left[s]) == _mark(right[s])]
    metrics = []
    for name in _evaluated(pair):
        for which in SHOWN:
            metrics.append({"name": name, "which": which} | _tested(name, which, pair, seeds))
    return {
        "a": pair.a.group.label,
        "b": pair.b.group.label,
        "rounds": pair.a.config.get("rounds"),
        "seeds_a": sorted(left),
        "seeds_b": sorted(right),
        "common_seeds": seeds,
        "identical_seeds": same,
        "metrics": metrics,
    }


def _mark(run: Run) -> str | None:
    return (run.result or {}).get("fingerprint")


def _evaluated(pair: Pair) -> list[str]:
    a, b = (side.group.runs[0].result or {} for side in pair)
    names = ("accuracy", *LOWER)
    return [name for name in names if name in a and name in b]


def _tested(name: str, which: str, pair: Pair, seeds: Sequence[int]) -> dict[str, Any]:
    a, b = (_values(side.group, name, which) for side in pair)
    found: dict[str, Any] = {"a": _spread(list(a.values())), "b": _spread(list(b.values()))}
    if not seeds:
        return found | {"difference": None, "verdict": "not tested: no seed in common"}
    difference = np.array([b[s] - a[s] for s in seeds], np.float64)
    found["difference"] = float(difference.mean())
    if len(seeds) < 2:
        return found | {"verdict": "not tested: one common seed alone proves nothing"}
    room = claims.uncertainty(difference)
    verdict = (
        "equal"
        if not difference.any()
        else WORDS[claims.outcome(-difference if name in LOWER else difference).outcome]
    )
    return found | {"interval": [found["difference"] - room, found["difference"] + room], "verdict": verdict}


def _values(group: Group, name: str, which: str) -> dict[int, float]:
    return {r.seed: float(r.result[name][which]) for r in group.runs if r.result}


def _spread(values: Sequence[float]) -> dict[str, float]:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": std, "seeds": len(values)}


def _print(found: dict[str, Any]) -> None:
    screen = Console()
    screen.width = screen.width if screen.is_terminal else 120
    print(f"A: {found['a']}\nB: {found['b']}")
    for title in ("configuration", "environment"):
        rows = found[title]
        if not rows:
            print(f"\nthe {title} is the same")
            continue
        table = Table("key", "A", "B", title=f"what differs in the {title}", title_justify="left", box=SIMPLE_HEAD)
        for row in rows:
            table.add_row(*(v if isinstance(v, str) else json.dumps(v, default=str) for v in row.values()))
        screen.print("", table)
    for pair in found["results"]:
        _print_pair(pair, screen)
    print("\nB - A over the common seeds with its 90 % interval; a difference counts if a one-sided paired t-test "
          "gives it at 5 %")  # fmt: skip


def _print_pair(pair: dict[str, Any], screen: Console) -> None:
    seeds = pair["common_seeds"]
    name = pair["a"] if pair["a"] == pair["b"] else f"A: {pair['a']}, B: {pair['b']}"
    told = f"{len(seeds)} seeds in common" if len(seeds) != 1 else "1 seed in common"
    table = Table(title=f"{name} ({told})", title_justify="left", box=SIMPLE_HEAD)
    for k, heading in enumerate(("", "A", "B", "B - A", "verdict")):
        table.add_column(heading, justify="left" if k in (0, 4) else "right")
    for row in pair["metrics"]:
        scale, unit = (100, " %") if row["name"] == "accuracy" else (1, "")
        cells = [_number(row[side]["mean"], scale, row[side]["std"]) + unit for side in "ab"]
        difference = "–" if row["difference"] is None else f"{scale * row['difference']:+.4g}"
        if "interval" in row and math.isfinite(row["interval"][0]):
            difference += f" [{scale * row['interval'][0]:+.3g}, {scale * row['interval'][1]:+.3g}]"
        table.add_row(f"{row['name']}, {TITLES[row['which']]}", *cells, difference, row["verdict"])
    screen.print("", table)
    if pair["identical_seeds"] and pair["identical_seeds"] == seeds:
        print("the final parameters are the same to the last bit")


def _number(mean: float, scale: float, std: float) -> str:
    return f"{scale * mean:.4g}" + (f" ± {scale * std:.2g}" if std else "")

"""`fedstale compare A B`: what differs in configuration and in results, tested over the seeds that both have."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fedstale.lab.runs.pairing import Pair, matched, result, sides, texts
from fedstale.lab.runs.query import flat
from fedstale.lab.runs.store import RunFolder
from fedstale.view.terminal.console import AsFormat, Format, print_json, screen, table

SIDE = "A run, a folder of runs, or FOLDER:NAME for one algorithm of it, by its label or kind."


def compare(
    a: Annotated[str, typer.Argument(help=SIDE)],
    b: Annotated[str, typer.Argument(help="The same.")],
    format: AsFormat = Format.text,
) -> None:
    """What differs between two runs or experiments, with a paired test over their common seeds."""
    pairs = matched(sides(a), sides(b), (a, b))
    found = {"a": a, "b": b, "configuration": differing(pairs), "environment": machines(pairs)}
    found["results"] = [result(pair) for pair in pairs]
    if format == Format.json:
        print_json(found)
    else:
        _print(found)


def differing(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The keys of the configuration that differ in some pair, with their values where all pairs agree on them."""
    return _differences([(flat(p.a.config), flat(p.b.config)) for p in pairs])


def machines(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The same of where the first runs of each pair were computed."""
    first = [(p.a.group.runs[0].folder, p.b.group.runs[0].folder) for p in pairs]
    return _differences([(_environment(a), _environment(b)) for a, b in first])


def _environment(folder: RunFolder) -> dict[str, Any]:
    return {k: v for k, v in flat(folder.environment()).items() if k not in ("started", "command")}


def _differences(both: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for a, b in both for key in (*a, *b) if a.get(key) != b.get(key))
    rows = []
    for key in keys:
        pairs = zip(*both, strict=True)
        values = [{json.dumps(side.get(key), default=str): side.get(key) for side in some} for some in pairs]
        a, b = (next(iter(v.values())) if len(v) == 1 else f"{len(v)} values" for v in values)
        rows.append({"key": key, "a": a, "b": b})
    return rows


def _print(found: dict[str, Any]) -> None:
    print(f"A: {found['a']}\nB: {found['b']}")
    for title in ("configuration", "environment"):
        rows = found[title]
        if not rows:
            print(f"\nthe {title} is the same")
            continue
        cells = [[v if isinstance(v, str) else json.dumps(v, default=str) for v in row.values()] for row in rows]
        screen().print("", table(("key", "A", "B"), cells, f"what differs in the {title}", (0, 1, 2)))
    for pair in found["results"]:
        _print_pair(pair)
    print("\nB - A over the common seeds with its 90 % interval; a difference counts if a one-sided paired t-test "
          "gives it at 5 %")  # fmt: skip


def _print_pair(pair: dict[str, Any]) -> None:
    seeds = pair["common_seeds"]
    name = pair["a"] if pair["a"] == pair["b"] else f"A: {pair['a']}, B: {pair['b']}"
    told = f"{len(seeds)} seeds in common" if len(seeds) != 1 else "1 seed in common"
    head = ("", "A", "B", "B - A", "verdict")
    screen().print("", table(head, map(texts, pair["metrics"]), f"{name} ({told})", (0, 4)))
    if pair["identical_seeds"] and pair["identical_seeds"] == seeds:
        print("the final parameters are the same to the last bit")

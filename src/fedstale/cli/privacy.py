"""`fedstale privacy TRACE`: what differential privacy costs clients that take part like this, before training."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from fedstale.core import Array, Floats, Mask, normalised, require
from fedstale.lab.advise.evidence import draw_trace, read_numbers, read_trace
from fedstale.lab.runs.statistics import tenth
from fedstale.privacy.gaussian import epsilon_of
from fedstale.privacy.ledger import Privacy, costs
from fedstale.registry import PARTICIPATION
from fedstale.strategies import PrivateFedAvg, PrivateFedStale
from fedstale.view.terminal.console import AsFormat, ClientsFirst, Config, Format, Weights, print_json, print_table


class Rounds(NamedTuple):
    """Who takes part in the rounds of a training."""

    called: str
    here: Mask  # (rounds, n)
    probs: Array | None = None  # (n,) p_i; the shares of rounds if None


def privacy(
    trace: Annotated[
        str | None,
        typer.Argument(help="A file (0/1 table, on/off events, grid) or a process such as two-groups."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="The ε that no client may pass.")] = ...,  # type: ignore[assignment]
    delta: Annotated[float, typer.Option(help="The δ that belongs to it.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="The longest update, C; the noise is proportional to it.")] = 1.0,
    difference_clip: Annotated[
        float | None, typer.Option(help="The longest difference to the memory, C_e; C / 5 if omitted.")
    ] = None,
    weights: Weights = None,
    max_weight: Annotated[float | None, typer.Option(help="The largest a_i / p_i; no limit if omitted.")] = None,
    visits: Annotated[
        int | None, typer.Option(help="Without TRACE: most rounds that a client takes part in.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients, where TRACE is no file.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, where TRACE is no file.")] = None,
    clients_first: ClientsFirst = False,
    config: Config = None,
    format: AsFormat = Format.text,
) -> None:
    """Turn ε into noise for clients that take part like this, and show who pays with how much privacy."""
    if visits is not None:
        alone = "visits are for clients of whom nothing else is known"
        require(trace is None and weights is None, f"{alone}: leave out {trace or 'weights'}, or visits")
        found = bounded(visits, clients, rounds, max_weight)
    elif trace is not None and trace in PARTICIPATION and not Path(trace).exists():
        found = drawn(trace, clients, rounds, config or [])
    else:
        require(trace is not None, "privacy needs a file, a participation process, or visits, got none of them")
        path = Path(trace or "")
        found = Rounds(path.name, read_trace(path, config or [], clients_first)[0])
    n, here = found.here.shape[1], found.here
    require(bool(here.any()), f"{found.called} must have a client that takes part, got none in {len(here)} rounds")
    a = normalised(None if weights is None else read_numbers(weights, "weights"), n).astype(np.float32)
    rules = rules_of(clip, clip / 5 if difference_clip is None else difference_clip, max_weight)
    rows = [row(name, rule, found, a, Privacy(None, epsilon, delta)) for name, rule in rules.items()]
    if format == Format.json:
        print_json({"file": found.called, "epsilon": epsilon, "delta": delta, "clip": clip, "rules": rows})
        return
    what = f"{n} clients, {len(here)} rounds, ε ≤ {epsilon:g} for everybody, δ = {delta:g}"
    print_table(rows, f"{found.called}: {what}")
    print("noise: deviation on every coordinate of a step; ε: what the run tells about a client with that noise")


def rules_of(clip: float, near: float, most: float | None) -> dict[str, Any]:
    """The four rules that are compared, by name."""
    return {
        "private-fedavg": PrivateFedAvg(clip),
        "private-fedstale, beta=0 (Unbiased)": PrivateFedStale(clip, 0.0, max_weight=most),
        "private-fedstale, beta=1": PrivateFedStale(clip, 1.0, max_weight=most),
        f"private-fedstale, beta=1, difference_clip={near:g}": PrivateFedStale(clip, 1.0, near, most),
    }


def drawn(kind: str, clients: int | None, rounds: int | None, changes: list[str]) -> Rounds:
    """Rounds of a participation process, drawn as by a run with seed 0."""
    return Rounds(f"one draw of {kind}", *draw_trace(kind, *_sizes(kind, clients, rounds), changes))


def bounded(visits: int, clients: int | None, rounds: int | None, max_weight: float | None) -> Rounds:
    """The dearest rounds of clients that come at most so often: at the beginning, and as rare as counts."""
    n, length = _sizes("visits", clients, rounds)
    require(1 <= visits <= length, f"visits must be from 1 to the rounds, {length}, got {visits}")
    need = (
        "visits need max_weight, the largest a_i / p_i that a rule may use: a rare client has no bound without it"
    )
    require(max_weight is not None, f"{need}, got none")
    assert max_weight is not None
    ok = 1 / n <= max_weight < np.inf
    require(ok, f"max_weight must be at least the weight of a client, 1 / {n}, and finite, got {max_weight}")
    here = np.repeat((np.arange(length) < visits)[:, None], n, axis=1)
    return Rounds(f"at most {visits} visits", here, np.full(n, 1 / (n * max_weight), np.float32))


def _sizes(what: str, clients: int | None, rounds: int | None) -> tuple[int, int]:
    for name, value in (("clients", clients), ("rounds", rounds)):
        ok = value is not None and value >= 1
        require(ok, f"{what} needs --{name}, at least 1, got {'none' if value is None else value}")
    assert clients is not None
    assert rounds is not None
    return clients, rounds


def row(name: str, rule: Any, found: Rounds, weights: Array, wanted: Privacy) -> dict[str, Any]:
    """The noise of a rule, and ε of the clients that come most and least often."""
    p = found.here.mean(axis=0).astype(np.float32)
    spent = costs(rule, found.here, weights, p if found.probs is None else found.probs)
    noise = wanted.calibrated(spent).noise
    assert noise is not None
    ε = np.array([epsilon_of(float(np.sqrt(cost)) / noise, wanted.delta) for cost in spent])
    come = np.argsort(np.where(p > 0, p, np.inf), kind="stable")[: int((p > 0).sum())]
    some = tenth(len(come))
    return {
        "rule": name, "noise": noise, "frequent_tenth_ε": _mean(ε[come[-some:]]),
        "rare_tenth_ε": _mean(ε[come[:some]]), "largest_ε": float(ε.max()),
    }  # fmt: skip


def _mean(values: Floats) -> float:
    return float(values.mean())

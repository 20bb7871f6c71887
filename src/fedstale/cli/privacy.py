"""`fedstale privacy TRACE`: what differential privacy costs clients that take part like this, before training."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedstale.core import Array, Floats, Mask, normalised, require
from fedstale.lab.advise.evidence import read_numbers, read_trace
from fedstale.privacy.gaussian import epsilon_of
from fedstale.privacy.ledger import Privacy, costs
from fedstale.strategies import PrivateFedAvg, PrivateFedStale
from fedstale.view.terminal.console import AsFormat, ClientsFirst, Config, Format, print_json, print_table


def privacy(
    trace: Annotated[Path, typer.Argument(help="A 0/1 table, on/off events or a grid: .csv, .npy, .npz, .json.")],
    epsilon: Annotated[float, typer.Option(help="The ε that no client may pass.")],
    delta: Annotated[float, typer.Option(help="The δ that belongs to it.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="The longest update, C; the noise is proportional to it.")] = 1.0,
    difference_clip: Annotated[
        float | None, typer.Option(help="The longest difference to the memory, C_e; C / 5 if omitted.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Client weights a_i: 1,2,… or a file of numbers; equal if omitted.")
    ] = None,
    clients_first: ClientsFirst = False,
    config: Config = None,
    format: AsFormat = Format.text,
) -> None:
    """Turn ε into noise for clients that take part like this, and show who pays with how much privacy."""
    here, _ = read_trace(trace, config or [], clients_first)
    n = here.shape[1]
    require(bool(here.any()), f"{trace.name} must have a client that takes part, got none in {len(here)} rounds")
    a = normalised(None if weights is None else read_numbers(weights, "weights"), n).astype(np.float32)
    near = clip / 5 if difference_clip is None else difference_clip
    rules = {
        "private-fedavg": PrivateFedAvg(clip),
        "private-fedstale, beta=0 (Unbiased)": PrivateFedStale(clip, 0.0),
        "private-fedstale, beta=1": PrivateFedStale(clip, 1.0),
        f"private-fedstale, beta=1, difference_clip={near:g}": PrivateFedStale(clip, 1.0, near),
    }
    rows = [row(name, rule, here, a, Privacy(None, epsilon, delta)) for name, rule in rules.items()]
    if format == Format.json:
        print_json({"file": str(trace), "epsilon": epsilon, "delta": delta, "clip": clip, "rules": rows})
        return
    print_table(
        rows, f"{trace.name}: {n} clients, {len(here)} rounds, ε ≤ {epsilon:g} for everybody, δ = {delta:g}"
    )
    print("noise: deviation on every coordinate of a step; ε: what the run tells about a client with that noise")


def row(name: str, rule: Any, here: Mask, weights: Array, wanted: Privacy) -> dict[str, Any]:
    """The noise of a rule, and ε of the clients that come most and least often."""
    p = here.mean(axis=0).astype(np.float32)
    spent = costs(rule, here, weights, p)
    noise = wanted.calibrated(spent).noise
    assert noise is not None
    ε = np.array([epsilon_of(float(np.sqrt(cost)) / noise, wanted.delta) for cost in spent])
    order, tenth = np.argsort(np.where(p > 0, p, np.inf), kind="stable"), max(1, int((p > 0).sum()) // 10)
    come = order[: int((p > 0).sum())]
    return {
        "rule": name, "noise": noise, "frequent_tenth_ε": _mean(ε[come[-tenth:]]),
        "rare_tenth_ε": _mean(ε[come[:tenth]]), "largest_ε": float(ε.max()),
    }  # fmt: skip


def _mean(values: Floats) -> float:
    return float(values.mean())

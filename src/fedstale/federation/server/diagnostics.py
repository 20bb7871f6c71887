"""What a federation can tell of its clients: JSON for monitoring, and a trace that simulations replay."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import Estimator
from fedstale.federation.state.server_state import Book
from fedstale.runs.store import fingerprint, write, write_json

Z = 1.959963984540054  # 95 %
Floats = npt.NDArray[np.float64]


def wilson(heard: npt.NDArray[np.int64], rounds: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """95 % interval for a share: Wilson's, which stays in [0, 1] and is honest for few rounds."""
    n = np.maximum(rounds, 1).astype(np.float64)
    p = heard / n
    middle, spread = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return np.where(rounds > 0, np.maximum(low, 0), 0.0), np.where(rounds > 0, np.minimum(high, 1), 1.0)


def status(book: Book, estimator: Estimator) -> dict[str, Any]:
    """The federation at the end of a round, one entry per client."""
    now, tally = book.checkpoint, book.tally
    belief = estimator.probs(now.belief)
    low, high = wilson(tally.heard, tally.rounds)
    rounds = np.maximum(tally.rounds, 1)
    clients = [
        {
            "client": client,
            "rounds": int(tally.rounds[k]),
            "asked": int(tally.asked[k]),
            "heard": int(tally.heard[k]),
            "rejected": int(tally.rejected[k]),
            "staleness": int(now.t - tally.last[k]) if tally.last[k] else None,
            "p": _number(belief[k]),
            "p_low": _number(low[k]),
            "p_high": _number(high[k]),
            "weight_target": _number(tally.target[k] / rounds[k]),
            "weight_realised": _number(tally.realised[k] / rounds[k]),
        }
        for k, client in enumerate(book.ids.tolist())
    ]
    return {
        "round": now.t,
        "roster": book.roster,
        "voids": book.voids,
        "fingerprint": fingerprint(now.params),
        "clients": clients,
    }


def _number(value: float) -> float:
    return round(float(value), 6) if math.isfinite(value) else 0.0


def write_status(path: Path, book: Book, estimator: Estimator) -> None:
    write_json(path, status(book, estimator))


def trace(lines: list[dict[str, Any]]) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Who was heard, rounds × clients, and the numbers of the clients: all that ever were in the roster."""
    clients = sorted({i for line in lines for i in line["clients"]})
    return clients, np.array([np.isin(clients, line["heard"]) for line in lines], np.bool_).reshape(
        -1, len(clients)
    )


def write_trace(path: Path, lines: list[dict[str, Any]]) -> None:
    """A CSV that the participation `trace` reads."""
    clients, table = trace(lines)
    rows = [",".join(f"client-{i}" for i in clients), *(",".join("01"[x] for x in row) for row in table.tolist())]
    write(path, lambda file: file.write(("\n".join(rows) + "\n").encode()))

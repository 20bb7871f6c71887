"""What a federation reports: JSON for monitoring, and a trace of participation that simulations replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import Estimator, Floats, Mask, require
from fedstale.flower.federation.protocol.exchange import Outcome
from fedstale.flower.federation.state.manifest import read_sealed
from fedstale.flower.federation.state.server_state import ServerState
from fedstale.lab.runs.metrics import percent
from fedstale.lab.runs.store import fingerprint, write_csv
from fedstale.privacy.noise import ledger_of

Z = 1.959963984540054  # 95 %


def wilson(heard: npt.NDArray[np.int64], rounds: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """95 % interval for the share heard / rounds: Wilson's, which stays in [0, 1] and covers even few rounds."""
    n = np.maximum(rounds, 1).astype(np.float64)
    p = heard / n
    middle, spread = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return np.where(rounds > 0, np.maximum(low, 0), 0.0), np.where(rounds > 0, np.minimum(high, 1), 1.0)


def status(state: ServerState, estimator: Estimator) -> dict[str, Any]:
    """The federation at the end of a round, with one entry per client."""
    columns = _columns(state, estimator)
    rows = zip(*columns.values(), strict=True)
    return {
        "round": state.checkpoint.t,
        "roster": state.roster,
        "voids": state.voids,
        "fingerprint": fingerprint(state.checkpoint.params),
        "clients": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _columns(state: ServerState, estimator: Estimator) -> dict[str, list[Any]]:
    """What is known of the clients, by name.

    `p` is the share of its rounds in which a client was heard, with a 95 % interval; `p_used` is the estimator's
    belief, which a strategy divides by when the client is heard, and which is 1 for a client that never was.
    `epsilon` is what the steps so far have told about the client, if they have noise.
    """
    now, counts, rounds = state.checkpoint, state.counts, np.maximum(state.counts.rounds, 1)
    low, high = wilson(counts.heard, counts.rounds)
    ledger = ledger_of(now.state)
    told = {} if ledger is None else {"epsilon": _finite(ledger.epsilons())}
    return {
        "client": state.ids.tolist(),
        "rounds": counts.rounds.tolist(),
        "asked": counts.asked.tolist(),
        "heard": counts.heard.tolist(),
        "rejected": counts.rejected.tolist(),
        "staleness": [now.t - last if last else None for last in counts.last.tolist()],
        "p": _finite(counts.heard / rounds),
        "p_low": _finite(low),
        "p_high": _finite(high),
        "p_used": _finite(estimator.probs(now.belief)),
        "weight_target": _finite(counts.target / rounds),
        "weight_realised": _finite(counts.realised / rounds) if state.traced else [None] * len(state.ids),
    } | told


LAST = 10  # rounds over which the weight that was heard is judged


def in_words(line: dict[str, Any]) -> str:
    """What a round heard: how many clients, their share of the objective's weight, and who was missing."""
    missing, share = line.get("missing", []), line.get("heard_weight", 0.0)
    more = f" and {len(missing) - LAST} more" if len(missing) > LAST else ""
    names = f"; missing: {', '.join(map(str, missing[:LAST]))}{more}" if missing else ""
    return f"heard {len(line['heard'])} of {len(line['clients'])} clients, {percent(share, 0)} of the weight{names}"


def heard_weight(lines: list[dict[str, Any]]) -> float:
    """The mean share of the objective's weight that the last rounds heard; 1 before the first."""
    shares = [line["heard_weight"] for line in lines[-LAST:] if "heard_weight" in line]
    return float(np.mean(shares)) if shares else 1.0


def scores(outcome: Outcome, weights: dict[int, float]) -> dict[str, Any]:
    """Of a line of metrics: who was evaluated, and Σ a_i x_i / Σ a_i of accuracy and loss over them."""
    told = {i: (float(a.update[0]), a.loss) for i, a in sorted(outcome.accepted.items())}
    told = {i: (accuracy, loss) for i, (accuracy, loss) in told.items() if accuracy <= 1}  # else it is none
    sure = {i: accuracy for i, (accuracy, _) in told.items() if accuracy >= 0}  # -1: none
    losses = {i: loss for i, (_, loss) in told.items()}
    return {"evaluated": [*told], "accuracy": _mean(sure, weights), "test_loss": _mean(losses, weights)}


def _mean(values: dict[int, float], weights: dict[int, float]) -> float | None:
    total = sum(weights[i] for i in values)
    return round(sum(weights[i] * x for i, x in values.items()) / total, 6) if total > 0 else None


def evaluation(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The last evaluation by the clients, with its round; nothing if there was none."""
    for line in reversed(lines):
        if "evaluated" in line:
            return {"evaluated_round": line["round"]} | {k: line[k] for k in ("evaluated", "accuracy", "test_loss")}
    return {}


def scores_in_words(found: dict[str, Any]) -> str:
    """An evaluation as a sentence."""
    told = {"accuracy": found["accuracy"], "loss": found["test_loss"]}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
    who = f"round {found['evaluated_round']} evaluated by {len(found['evaluated'])} clients"
    return f"{who}: {numbers or 'no answer'}"


def read_status(path: Path, t: int) -> dict[str, Any]:
    """What `status` said at the end of the last round, from its file; round t without clients if there is none."""
    if not path.exists():
        return {"round": t, "clients": []}
    again = "the next round writes it again, and until then you may delete it"
    found = read_sealed(path, again, unsealed=True)
    clients: Any = found.get("clients")
    ok = isinstance(found.get("round"), int) and isinstance(clients, list)
    ok = ok and all(isinstance(row, dict) and row.keys() == clients[0].keys() for row in clients)
    require(ok, f"{path} is not a status; {again}")
    return found


def _finite(values: npt.NDArray[Any]) -> list[float]:
    """Numbers for JSON, which has no NaN: rounded, and 0 where they are not finite."""
    return [round(float(value), 6) if np.isfinite(value) else 0.0 for value in values]


def trace(lines: list[dict[str, Any]]) -> tuple[list[str], Mask]:
    """All clients that ever were in the roster, client-0 and so on, and who was heard: rounds × clients.

    An update that the defence refused was heard: a simulation with the same defence refuses it as well.
    """
    clients = sorted({i for line in lines for i in line["clients"]})
    heard = [np.isin(clients, line["heard"] + line.get("refused", [])) for line in lines]
    return [f"client-{i}" for i in clients], np.array(heard, np.bool_).reshape(-1, len(clients))


def write_trace(path: Path, names: Sequence[str], table: Mask) -> None:
    """Write who was heard in each round as a CSV file that the participation `trace` reads."""
    write_csv(path, [dict(zip(names, row, strict=True)) for row in table.astype(int).tolist()])

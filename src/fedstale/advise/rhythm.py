"""How participation is correlated: over rounds (λ, cycles), between clients, and by chance in short recordings."""

import math

import numpy as np

from fedstale import theory
from fedstale.advise.evidence import Evidence
from fedstale.core import Floats, Mask

CYCLE = 0.5  # autocorrelation from which a lag is called a cycle
COMPARED = 2**21  # entries of a table whose autocorrelation is computed, at most


def mixing(e: Evidence) -> Floats:
    """(n,) correlation λ_i of consecutive rounds: known, measured, or 0 for independent rounds."""
    if e.mixing is not None and not e.recorded:
        return e.mixing
    return np.zeros(len(e.p)) if e.here is None or len(e.here) < 2 else theory.summary(e.here).mixing


def cycle(here: Mask) -> int | None:
    """The lag, past the first decay, at which presence is most like itself, if it is by at least CYCLE."""
    rounds, changing = len(here), np.flatnonzero(here.any(axis=0) & ~here.all(axis=0))
    x = here[:, changing[:: 1 + len(changing) * rounds // COMPARED]].astype(np.float64)
    if x.shape[1] == 0 or rounds < 8:
        return None
    x = x - x.mean(axis=0)
    power = np.abs(np.fft.rfft(x, 2 * rounds, axis=0)) ** 2
    lags = np.fft.irfft(power.sum(axis=1))[: rounds // 2 + 1]
    like = lags / lags[0] * rounds / (rounds - np.arange(len(lags)))
    fallen = np.flatnonzero(like < CYCLE / 2)
    if len(fallen) == 0:
        return None
    later = like[fallen[0] :]
    k = int(np.flatnonzero(later >= 0.95 * later.max())[0])  # the first of its multiples
    while k + 1 < len(later) and later[k + 1] > later[k]:
        k += 1
    return int(fallen[0]) + k if later[k] >= CYCLE else None


def apart(e: Evidence, realised: Floats) -> float:
    """Mean total variation between the clients of one round and those of all rounds, in [0, 1]."""
    if e.here is None:
        return 0.0
    q = e.here * e.weights
    q = q[q.sum(axis=1) > 0]
    return float(0.5 * np.abs(q / q.sum(axis=1, keepdims=True) - realised).sum(axis=1).mean())


def crowding(e: Evidence) -> float:
    """Variance of the number of clients per round, in units of that of independent clients."""
    alone = float((e.p * (1 - e.p)).sum())
    return 1.0 if e.here is None or alone == 0 else float(e.here.sum(axis=1).var()) / alone


def worth(λ: float) -> float:
    """Independent rounds per round: the mean over a chain varies (1 + λ) / (1 - λ) times as much."""
    return (1 - λ) / (1 + max(λ, -0.9))


def chance(recorded: Mask | None, p: float, worth: float) -> float:
    """½ E|b_i - a_i| / a_i of clients that all come with probability p: √(2/π) of a deviation, half of it."""
    if recorded is None:
        return 0.0
    return min(1.0, 0.4 * math.sqrt((1 - p) / (p * max(worth, 1e-3) * len(recorded))))

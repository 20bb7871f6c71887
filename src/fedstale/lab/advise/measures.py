"""The numbers behind a recommendation: bias, noise, staleness, rounds, memory, and correlation over rounds.

[S] Rodio and Neglia, FedStale, ECAI 2024.  [T] Rodio, thesis, 2024.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale import theory
from fedstale.core import Floats, Ids, Mask, require
from fedstale.lab.advise.evidence import Evidence

VISITS = 10  # of the rarest client, the horizon of the experiments of [S]
CYCLE = 0.5  # autocorrelation from which a lag is called a cycle
COMPARED = 2**21  # entries of a table whose autocorrelation is computed, at most
BYTES = {"float32": 4, "float16": 2, "int8": 1}


class Extreme(NamedTuple):
    """A client that stands out, and how many are just like it."""

    client: int
    value: float
    alike: int


class Measures(NamedTuple):
    """What is measured of a participation; all but the first four fields leave out clients that never come."""

    clients: int
    rounds: int | None  # recorded
    never: list[int]  # clients that never come
    lost: float  # their weight
    bias: float  # total variation between a and what FedAvg realises
    chance: float  # what of it so short a recording would show if all came equally often
    gains: Extreme  # realised minus wanted weight
    loses: Extreme
    wanted: Floats  # (n,) a_i
    realised: Floats  # (n,) FedAvg's mean weights
    inflation: float  # 1 / p_var = mean((1 - p_i) / p_i)
    noisiest: Extreme  # its share of Σ a_i² (1 - p_i) / p_i
    p_avg: float
    rarest: Extreme  # p_min
    gap: float  # mean of 1 / p_i: rounds from one visit to the next
    absence: Extreme | None  # longest that was recorded
    least_rounds: float  # 1 / p_min
    enough_rounds: float  # VISITS / p_min
    planned: int | None
    memory: dict[str, int] | None  # bytes of N × d
    mixing: float  # mean of λ_i over the clients that are not always there
    effective_share: float  # (1 - λ) / (1 + λ): independent visits per visit
    cycle: int | None  # rounds after which the same clients are there again
    round_distance: float  # mean total variation between who is there in a round and in the long run
    dispersion: float  # variance of how many are there, over that of independent clients
    arrival: float | None  # mean chance that an update gets through
    availability: float  # least chance that a client is there to send one
    misjudged: Extreme | None  # largest ratio between what the estimator believes and what was recorded
    names: tuple[str, ...] = ()  # of the clients, if they have any

    def name(self, client: int) -> str:
        """A client's name, or its number."""
        return self.names[client] if self.names else str(client)


def measure(everybody: Evidence) -> Measures:
    """All measures of what is known about a participation."""
    come = np.flatnonzero(everybody.p > 0)
    e = only(everybody, come)
    p, a, λ = e.p, e.weights, mixing(e)[e.p < 1]
    realised = independent_weights(p, a) if e.here is None else theory.plain_weights(e.here, a)  # FedAvg's, (n,)
    noise, shift = a**2 * (1 - p) / p, realised - a
    mean, recorded = float(λ.mean()) if λ.size else 0.0, e.here if e.recorded else None
    effective = (1 - mean) / (1 + max(mean, -0.9))  # the mean over a chain varies (1 + λ) / (1 - λ) times as much
    away = None if recorded is None else theory.summary(recorded).longest_absence
    n = len(everybody.p)
    wanted, given = np.zeros((2, n))  # (n,) of all clients, 0 for those who never come
    wanted[come], given[come] = a, realised
    return Measures(
        clients=n, rounds=None if recorded is None else len(recorded),
        never=np.flatnonzero(everybody.p == 0).tolist(), lost=float(everybody.weights[everybody.p == 0].sum()),
        bias=theory.total_variation(a, realised), chance=chance(recorded, float(p.mean()), effective),
        gains=extreme(shift, come), loses=extreme(-shift, come),
        wanted=wanted, realised=given,
        inflation=float(np.mean((1 - p) / p)), noisiest=extreme(noise / max(float(noise.sum()), 1e-300), come),
        p_avg=float(p.mean()), rarest=extreme(1 / p, come)._replace(value=float(p.min())),
        gap=float(np.mean(1 / p)), absence=None if away is None else extreme(away, come),
        least_rounds=float(1 / p.min()), enough_rounds=float(VISITS / p.min()), planned=e.planned,
        memory=None if e.d is None else {name: n * e.d * size for name, size in BYTES.items()},
        mixing=mean, effective_share=effective, cycle=None if e.here is None else cycle(e.here),
        round_distance=round_distance(e, realised), dispersion=dispersion(e),
        arrival=None if e.arrival is None else float(e.arrival.mean()),
        availability=float((p if e.arrival is None else p / e.arrival).min()), misjudged=misjudged(e, come),
        names=everybody.names,
    )  # fmt: skip


def only(e: Evidence, come: Ids) -> Evidence:
    """The evidence about these clients alone, their weights summing to 1."""
    require(len(come) > 0 and float(e.weights[come].sum()) > 0, f"{e.source}: nobody with a weight ever comes")
    λ, arrival, believed = (None if x is None else x[come] for x in (e.mixing, e.arrival, e.believed))
    a, here = e.weights[come], None if e.here is None else e.here[:, come]
    return e._replace(p=e.p[come], weights=a / a.sum(), here=here, mixing=λ, arrival=arrival, believed=believed)


def independent_weights(p: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """(n,) E[a_i 1{i here} / Σ_here a_j], given that somebody is here, for clients that come independently.

    1 / x = ∫ e^(-sx) ds makes of it p_i a_i ∫ e^(-s a_i) Π_{j≠i} (1 - p_j + p_j e^(-s a_j)) ds, which the
    trapezoid rule in x = log s gives to rounding: the integrand is entire there, and dies out at both ends.
    """
    q, a = np.asarray(p, np.float64), np.asarray(weights, np.float64)
    b, some = np.zeros(len(q)), a > 0
    h, low, high = 0.1, -40.0, float(np.log(45 / a[some].min()))
    for x in np.arange(low, high + h, h):
        s = np.exp(x)
        with np.errstate(divide="ignore"):
            logs = np.where(q == 1, -s * a, np.log1p(q * np.expm1(-s * a)))  # of each client's factor
        b += h * s * np.exp(logs.sum() - logs - s * a)
    b *= q * a
    return np.asarray(b / b.sum())


def extreme(values: npt.ArrayLike, names: Ids) -> Extreme:
    """The largest, by name; of equals the first."""
    v = np.asarray(values, np.float64)
    k = int(v.argmax())
    alike = int((np.abs(v - v[k]) <= 1e-6 * max(1e-300, abs(float(v[k])))).sum()) - 1
    return Extreme(int(names[k]), float(v[k]), alike)


def misjudged(e: Evidence, come: Ids) -> Extreme | None:
    """The client whose p̂ is farthest from what was recorded; the ratio is above 1 if p̂ is too large."""
    if e.believed is None:
        return None
    ratio = e.believed / e.p
    far = np.abs(np.log(ratio))
    return extreme(far, come)._replace(value=float(ratio[far.argmax()]))


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


def round_distance(e: Evidence, realised: Floats) -> float:
    """Mean total variation between the clients of one round and those of all rounds, in [0, 1]."""
    if e.here is None:
        return 0.0
    q = e.here * e.weights
    q = q[q.sum(axis=1) > 0]
    return float(0.5 * np.abs(q / q.sum(axis=1, keepdims=True) - realised).sum(axis=1).mean())


def dispersion(e: Evidence) -> float:
    """Variance of the number of clients per round, in units of that of independent clients."""
    alone = float((e.p * (1 - e.p)).sum())
    return 1.0 if e.here is None or alone == 0 else float(e.here.sum(axis=1).var()) / alone


def chance(recorded: Mask | None, p: float, effective: float) -> float:
    """½ E|b_i - a_i| / a_i of clients that all come with probability p: √(2/π) of a deviation, half of it."""
    if recorded is None:
        return 0.0
    return min(1.0, 0.4 * math.sqrt((1 - p) / (p * max(effective, 1e-3) * len(recorded))))


def plain(m: Measures) -> dict[str, Any]:
    """The measures as plain numbers and lists, ready for JSON."""
    named = {key: value._asdict() if isinstance(value, Extreme) else value for key, value in m._asdict().items()}
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in named.items()}

"""How long a client takes from the download to the end of its upload."""

import csv
import math
import os
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import LATER, Floats, Ids, PositiveFinite, Range, keep, part, require, shown
from fedstale.core.text_files import open_text
from fedstale.participation.files import reading

# Of the logarithm of a speed: with more, the fastest of a few clients would be many million times as fast.
Deviation = Annotated[float, Range("in [0, 10]")]
PHONES = 0.93  # standard deviation of the logarithm of the speeds of 333 phones


class Load(NamedTuple):
    """What a client does for an update."""

    steps: npt.NDArray[Any]  # (n,) local steps
    down: int  # bytes that it is sent
    up: int  # bytes that it sends


class Fleet(NamedTuple):
    """The devices of n clients, drawn once for a run."""

    speed: Floats  # (n,) relative to the median device
    bandwidth: Floats  # (n,) bytes per second, both ways; infinite where it costs no time


@runtime_checkable
class Latency(Protocol):
    """How long clients take."""

    def fleet(self, n: int, rng: np.random.Generator) -> Fleet:
        """The devices of n clients."""

    def seconds(self, fleet: Fleet, clients: Ids, load: Load, rng: np.random.Generator) -> Floats:
        """(k,) how long each of these clients takes this time, above 0."""


def _seconds(part: "Lognormal | Devices", fleet: Fleet, clients: Ids, load: Load, rng: Any) -> Floats:
    """steps · step_seconds / speed · jitter + bytes / bandwidth."""
    training = part.step_seconds * load.steps[clients] / fleet.speed[clients]
    if part.jitter:
        training = training * np.exp(part.jitter * rng.standard_normal(len(clients)))
    return np.asarray(training + (load.down + load.up) / fleet.bandwidth[clients])


def _bandwidths(part: "Lognormal | Devices", n: int, rng: np.random.Generator) -> Floats:
    if part.bandwidth is None:
        return np.full(n, math.inf)
    return np.asarray(part.bandwidth * np.exp(part.bandwidth_spread * rng.standard_normal(n)))


@part
class Constant:
    """Every client takes the same time, whatever it does."""

    each: PositiveFinite = 1.0  # seconds

    def fleet(self, n: int, rng: np.random.Generator) -> Fleet:
        return Fleet(np.ones(n), np.full(n, math.inf))

    def seconds(self, fleet: Fleet, clients: Ids, load: Load, rng: np.random.Generator) -> Floats:
        return np.full(len(clients), self.each)


@part
class Lognormal:
    """Devices whose speeds are lognormal, as those of phones nearly are, times a jitter of every training.

    The logarithm of the speed has the standard deviation `spread`; the default is that of 333 phones of 2015 to
    2019. `bandwidth` is that of the median client, and its spread is a choice: there is no open table of it.
    """

    step_seconds: PositiveFinite = 1.0  # of one local step on the median device
    spread: Deviation = PHONES
    jitter: Deviation = 0.2  # standard deviation of the logarithm, drawn for every training
    bandwidth: PositiveFinite | None = None  # bytes per second; messages cost no time if left out
    bandwidth_spread: Deviation = 0.0  # standard deviation of its logarithm
    fastest_first: bool = field(default=False, metadata=LATER)  # client 0 is the fastest: data may follow speed

    seconds = _seconds

    def fleet(self, n: int, rng: np.random.Generator) -> Fleet:
        speeds = np.exp(self.spread * rng.standard_normal(n))
        return Fleet(np.sort(speeds)[::-1] if self.fastest_first else speeds, _bandwidths(self, n, rng))


@part
class Devices:
    """Devices of a table of relative speeds, such as phones: each client is one of them, drawn for the run.

    `table` is a list of speeds, or the path of a .csv file with a column `relative_speed`. With `in_order`, client
    i is line i of the table instead of a draw.
    """

    table: npt.ArrayLike | os.PathLike[str] | str
    step_seconds: PositiveFinite = 1.0  # of one local step on a device of speed 1
    jitter: Deviation = 0.2
    bandwidth: PositiveFinite | None = None
    bandwidth_spread: Deviation = 0.0
    in_order: bool = False
    fastest_first: bool = field(default=False, metadata=LATER)  # client 0 is the fastest: data may follow speed

    def __post_init__(self) -> None:
        path = self.table if isinstance(self.table, str | os.PathLike) else None
        keep(self, "table", _speeds(self.table if path is None else _column(Path(path)), path or "table"))
        require(not (self.in_order and self.fastest_first), "in_order and fastest_first cannot both be true")

    seconds = _seconds

    def fleet(self, n: int, rng: np.random.Generator) -> Fleet:
        speeds = np.asarray(self.table)
        if self.in_order:
            require(len(speeds) >= n, f"{n} clients need {n} devices with in_order, got {len(speeds)}")
        chosen = speeds[:n] if self.in_order else speeds[rng.integers(len(speeds), size=n)]
        return Fleet(np.sort(chosen)[::-1] if self.fastest_first else chosen, _bandwidths(self, n, rng))


def _speeds(given: Any, where: object) -> Floats:
    try:
        speeds = np.zeros(0) if np.asarray(given).dtype == np.bool_ else np.array(given, np.float64)
    except (TypeError, ValueError):
        speeds = np.zeros(0)
    ok = speeds.ndim == 1 and len(speeds) > 0 and bool((np.isfinite(speeds) & (speeds > 0)).all())
    require(ok, f"{where}: must be speeds above 0, one for each device, got {shown(given)}")
    return speeds


def _column(path: Path) -> list[str]:
    """The column `relative_speed` of a file."""
    with reading(path, "table of devices"), open_text(path) as file:
        rows = csv.DictReader(file)
        header = list(rows.fieldnames or ())
        require("relative_speed" in header, f"{path}: needs a column relative_speed, got {header}")
        return [row["relative_speed"] for row in rows]

"""What the words of a user name: one run, the runs of a folder, or the store that a folder is or has."""

import errno
from pathlib import Path
from typing import NamedTuple

from fedstale.core import BadInput, known, require, shown
from fedstale.lab.runs.store import MARKER, RunFolder, runs

RUNS = Path("runs")  # where runs are stored unless a command is told otherwise


class Found(NamedTuple):
    """What a folder holds."""

    runs: list[RunFolder]
    traces: list[Path]  # the numbers that `fedstale inspect` leaves


def is_run(place: Path) -> bool:
    """Whether a folder is that of a run."""
    return (place / "config.json").exists()


def one(name: str, out: Path = RUNS) -> RunFolder:
    """The run with this path or, in a store, with this name or unique beginning of a name."""
    place = Path(name)
    for path in (place, out / name):
        if is_run(path):
            return RunFolder(path)
    if (place / MARKER).exists():
        first = next((f", such as {run.path}" for run in runs(place)), "")
        way = f"name one of them{first}; `fedstale list runs --out {name}` lists them"
        raise BadInput(f"{name} is a folder of runs: {way}")
    trace, other = place / "trace.csv", place.is_dir()
    names = {} if other and not (out / MARKER).exists() else {r.path.name: r for r in runs(out)}
    matches = [run for run in names if run.startswith(name)]
    hint = f"; its recorded participation is {trace}" if trace.exists() else ""
    require(bool(matches) or not other, f"{name} is not the folder of a run: it has no config.json{hint}")
    require(bool(names), f"there is no run {name!r}: {out} has no runs; --out names another folder")
    several = f"the beginning of {len(matches)}: {', '.join(matches)}"
    require(len(matches) < 2, f"the run {name!r} must be one, got {several}")
    return names[matches[0] if matches else known(name, names, "the run")]


def find(place: Path) -> Found:
    """What a folder holds: it is a run, a store, the output of `reproduce`, or that of `inspect`.

    A run may be named alone, if it is in the folder `runs`.
    """
    _require_short(place)
    if not place.exists() and is_run(RUNS / place):
        place = RUNS / place
    if is_run(place):
        return Found([RunFolder(place)], [])
    traces = [place] if place.name.endswith("-trace.csv") and place.is_file() else sorted(place.glob("*-trace.csv"))
    if store := _store_in(place):
        found = Found(runs(store), traces)
        empty = f"{store} is a store without runs; `fedstale run FILE.toml --out {store}` makes some"
        require(bool(found.runs or found.traces), empty)
        return found
    if traces:
        return Found([], traces)
    what = "has no runs in it" if place.is_dir() else "is not there" if not place.exists() else "is not a folder"
    raise BadInput(f"{place} must be a folder of `fedstale run`, `reproduce` or `inspect`, but it {what}")


def _require_short(place: Path) -> None:
    try:
        place.exists()
    except OSError as error:
        require(error.errno != errno.ENAMETOOLONG, f"the name of the folder is too long, got {shown(str(place))}")
        raise


def _store_in(place: Path) -> Path | None:
    return next((folder for folder in (place, place / "runs") if (folder / MARKER).exists()), None)


def store_of(place: Path) -> Path:
    """The store that a folder is or has, or that its run is in; one that is empty or not there may become one."""
    found = _store_in(place) or (place.parent if is_run(place) and (place.parent / MARKER).exists() else None)
    free = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    way = "name the folder of `run` or `reproduce`"
    require(bool(found) or free, f"{place} is not a fedstale store: it has no {MARKER}; {way}")
    return found or place

"""A figure of a paper as data: one base experiment, a grid of settings, rates to tune, and three scales.

    visits = 10                       # rounds = visits / p_min, where the rounds are not given
    …                                 # the keys of an experiment, see fedstale.lab.schema
    [figure]                          # what it is, who draws it, what it claims
    [panel.NAME]                      # settings of one part of the figure, by dotted key
    [variant.NAME]                    # settings of a variant, compared as an algorithm called NAME
    [grid], [tune]                    # as in any experiment file, see fedstale.lab.plan
    [scale.laptop]                    # settings by dotted key, panels it is `without`, and what was `reduced`
    [scale.laptop.figure]             # keys of [figure] that are others at this scale, such as rounds to look `at`

Rates are chosen by the training objective; nothing else is read.
"""

import copy
import itertools
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fedstale.core import BadInput, known, require
from fedstale.lab.build import find, make_participation, packaged
from fedstale.lab.plan import Cell, apart, at, combinations, entries, tuned_on
from fedstale.lab.schema import check, load
from fedstale.lab.spec import LOCAL_KEYS, Spec, Table, as_table, override, put

PAPERS = Path(__file__).parent  # the figures that come with the package
OWN = ("figure", "panel", "variant", "grid", "tune", "scale", "visits")
ABOUT = ("title", "paper", "draw", "says", "claims", "at", "curves", "axes", "first", "shown")


class Scale(StrEnum):
    """How much of a paper's setting is computed."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class Figure(NamedTuple):
    """A figure at one scale."""

    name: str
    scale: str
    reduced: str  # what was cut compared with the paper; empty at scale paper
    about: Table  # [figure]
    raw: Table  # the rest, the scale's settings in place
    changed: bool = False  # by overrides, so that its files need another name


def figures() -> dict[str, Path]:
    """The figures that come with the package, by name."""
    return packaged(PAPERS)


def read(name: str, scale: str, overrides: Sequence[str] = ()) -> Figure:
    """The figure in a TOML file, or a packaged one by its name, at a scale, with `key=value` overrides."""
    path = find(name, PAPERS, "figure")
    figure = at_scale(path.stem, load(path, "figure"), scale)
    for change in overrides:
        _require_free(figure, change.partition("=")[0].strip())
        override(figure.raw, change)
    if not overrides:
        return figure
    reduced = f"{', '.join(overrides)}; {figure.reduced}".removesuffix("; ")  # the picture says so
    return figure._replace(changed=True, reduced=reduced)


def _require_free(figure: Figure, key: str) -> None:
    """Refuse to override what the figure is about, or a setting that it varies: that would have no effect."""
    fixed = key == "algorithms" or key.split(".")[0] in ("figure", "scale")
    require(not fixed, f"{key} of a figure cannot be overridden: write a TOML file of your own")
    tuned = [key for key in figure.raw["tune"] if key != "seeds"]
    raw, tunes = figure.raw, {f"local.{key}" if key in LOCAL_KEYS else key for key in tuned}
    varied = {"tune": tunes, "grid": {part.strip() for keys in raw["grid"] for part in keys.split(",")}}
    varied |= {f"{kind}.{name}": {*of} for kind in ("panel", "variant") for name, of in raw[kind].items()}
    for table, keys in varied.items():
        require(key not in keys, f"{key} is varied by [{table}] of {figure.name}: override that table instead")


def at_scale(name: str, raw: Table, scale: str) -> Figure:
    """The figure that a table describes, at a scale."""
    known(scale, {s.value: s for s in Scale}, "scale")
    raw = copy.deepcopy(raw)
    about, settings = raw.pop("figure", {}), raw.pop("scale", {}).get(scale)
    require(settings is not None, f"{name} has no scale '{scale}'")
    merge(about, settings.pop("figure", {}))
    for key in about:
        known(key, dict.fromkeys(ABOUT), f"{name}: the key in figure")
    for key in ("title", "paper", "draw"):
        require(key in about, f"{name}: figure.{key} is missing")
    reduced = settings.pop("reduced", "")
    require(bool(reduced) or scale == "paper", f"{name}: scale.{scale} must say in `reduced` what was cut")
    for key in ("grid", "tune", "panel", "variant"):
        merge(raw.setdefault(key, {}), settings.pop(key, {}))
    for panel in settings.pop("without", []):
        raw["panel"].pop(known(panel, raw["panel"], f"{name}: the panel"))
    for key, value in settings.items():
        put(raw, key, value)
    return Figure(name, scale, reduced, about, raw)


def merge(table: Table, changes: Table) -> None:
    """Put the changes into a table, inner tables key by key."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            merge(table[key], value)
        else:
            table[key] = value


def cells(figure: Figure) -> list[Cell]:
    """Every panel at every point of the grid, and every variant of it."""
    found = []
    panels, variants = (figure.raw[key] or {"": {}} for key in ("panel", "variant"))
    for (panel, settings), (variant, changes) in itertools.product(panels.items(), variants.items()):
        raw = copy.deepcopy({key: value for key, value in figure.raw.items() if key not in OWN})
        grid, tune = dict(figure.raw["grid"]), dict(figure.raw["tune"])
        for key, value in [*settings.items(), *changes.items()]:
            if key in ("grid", "tune"):
                merge(grid if key == "grid" else tune, value)
            else:
                put(raw, key, value)
        if variant:
            require(len(raw["algorithms"]) == 1, f"{figure.name}: variants are of one algorithm")
            put(raw, "algorithms.0.label", variant)
        for point in combinations(grid):
            found.append(_cell(figure, panel, point, tune, raw))
    return found


def _cell(figure: Figure, panel: str, point: Table, tune: Table, raw: Table) -> Cell:
    raw, (tune, seeds) = at(raw, point), tuned_on(tune)
    pairs = [pair for spec in raw.get("algorithms", []) for pair in entries(spec, tune, raw, _name(spec))]
    raw |= {"name": figure.name, "algorithms": [entry for _, entry in pairs]}
    if "rounds" not in raw:
        raw["rounds"] = horizon(raw, figure.raw.get("visits"))
    raw.setdefault("evaluate_every", max(1, raw["rounds"] // 50))  # whatever it costs, so that rates are comparable
    return apart(Cell(panel, point, [choice for choice, _ in pairs], check(raw)), seeds)


def _name(spec: Spec) -> str:
    entry = as_table(spec, "algorithms")
    return str(entry.get("label", entry.get("kind")))


def horizon(raw: Table, visits: float | None) -> int:
    """The number of rounds in which the rarest client is expected to come `visits` times."""
    if visits is None:
        raise BadInput("a figure needs `rounds` or `visits`")
    checked = check(raw | {"rounds": 1})
    part = make_participation(checked.participation, checked.data)
    return max(1, round(visits / float(part.probs(checked.data["clients"]).min())))

"""Which algorithms of two folders are compared with each other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import BadInput, known, require
from fedstale.lab.runs import query
from fedstale.lab.runs.query import Group, Setting
from fedstale.lab.runs.store import canonical


class Side(NamedTuple):
    """One algorithm in one setting."""

    setting: Setting
    group: Group

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that all seeds share."""
        return {k: v for k, v in self.group.config.items() if k != "seed"}


class Pair(NamedTuple):
    """Two algorithms that are compared with each other."""

    a: Side
    b: Side


def sides(spec: str) -> list[Side]:
    """The algorithms that a folder, or FOLDER:NAME, names; see `_named` for what a name may be."""
    place, colon, label = spec.rpartition(":")
    cuts = [k for k, c in enumerate(spec) if c == ":" and Path(spec[:k]).exists()]  # a label may have colons
    if cuts:
        place, label = spec[: cuts[0]], spec[cuts[0] + 1 :]
    if Path(spec).exists() or not colon:
        place, label = spec, ""
    in_store = Path("runs") / place  # a run may be named alone, if it is in the folder `runs`
    short = not Path(place).exists() and (in_store / "config.json").exists()
    runs = query.find(in_store if short else Path(place)).runs
    require(len(runs) > 0, f"{place} has no runs to compare, only a recorded participation")
    found = [Side(s, g) for s in query.settings(runs) for g in s.groups if g.runs]
    require(len(found) > 0, f"{spec} has no finished run; the same command with --resume goes on with it")
    return _named(label, found, f"the label in {place}") if label else found


def _named(name: str, found: Sequence[Side], what: str) -> list[Side]:
    """The algorithms with this label, else of this label or kind whatever the case, if that is one algorithm."""
    labels = dict.fromkeys(side.group.label for side in found)
    if name not in labels:
        wanted = name.lower()
        alike = {
            s.group.label for s in found if wanted in (s.group.label.lower(), s.config["strategy"]["kind"].lower())
        }
        require(len(alike) < 2, f"{what} {name!r} could be {' or '.join(sorted(alike))}: name one of these")
        name = next(iter(alike), name)
    known(name, labels, what)
    return [side for side in found if side.group.label == name]


def matched(a: Sequence[Side], b: Sequence[Side], names: tuple[str, str]) -> list[Pair]:
    """Who is compared with whom: one with one, else the same label in the same setting, label, or setting."""
    keys: list[Callable[[Side], str]] = [
        lambda s: canonical(s.setting.config) + s.group.label,
        lambda s: s.group.label,
        lambda s: canonical(s.setting.config),
    ]
    if len(a) == len(b) == 1:
        return [Pair(a[0], b[0])]
    for key in keys:
        left, right = ({key(s): s for s in some} for some in (a, b))
        if len(left) == len(a) and len(right) == len(b) and (both := [k for k in left if k in right]):
            return [Pair(left[k], right[k]) for k in both]
    labels = [", ".join(dict.fromkeys(s.group.label for s in some)) for some in (a, b)]
    raise BadInput(
        f"{names[0]} and {names[1]} have nothing that can be paired: name one algorithm of each as FOLDER:NAME; "
        f"A has {labels[0][:200]}; B has {labels[1][:200]}"
    )

"""Names of clients, and a recorded participation put into the order of a task's clients."""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from fedstale.core.parts import BadInput
from fedstale.core.protocols import Participation


@runtime_checkable
class NamesClients(Protocol):
    """A task or a recorded participation with a name for each client; `names` is empty where they have none."""

    @property
    def names(self) -> tuple[str, ...]: ...


@runtime_checkable
class TellsLabels(Protocol):
    """A task that says in words which labels each client has; `labels` is empty where there are none."""

    @property
    def labels(self) -> Sequence[str]: ...


@runtime_checkable
class HasNote(Protocol):
    """A task that says how its samples were prepared; `note` is empty if there is nothing to say."""

    @property
    def note(self) -> str: ...


@runtime_checkable
class OrdersClients(NamesClients, Protocol):
    """A recorded participation that can be put into another order of its clients, or cut to some of them."""

    def ordered(self, names: Sequence[str]) -> Participation: ...


@runtime_checkable
class HasBase(Protocol):
    """A participation that chooses among the clients of another one."""

    @property
    def base(self) -> Participation: ...


def names_of(part: object) -> tuple[str, ...]:
    """The names of the clients; empty where they have none."""
    return part.names if isinstance(part, NamesClients) else ()


def labels_of(part: object) -> Sequence[str]:
    """Which labels each client has, in words; empty where there are none."""
    return part.labels if isinstance(part, TellsLabels) else ()


def in_order(names: Iterable[str]) -> list[str]:
    """Different names in ascending order, by value if all of them are numbers."""
    found = {*names}
    try:
        return sorted(found, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(found)


def listed(names: Sequence[str], most: int = 3) -> str:
    """`Berlin, Bonn and 4 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def matched(process: Participation, names: Sequence[str]) -> Participation:
    """The participation with its clients in the order of the task's, matched by name where both have names."""
    if not names:
        return process
    if dataclasses.is_dataclass(process) and isinstance(process, HasBase):
        found: Any = dataclasses.replace(process, base=matched(process.base, names))
        return process if found.base is process.base else found
    if not isinstance(process, OrdersClients) or process.names in ((), (*names,)):
        return process
    if len(process.names) != len(names) and not {*names} & {*process.names}:
        return process  # its header names rounds, or anything else
    missing, others = [x for x in names if x not in process.names], [x for x in process.names if x not in names]
    if missing:
        what = f"{len(missing)} of {len(names)} clients of the data are not in the recorded participation"
        there = f"it has {listed(others)} instead" if others else f"it has {listed(process.names)}"
        raise BadInput(f"{what}: {listed(missing)}; {there}; leave them out of the data, or name them alike")
    if others:
        warnings.warn(f"recorded clients without data are left out: {listed(others)}", stacklevel=3)
    return process.ordered(names)

"""Which columns of a table are the clients and the label, where nobody says so."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedstale.core import known, require
from fedstale.data.tables import MISSING, is_number, read_csv

LABELS = ("label", "target", "y", "class", "outcome", "disease", "diagnosis", "default", "churn")


class Guess(NamedTuple):
    """The columns that name a row's client and what is to be predicted, and the metric to compare by."""

    client: str
    label: str
    main: str  # accuracy of classes, the test loss of numbers


def guess(path: Path, names: Sequence[str], client: str | None, label: str | None) -> Guess:
    """The column that has the clients of the recording, `names`, and the one called a label, or the last one."""
    columns = read_csv(path)
    for given in (client, label):
        if given is not None:
            known(given, columns, f"{path.name}: column")
    if client is None:
        present = {*names}
        shares = {name: _share(values, present) for name, values in columns.items()}
        client = max(shares, key=shares.__getitem__)
        found = f"names clients of the recording ({', '.join(names[:3])}, …)" if names else "can be recognised"
        require(shares[client] > 0.5, f"{path.name}: no column {found}; --client COLUMN says which it is")
    named = [name for name in columns if name.lower() in LABELS and name != client]
    label = label or (named or [name for name in columns if name != client])[-1]
    return Guess(client, label, "loss" if is_number(path, label) else "accuracy")


def rows(path: Path) -> int:
    """How many samples a table has."""
    return len(next(iter(read_csv(path).values())))


def _share(values: Sequence[str], present: set[str]) -> float:
    """The share of a column's different values that are clients of the recording."""
    own = {value.strip() for value in values} - {*MISSING}
    return len(own & present) / max(1, len(own))

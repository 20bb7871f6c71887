"""Tables with a row per sample: a CSV file or a data frame, divided among the clients that one column names.

Columns are prepared as scikit-learn would by default, with numbers that are learnt from the training rows alone:
numbers get mean 0 and deviation 1, missing ones the median; categories get a column of 0 and 1 each.
"""

import csv
import dataclasses
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, Ids, known, part, require, shown
from fedstale.core.abilities import in_order, listed
from fedstale.core.text_files import csv_lines, open_text, with_points
from fedstale.data.datasets import Dataset
from fedstale.data.federated import Federated, Group, absent, federate

MISSING = ("", "na", "n/a", "nan", "nat", "null", "none", "?")
LABELS = ("label", "target", "y", "class", "outcome", "disease", "diagnosis", "default", "churn")
CATEGORIES = 50  # of a column; one that has more is a name or a date, and is left out
CLASSES = 100  # of a label of whole numbers; with more it is a number to be predicted
Column = npt.NDArray[Any]  # (M,) float64 with nan, or text with ""


@runtime_checkable
class Frame(Protocol):
    """A data frame: named columns, such as those of pandas and polars."""

    @property
    def columns(self) -> Any: ...
    def __getitem__(self, key: Any, /) -> Any: ...


@part
class ByClient:
    """The samples of client i are those whose number is i."""

    names: tuple[str, ...]
    needs_writers: ClassVar[bool] = True

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        return [np.flatnonzero(labels == i) for i in range(n)]


def from_frame(
    frame: Frame | Mapping[str, Any] | str | os.PathLike[str],
    *,
    client: str,
    label: str,
    leave_out: Sequence[str] = (),
    seed: int = 0,
    fraction: float = 1.0,
    test_share: float = 0.2,
    validation: float = 0.0,
    held_out: float | Sequence[int] = 0.0,
) -> Federated:
    """The clients of a table, for `fs.image_task`: `client` names a row's client, `label` what is to be predicted.

    `frame` is a data frame, a mapping of columns, or the path of a .csv file. The other columns are the inputs,
    without those of `leave_out`; `.note` of what is returned says what was done with each. A label of texts or of
    few whole numbers is a class, any other a number, for a loss such as nn.MSELoss(). The other settings are those
    of `federate`.
    """
    name, columns = _columns(frame)
    for column in (client, label, *leave_out):
        known(column, columns, f"{name}: column")
    owners, names = _clients(columns[client], f"{name}: {client}")
    y, classes, told = _targets(columns[label], f"{name}: {label}")
    kinds, dropped = _inputs({k: v for k, v in columns.items() if k not in (client, label, *leave_out)})
    require(len(kinds) > 0, f"{name} must have a column of inputs besides {client} and {label}, got none")
    there = np.ones(len(y), np.bool_) if y.dtype.kind == "f" else y >= 0  # rows with a label
    x = np.stack([*kinds.values()], axis=1)[there]
    whole = Dataset(name, x, y[there], int(there.sum()), len(classes) or 1, writers=owners[there])
    shared = {"test_share": test_share, "validation": validation, "held_out": held_out, "fraction": fraction}
    made = federate(whole, ByClient((*names,)), len(names), seed=seed, **shared)  # type: ignore[arg-type]
    out = absent(held_out, len(names), seed)
    prepared = Preparation(made.x, [*kinds], {k: _texts(columns[k]) for k in kinds if columns[k].dtype.kind != "f"})
    rows = f"{name}: {len(x)} rows of {len(names)} clients ({client}); {label} {told}"
    lost = int((~there).sum())
    notes = [rows + (f", {lost} rows without it are left out" if lost else ""), *prepared.notes(), *dropped]
    return dataclasses.replace(
        made, x=prepared(made.x), test_x=prepared(made.test_x),
        validation=_prepared(made.validation, prepared), held_out=_prepared(made.held_out, prepared),
        names=tuple(name for i, name in enumerate(names) if i not in out), class_names=tuple(classes),
        note="; ".join(notes),
    )  # fmt: skip


class Preparation:
    """Medians, means, deviations and categories of the training rows, applied to any rows."""

    def __init__(self, x: Floats, names: Sequence[str], texts: Mapping[str, list[str]]) -> None:
        self.names, self.texts = names, texts
        numbers = [k for k, name in enumerate(names) if name not in texts]
        self.numbers, seen = numbers, x[:, numbers]
        self.gaps = {names[k]: int(np.isnan(x[:, k]).sum()) for k in numbers if np.isnan(x[:, k]).any()}
        self.median = np.array([np.nanmedian(v) if np.isfinite(v).any() else 0.0 for v in seen.T])
        full = np.where(np.isnan(seen), self.median, seen)
        deviation = full.std(axis=0)
        self.mean, self.std = full.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
        kinds = {k: np.unique(x[:, k][~np.isnan(x[:, k])]) for k, name in enumerate(names) if name in texts}
        self.kinds = kinds  # of each column of categories those that are in the training rows

    def __call__(self, x: Floats) -> npt.NDArray[np.float32]:
        seen = x[:, self.numbers]
        scaled = (np.where(np.isnan(seen), self.median, seen) - self.mean) / self.std
        marked = [x[:, [k]] == values for k, values in self.kinds.items()]
        return np.concatenate([scaled, *marked], axis=1).astype(np.float32)

    def notes(self) -> Iterator[str]:
        """What is done with the columns, in words."""
        if self.numbers:
            yield f"scaled to mean 0 and deviation 1: {listed([self.names[k] for k in self.numbers], 8)}"
        if self.gaps:
            yield f"missing filled with the median: {listed([f'{v} of {k}' for k, v in self.gaps.items()], 8)}"
        if self.kinds:
            told = [f"{self.names[k]} ({len(values)})" for k, values in self.kinds.items()]
            yield f"a column of 0 and 1 for each category: {listed(told, 8)}"


def _prepared(group: Group | None, prepared: Preparation) -> Group | None:
    return None if group is None else dataclasses.replace(group, x=prepared(group.x))


def read_csv(path: Path) -> dict[str, list[str]]:
    """The columns of a .csv file by their names."""
    try:
        require(path.is_file(), f"there is no file {path}")
        with open_text(path) as file:
            lines = csv_lines(file)
            header = [cell.strip() for cell in next(lines, [])]
            separator = lines.dialect.delimiter
            rows = [(lines.line_num, with_points(row, separator)) for row in lines if any(row)]
    except (OSError, EOFError, UnicodeError, csv.Error, lzma.LZMAError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    ok = len(rows) > 0 and len({*header}) == len(header)
    require(ok, f"{path} must have a line of different names, then rows")
    odd = next((k for k, row in rows if len(row) != len(header)), None)
    require(odd is None, f"{path}, line {odd}: must have {len(header)} entries, as the first line has")
    return dict(zip(header, map(list, zip(*(row for _, row in rows), strict=True)), strict=True))


def client_names(path: Path, client: str) -> list[str]:
    """The clients of a .csv file, in their order."""
    columns = read_csv(path)
    values = [cell.strip() for cell in columns[known(client, columns, f"{path.name}: column")]]
    return in_order(value for value in values if value.lower() not in MISSING)


def _columns(frame: Any) -> tuple[str, dict[str, Column]]:
    """The name of a table and its columns: numbers, or texts."""
    if isinstance(frame, str | os.PathLike):
        path = Path(frame)
        return path.name, {name: _column(values) for name, values in read_csv(path).items()}
    named = frame if isinstance(frame, Mapping) else None
    ok = named is not None or isinstance(frame, Frame)
    require(ok, f"frame must be a data frame, a mapping of columns or the path of a .csv file, got {shown(frame)}")
    names = [*(named if named is not None else frame.columns)]
    return "the table", {str(name): _column(frame[name]) for name in names}


def _column(values: Any) -> Column:
    """(M,) numbers if all that are there are numbers, else texts; what is missing is nan, or empty."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    texts = ["" if str(v).strip().lower() in MISSING or v != v else str(v).strip() for v in array.tolist()]
    try:
        return np.array([float(v) if v else np.nan for v in texts])
    except ValueError:
        return np.array(texts)


def _texts(column: Column) -> list[str]:
    """The categories of a column, ascending."""
    return in_order(v for v in column.tolist() if v != "")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value == value else str(value)


def _clients(column: Column, where: str) -> tuple[Ids, list[str]]:
    """(M,) the number of each row's client, and the names of the clients in order."""
    values = [_text(v) for v in column.tolist()]
    gone = sum(v in ("", "nan") for v in values)
    require(gone == 0, f"{where} must name the client of every row, got {gone} rows without")
    names = in_order(values)
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[v] for v in values], np.int64), names


def _targets(column: Column, where: str) -> tuple[npt.NDArray[Any], list[str], str]:
    """(M,) class numbers, -1 where there is none, or (M, 1) numbers to predict; the classes, and a sentence."""
    if column.dtype.kind == "f":
        seen = np.unique(column[~np.isnan(column)])
        if _continuous(column):
            require(not np.isnan(column).any(), f"{where} must be a number in every row, got nothing in some")
            told = "is a number to predict, by squared errors (in Python loss=nn.MSELoss())"
            return column[:, None].astype(np.float32), [], told
        classes = [_text(v) for v in seen.tolist()]
        y = np.where(np.isnan(column), -1, np.searchsorted(seen, column))
    else:
        classes = _texts(column)
        y = np.array([classes.index(v) if v else -1 for v in column.tolist()])
    require(1 < len(classes) <= CLASSES, f"{where} must have 2 to {CLASSES} different labels, got {len(classes)}")
    return y.astype(np.int64), classes, f"has {len(classes)} classes ({listed(classes, 5)})"


def _continuous(column: Column) -> bool:
    """Whether a label is a number to predict: not all whole, or too many to be classes."""
    seen = np.unique(column[~np.isnan(column)]) if column.dtype.kind == "f" else np.zeros(0)
    return len(seen) > CLASSES or bool((seen != np.round(seen)).any())


def is_number(path: Path, label: str) -> bool:
    """Whether the label of a .csv file is a number to predict, not a class."""
    return _continuous(_column(read_csv(path)[label]))


def _inputs(columns: Mapping[str, Column]) -> tuple[dict[str, Floats], list[str]]:
    """Each column as numbers, those of categories by their places, nan where missing; and what is left out."""
    kept, left = dict[str, Floats](), list[str]()
    for name, column in columns.items():
        if column.dtype.kind == "f":
            numbered = name.lower().endswith("id") and len(np.unique(column)) == len(column)
            left.append(name) if numbered else kept.update({name: column})
            continue
        place = {text: float(k) for k, text in enumerate(_texts(column))}
        if len(place) > CATEGORIES:
            left.append(name)
        else:
            kept[name] = np.array([place.get(v, np.nan) for v in column.tolist()])
    told = f"left out as names or dates, with a value of its own in most rows: {listed(left, 8)}"
    return kept, [told] if left else []


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

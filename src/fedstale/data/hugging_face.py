"""Datasets of Hugging Face, divided among clients; samples are read when a batch needs them.

Nothing here imports `datasets` or `flwr_datasets`: whoever has such an object has installed them.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedstale.core import Ids, known, part, require, shown


@runtime_checkable
class Table(Protocol):
    """One split of Hugging Face, a `datasets.Dataset`: rows with named columns."""

    @property
    def column_names(self) -> list[str]: ...
    @property
    def format(self) -> dict[str, Any]: ...
    def with_format(self, type: str) -> "Table": ...
    def select(self, indices: Any) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...


@runtime_checkable
class Partitioner(Protocol):
    """A partitioner of flwr-datasets: its attribute `dataset` is set once, and it has a dataset for each client."""

    def is_dataset_assigned(self) -> bool: ...
    def load_partition(self, partition_id: int) -> Table: ...


@part
class Rows:
    """The samples of one client: pairs (x, y) of columns. x is a dict if `inputs` are several columns."""

    table: Any  # Table, which clients share
    rows: Ids  # those of the client
    inputs: str | tuple[str, ...]
    target: str
    client_name: str = ""  # the value of the column that the rows are divided by

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, Any]]:
        """Several samples, which are read at once."""
        columns = self.table[self.rows[indices].tolist()]
        targets = columns[self.target]
        if isinstance(self.inputs, str):
            return list(zip(columns[self.inputs], targets, strict=True))
        rows = zip(*(columns[name] for name in self.inputs), strict=True)
        return [(dict(zip(self.inputs, row, strict=True)), y) for row, y in zip(rows, targets, strict=True)]


def from_hf(
    dataset: Table, partition_by: str | Partitioner | None, *, inputs: str | Sequence[str], target: str
) -> list[Rows]:
    """The clients of a Hugging Face dataset, each a dataset of (x, y) samples, for `Supervised`.

    `partition_by` is a column: each of its values is a client, in ascending order. Or it is a partitioner of
    flwr-datasets; with None there is one client with all rows. `inputs` is the column of the inputs, or several,
    which a model gets by keyword. Values are torch tensors, unless the dataset has a format or a transform of
    its own (`with_format`, `with_transform`).
    """
    ok = isinstance(dataset, Table)
    require(ok, f'dataset must be one split, such as load_dataset(…)["train"], got {type(dataset).__name__}')
    names = inputs if isinstance(inputs, str) else tuple(inputs)
    table = dataset if dataset.format["type"] else dataset.with_format("torch")
    require(len(table) > 0, "dataset must have rows, got none")
    sample = table[0]
    for name in (*([names] if isinstance(names, str) else names), target):
        known(name, sample, "column")
    return [Rows(mine, rows, names, target, name) for mine, rows, name in _divided(table, partition_by)]


def _divided(table: Table, by: Any) -> list[tuple[Table, Ids, str]]:
    """The table of each client, which of its rows are the client's, and its name if it has one."""
    if by is None:
        return [(table, np.arange(len(table)), "")]
    if not isinstance(by, str):
        ok = isinstance(by, Partitioner)
        require(ok, f"partition_by must be a column or a partitioner of flwr-datasets, got {shown(by)}")
        if not by.is_dataset_assigned():
            by.dataset = table
        parts = [by.load_partition(i) for i in range(by.num_partitions)]
        return [(mine, np.arange(len(mine)), "") for mine in parts]
    column = known(by, dict.fromkeys(table.column_names), "partition_by: column")
    values, client = np.unique(np.asarray(table.with_format("numpy")[column][:]), return_inverse=True)
    cuts = np.cumsum(np.bincount(client))[:-1]
    rows = np.split(np.argsort(client, kind="stable"), cuts)
    return [(table, mine, str(name)) for mine, name in zip(rows, values.tolist(), strict=True)]

"""Rows on a device of torch, in float32: the memory of rules whose updates stay there."""

from typing import Any

import numpy as np

from fedstale.core import BadInput, DeviceArray, Ids

AFTER = 4  # writes of a row, on average, after which the sum is made anew: float32 would not forget large old rows


class Device:
    """A vector (d,) for each client that was heard from."""

    def __init__(self, place: DeviceArray, d: int) -> None:
        self.zeros, self.rows, self.writes = place.zeros(d), dict[int, DeviceArray](), 0

    def due(self) -> bool:
        """Whether the sum of the rows is to be made anew; then the count of writes begins anew."""
        due = 0 < AFTER * len(self.rows) <= self.writes
        self.writes = 0 if due else self.writes
        return due

    def take(self, clients: Ids) -> tuple[Any, Ids]:
        """These rows, to be changed; a new row is zero."""
        try:
            self.rows |= {i: self.zeros.copy() for i in clients.tolist() if i not in self.rows}
        except RuntimeError as error:  # torch's, of a device that is full
            what = f"no more than {len(self.rows)} rows of {len(self.zeros)} numbers fit on the device ({error})"
            raise BadInput(f'{what}: leave out aggregate = "device"') from error
        return [self.rows[i].tensor for i in clients.tolist()], np.arange(len(clients))

    def put(self, clients: Ids, codes: Any) -> None:
        """Count the rows, which were changed in place."""
        self.writes += len(clients)

    def read(self, client: int) -> Any:
        """(d,) one row, zeros before the first update."""
        return self.rows.get(client, self.zeros)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        codes = np.array([row.saved() for row in self.rows.values()], np.float32)
        return {"clients": np.array([*self.rows], np.int64), "codes": codes, "writes": self.writes}

    def restored(self, saved: dict[str, Any]) -> "Device":
        """The rows of a checkpoint."""
        made, rows = Device(self.zeros, len(self.zeros)), map(self.zeros.restored, saved["codes"])
        made.rows, made.writes = dict(zip(saved["clients"].tolist(), rows, strict=True)), saved["writes"]
        return made

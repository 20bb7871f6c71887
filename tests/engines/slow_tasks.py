"""Quadratic tasks that take time, fail or die: without torch, so that processes start quickly."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import Array, BadInput, Local
from fedstale.tasks.quadratic import Quadratic

LOCAL = Local(0.05, steps=2)


class Slow(Quadratic):
    """Every gradient takes `pause` seconds; a file `mark` is made by the first."""

    def __init__(self, pause: float, mark: str = "") -> None:
        super().__init__(np.arange(1200.0).reshape(6, 200), noise=0.1)
        self.pause, self.mark = pause, mark

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        if self.mark:
            open(self.mark, "a").close()
        time.sleep(self.pause)
        return super().gradient(params, client, batch)


class Held(Slow):
    """Every gradient writes the number of its process to `mark`, and waits while there is a file `hold`."""

    def __init__(self, mark: Path, hold: Path) -> None:
        super().__init__(0.0)
        self.told, self.hold = str(mark), str(hold)

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        with open(self.told, "a") as file:
            file.write(f"{os.getpid()} ")
        while os.path.exists(self.hold):
            time.sleep(0.01)
        return super().gradient(params, client, batch)


class Failing(Slow):
    """Client 2 cannot be trained."""

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        if client == 2:
            raise BadInput("client 2 is out of order")
        return super().gradient(params, client, batch)


class Deadly(Slow):
    """Client 2 ends the process that trains it."""

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        if client == 2:
            os._exit(1)
        return super().gradient(params, client, batch)


class Unloadable(Quadratic):
    """It can be pickled, but not loaded again."""

    def __init__(self) -> None:
        super().__init__(np.zeros((2, 3)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("no")

"""A quadratic task that tells who trains it, so that it can be killed in the middle of it."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import Array, Local
from fedstale.tasks.quadratic import Quadratic

LOCAL = Local(0.02, steps=2)


class Doomed(Quadratic):
    """The first gradient after `mark` is gone writes the number of its process there, and waits to be killed."""

    def __init__(self, mark: Path, pause: float) -> None:
        super().__init__(np.arange(2400.0).reshape(12, 200), noise=0.1)
        self.mark, self.pause = str(mark), pause

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        try:
            with open(self.mark, "x") as file:
                file.write(f"{os.getpid()} ")
            time.sleep(self.pause)
            Path(f"{self.mark}.woken").touch()
        except FileExistsError:
            pass
        return super().gradient(params, client, batch)


def woken(mark: Path) -> bool:
    """Whether the one that waited came to the end of its pause."""
    return Path(f"{mark}.woken").exists()


def marked(mark: Path) -> int:
    """The process that has begun."""
    while not (mark.exists() and mark.read_text().endswith(" ")):
        time.sleep(0.005)
    return int(mark.read_text())

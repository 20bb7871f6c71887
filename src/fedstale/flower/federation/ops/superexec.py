"""Flower's SuperExec, which starts the server's app: `python -m fedstale.flower.federation.ops.superexec …`.

The arguments are those of `flower-superexec`. Flower gives an app its token on the command line, which every user
of the machine can read; here the app reads it from a file that only its owner can.
"""

import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedstale.flower.federation import adapter
from fedstale.flower.federation.ops.keeper import keep_the_keeper
from fedstale.lab.runs.store import write_secret


class Launcher:
    """Starts processes whose tokens are in files of a folder; a file goes when its process has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, dict[Path, subprocess.Popen[bytes]]()
        for left in folder.glob("*.token"):
            left.unlink()

    def __call__(self, arguments: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """What Flower calls in the place of Popen."""
        for path in [path for path, process in self.files.items() if process.poll() is not None]:
            self.files.pop(path)
            path.unlink(missing_ok=True)
        command = list(arguments)
        at = command.index("--token")
        path = self.folder / f"{secrets.token_hex(8)}.token"
        write_secret(path, command[at + 1].encode())
        command[at : at + 2] = ["--token-file", str(path)]
        self.files[path] = process = subprocess.Popen(command, **settings)
        return process


def main() -> None:
    """Run the SuperExec until it is stopped."""
    keep_the_keeper()
    launcher = Launcher(Path(os.environ["FLWR_HOME"]))
    adapter.subprocess_executor.subprocess = SimpleNamespace(Popen=launcher, DEVNULL=subprocess.DEVNULL)
    adapter.flower_superexec()


if __name__ == "__main__":
    main()

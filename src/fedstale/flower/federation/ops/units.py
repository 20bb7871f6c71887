"""systemd units for a federation: the link, training, and clients, with limits and little that they may touch."""

import getpass
import json
import re
import sys
from importlib.resources import files
from pathlib import Path

from fedstale.core import require
from fedstale.flower.federation.settings import Settings

UNIT = files("fedstale.cli") / "templates" / "federation" / "unit.service.txt"
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
AGAIN = "always\nRestartSec=5"
UNTIL_DONE = "on-failure\nRestartSec=30\nRestartPreventExitStatus=2 5"  # unusable input, or too little weight heard


def units(s: Settings, user: str | None = None) -> dict[str, str]:
    """File name → text of the units of a federation. The server's app runs within the unit of the link."""
    user = user or getpass.getuser()
    require(ACCOUNT.fullmatch(user) is not None, f"--user must be the name of an account, got {user!r}")
    name, folder, python = s.file.name, _quoted(s.folder.resolve()), _quoted(Path(sys.executable))
    link = f"{name}-link.service"
    made = {
        link: ("link and server", f"up {folder} --foreground", AGAIN, "80%", ""),
        f"{name}-run.service": ("training", f"run {folder}", UNTIL_DONE, "2G", f" {link}\nRequires={link}"),
        f"{name}-client@.service": ("client %i", f"join {folder} %i --foreground", AGAIN, "80%", ""),
    }
    return {
        file: UNIT.read_text().format(
            title=f"Federation {name}: {what}", command=command, restart=restart, memory=memory, after=after,
            user=user, python=python, folder=folder,
        )
        for file, (what, command, restart, memory, after) in made.items()
    }  # fmt: skip


def write_units(s: Settings, target: Path, user: str | None = None) -> list[Path]:
    """Write the units to a folder; returns their files."""
    target.mkdir(parents=True, exist_ok=True)
    made = units(s, user)
    for name, text in made.items():
        (target / name).write_text(text)
    return [target / name for name in made]


def _quoted(path: Path) -> str:
    """A path as a word of a unit, in which % means something."""
    text = str(path).replace("%", "%%")
    return json.dumps(text, ensure_ascii=False) if " " in text else text

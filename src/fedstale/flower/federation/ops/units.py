"""systemd units for a federation: the link, training, and clients, with limits and little that they may touch."""

import getpass
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import IO

from fedstale.core import require
from fedstale.flower.federation.settings import Settings
from fedstale.lab.runs.store import write

UNIT = """\
[Unit]
Description={title}
Wants=network-online.target
After=network-online.target{after}
StartLimitIntervalSec=0

[Service]
User={user}
UMask=0077
Environment=OMP_NUM_THREADS=1
ExecStart={python} -m fedstale federation {command}
Restart={restart}
TimeoutStopSec=30
# Limits: what goes wrong here must not take the machine with it.
MemoryMax={memory}
TasksMax=512
LimitNOFILE=65536
# What it may touch: its own folder.
ReadWritePaths={folder}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
RestrictSUIDSGID=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes

[Install]
WantedBy=multi-user.target
"""
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
        file: UNIT.format(
            title=f"Federation {name}: {what}", command=command, restart=restart, memory=memory, after=after,
            user=user, python=python, folder=folder,
        )
        for file, (what, command, restart, memory, after) in made.items()
    }  # fmt: skip


def write_units(s: Settings, target: Path, user: str | None = None) -> list[Path]:
    """Write the units to a folder; returns their files."""
    target.mkdir(parents=True, exist_ok=True)
    for name, text in units(s, user).items():
        write(target / name, partial(_put, text=text))
    return [target / name for name in units(s, user)]


def _put(file: IO[bytes], text: str) -> None:
    file.write(text.encode())


def _quoted(path: Path) -> str:
    """A path as a word of a unit, in which % means something."""
    text = str(path).replace("%", "%%")
    return json.dumps(text, ensure_ascii=False) if " " in text else text

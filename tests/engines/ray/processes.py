"""What is seen of processes from outside: children, their titles, where they listen."""

import os
import time
from pathlib import Path


def stat(pid: int) -> list[str]:
    """State, parent, …; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def below(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have started."""
    parents = {int(p): int(found[1]) for p in os.listdir("/proc") if p.isdigit() and (found := stat(int(p)))}
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def gone(pids: set[int], within: float = 300.0) -> bool:
    """Whether none of the processes is there any more; one that is dead but not yet buried is not."""
    end = time.monotonic() + within
    while (left := any((stat(pid) or "Z")[0] != "Z" for pid in pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not left


def listening(pids: set[int]) -> set[str]:
    """The addresses, as /proc/net writes them, on which the processes accept connections."""
    sockets = set()
    for pid in pids:
        try:
            sockets |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].split(":")[0])
    return found

"""The command line in a process of its own, and a small experiment for it."""

import subprocess
import sys
from pathlib import Path

QUADRATIC = """
rounds = 60
seeds = [1, 2]
algorithms = ["fedavg", {kind = "fedstale", beta = 0.8}, "fedau"]
[data]
dataset = "quadratic"
clients = 8
dimension = 5
noise = 0.1
[local]
lr = 0.05
[participation]
kind = "two-groups"
p_min = 0.3
"""
COMMAND = [sys.executable, "-m", "fedstale"]


def fedstale(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=600, cwd=cwd)

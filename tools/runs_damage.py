"""Damages of the files of a finished run: `python -m tools.runs_damage --cases 316 --seed 7`.

A case flips a bit of a file, cuts it, fills it with garbage, gives it another shape or deletes it, and then uses
the run in every way. What must hold: the answer is the same as before, or a sentence or warning says what is
damaged; and `fedstale run` leaves the run as it was. With --old the runs have no checksums, as those of earlier
versions: there, nothing may end in an exception.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedstale.cli.app import command
from fedstale.core import BadInput
from fedstale.lab.runs.models import arrays
from fedstale.lab.runs.query import run_row
from fedstale.lab.runs.store import RunFolder
from fedstale.view.live import axes
from fedstale.view.live.experiment import Experiments
from fedstale.view.live.index import Index

MODEL = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
"""
TOML = """
rounds = 6
engine = "serial"
algorithms = ["fedavg"]
seeds = [1, 2]
data = { dataset = "digits", clients = 4, partition = "iid", fraction = 0.1 }
model = { kind = "damaged_net:net" }
local = { lr = 0.1, steps = 1 }
participation = { kind = "bernoulli", p = 0.5 }
"""
SHAPES: list[Any] = [[], {}, [1, 2], {"a": 1}, "text", 5, None, {"round": 1}, {"weight": "x"}, {"weight": [1, "x"]},
                     {"objective": 3}, {"objective": {"final": "x", "last10": 1, "best": 1}}, {"rounds": "x"},
                     {"seed": 7}, {"parameters": 5, "buffers": []}, {"parameters": [{"name": 1}]},
                     {"round": 1, "heard": 3}, {"round": 1, "heard": ["x"]}, {"round": 1, "objective": [1]},
                     {"round": 1, "weights": {"a": 1}}, {"round": 1, "staleness": 5}]  # fmt: skip
KINDS = ("bit", "cut", "garbage", "shape", "delete")
IDLE = ("lock", "status.json")  # nothing depends on them
Answers = dict[str, Any]


def make(home: Path) -> Path:
    """A store with finished runs in a folder; returns the first run."""
    (home / "damaged_net.py").write_text(MODEL)
    (home / "try.toml").write_text(TOML)
    _quiet("run", home / "try.toml", "-o", home / "runs")
    return sorted((home / "runs").glob("fedavg-s1-*"))[0]


def damage(run: Path, rng: random.Random) -> str:
    """Damage one file of a run, and say how."""
    path = rng.choice(sorted(p for p in run.iterdir() if p.name not in IDLE))
    kind, whole = rng.choice(KINDS), bytearray(path.read_bytes())
    at = rng.randrange(max(len(whole), 1))
    if kind == "bit":
        whole[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        whole = whole[:at]
    elif kind == "garbage":
        whole[at : at + 40] = rng.randbytes(rng.randrange(1, 80))
    elif kind == "shape":
        shape = rng.choice(SHAPES)
        known = _json(bytes(whole))
        mixed = (
            known | shape if isinstance(known, dict) and isinstance(shape, dict) and rng.random() < 0.5 else shape
        )
        lines = whole.split(b"\n")[1:] if path.suffix == ".jsonl" else [b""]
        whole = bytearray(b"\n".join([json.dumps(mixed).encode(), *lines]))
    path.unlink()
    if kind != "delete":
        path.write_bytes(whole)
    return f"{path.name}: {kind} at {at}"


def _json(text: bytes) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return None


def uses(home: Path, run: Path) -> dict[str, Callable[[], Any]]:
    """What is done with a stored run, by name; each returns something that can be compared."""
    other = sorted((home / "runs").glob("fedavg-s2-*"))[0]
    return {
        "export": lambda: {name: value.tolist() for name, value in arrays(RunFolder(run)).items()},
        "show": lambda: _quiet("show", run, "--format", "json"),
        "list": lambda: run_row(RunFolder(run)),
        "compare": lambda: _quiet("compare", run, other, "--format", "json"),
        "report": lambda: _report(home),
        "tables": lambda: (
            _quiet("export", home / "runs", "--to", "csv", "--into", home / "t"),
            _texts(home / "t"),
        ),
        "live": lambda: _live(home / "runs"),
    }


def _quiet(*words: object) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        command()([str(word) for word in words], standalone_mode=False)
    return out.getvalue()


def _texts(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


def _report(home: Path) -> str:
    _quiet("report", home / "runs", "-o", home / "report.html")
    return (home / "report.html").read_text()


def _live(store: Path) -> Any:
    index = Index([store])
    index.scan()
    pages = Experiments(index)
    found = {key: pages.show(key, axes.view("round", "0")) for key in index.experiments()}
    notes = [note for page in found.values() for note in page["notes"]] + [r.note for r in index.all() if r.note]
    if any(notes):
        raise BadInput("; ".join(notes))  # the page shows them
    return json.loads(json.dumps(found, default=str))


def answered(use: Callable[[], Any]) -> tuple[str, Any]:
    """What a use returns, or the sentence that it ends with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = use()
        except (BadInput, OSError, ArithmeticError) as error:
            return "named", str(error)
        except Exception:
            return "exception", traceback.format_exc()
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    named = told or (isinstance(found, dict) and str(found.get("state", "")).startswith("damaged"))
    return ("named", told) if named else ("answer", found)


def cases(home: Path, count: int, seed: int, old: bool = False) -> Iterator[tuple[str, str]]:
    """What was done, and the verdict: same, named, silent or the exception."""
    run, rng = make(home), random.Random(seed)
    if old:
        (run / "checksums.json").unlink()
    kept = home / "kept"
    shutil.copytree(run, kept)
    before = {name: answered(use) for name, use in uses(home, run).items()}
    assert {kind for kind, _ in before.values()} == {"answer"}, [
        name for name, (kind, _) in before.items() if kind != "answer"
    ]
    for _ in range(count):
        what = damage(run, rng)
        for name, use in uses(home, run).items():
            kind, found = answered(use)
            same = kind == "answer" and found == before[name][1]
            verdict = "same" if same else "named" if kind == "named" else "silent" if kind == "answer" else found
            yield f"{what}, {name}", verdict
        yield f"{what}, run", _run_again(home, run, kept)
        shutil.rmtree(run)
        shutil.copytree(kept, run)


def _run_again(home: Path, run: Path, kept: Path) -> str:
    """The command that made the run, once more: its parameters and metrics are as they were before the damage."""
    kind, found = answered(lambda: _quiet("run", home / "try.toml", "-o", home / "runs"))
    if kind == "exception":
        return str(found)
    paths = [(run / name, kept / name) for name in ("params.npy", "metrics.jsonl")]
    same = all(now.exists() and now.read_bytes() == then.read_bytes() for now, then in paths)
    return "same" if same else "silent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=316)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--old", action="store_true", help="Runs without checksums.")
    asked = parser.parse_args()
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as home:
        for what, verdict in cases(Path(home), asked.cases, asked.seed, asked.old):
            known = verdict if verdict in ("same", "named", "silent") else "exception"
            found[known] += 1
            if known == "exception" or (known == "silent" and not asked.old):
                print(what, verdict, sep="\n")
    print(dict(found))
    sys.exit(1 if found["exception"] or (found["silent"] and not asked.old) else 0)


if __name__ == "__main__":
    main()

"""The papers' figures as a command: all at scale smoke, and one that is killed again and again."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedstale.cli import reproduce
from fedstale.papers import executors as workers
from fedstale.papers import figure as sweep
from fedstale.runs import store

FILES = reproduce.figures()
COMMAND = [sys.executable, "-c", "import typer; from fedstale.cli.reproduce import reproduce; typer.run(reproduce)"]
SMALL = """
seeds = [1, 2]
rounds = 150
evaluate_every = 10
engine = "batched"
algorithms = [{ kind = "fedstale", beta = 0.8 }, "unbiased", "fedau"]
[data]
dataset = "quadratic"
clients = 6
noise = 0.1
[local]
lr = 0.02
[participation]
kind = "two-groups"
p_min = 0.2
[grid]
"participation.p_min" = [0.5, 0.2, 0.1]
[tune]
lr = [0.05, 0.02]
[figure]
paper = "amplified"
draw = "curves"
title = "a small one"
curves = true
[[figure.claims]]
text = "all is well"
check = "above"
first = "unbiased"
second = "fedau"
metric = "objective_last10"
lower = true
[scale.smoke]
reduced = "everything"
"""


@pytest.mark.parametrize("name", FILES)
def test_every_figure_runs_at_scale_smoke(name: str, tmp_path: Path) -> None:
    figure = sweep.read(FILES[name], "smoke")
    found, folder = sweep.cells(figure), store.open_store(tmp_path / "runs")
    workers.compute(found, folder, jobs=1, resume=False, command="", say=lambda line: None)
    verdicts = reproduce.write(figure, found, folder, tmp_path, "png")
    assert len(verdicts) == len(figure.about["claims"]) > 0
    assert (tmp_path / f"{name}-smoke.png").stat().st_size > 10_000
    runs = sum(len({c.algorithm for c in cell.choices}) * len(cell.experiment.seeds) for cell in found)
    assert (tmp_path / f"{name}-smoke.csv").read_text().count("\n") == 1 + runs
    assert figure.reduced in (tmp_path / f"{name}-smoke-claims.txt").read_text()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_figure_is_defined_at_every_scale(name: str, scale: str) -> None:
    """Its claims are about algorithms and settings that it has, and its runs can be planned."""
    figure = sweep.read(FILES[name], scale)
    found = sweep.cells(figure)
    algorithms = {c.algorithm for cell in found for c in cell.choices}
    for claim in figure.about["claims"]:
        known = set(claim.get("columns", algorithms))
        assert {claim[key] for key in ("first", "second") if key in claim} <= known, claim["text"]
    assert all(cell.experiment.evaluate_every or cell.experiment.rounds >= 10 for cell in found)


def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def results(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(out.iterdir()) if p.suffix in (".csv", ".txt", ".png")}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_killed_at_random_ends_with_the_same_bytes(jobs: int, tmp_path: Path) -> None:
    words = [*COMMAND, str(small(tmp_path)), "--scale", "smoke", "--jobs", str(jobs), "--resume"]
    luck, cut = random.Random(jobs), tmp_path / "cut"
    for blow in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        begun = len(list(cut.glob("runs/*/metrics.jsonl")))
        process = subprocess.Popen([*words, "--out", cut], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(cut.glob("runs/*/metrics.jsonl"))) <= begun < 36:
            time.sleep(0.01)  # until the next runs begin
        time.sleep(luck.uniform(0.0, 0.3))
        process.send_signal(blow)
        process.wait(60)
    finished = len(list(cut.glob("runs/*/result.json")))
    assert finished < 36, "nothing was left to do"
    for _ in range(5):  # workers that lost their parent may hold their runs for one more round
        if subprocess.run([*words, "--out", cut], capture_output=True, timeout=300).returncode == 0:
            break
        time.sleep(0.5)
    subprocess.run([*words, "--out", tmp_path / "whole"], check=True, capture_output=True, timeout=300)
    assert results(cut) == results(tmp_path / "whole")
    assert len(results(cut)) == 6


def test_interrupted_runs_are_not_touched_without_resume(tmp_path: Path) -> None:
    figure = sweep.read(small(tmp_path), "smoke")
    found, folder = sweep.cells(figure), store.open_store(tmp_path / "runs")
    half = workers.waiting(found[0], folder)[0].folder
    half.path.mkdir()
    (half.path / "checkpoint.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="--resume"):
        workers.compute(found, folder, jobs=1, resume=False, command="", say=lambda line: None)


def test_the_list_shows_the_cost_of_each() -> None:
    done = subprocess.run([*COMMAND, "--list"], capture_output=True, text=True, check=True, timeout=60)
    assert all(name in done.stdout for name in FILES)
    assert "30 × 4000" in done.stdout


def test_an_unknown_figure_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'fedstale-fig2'"):
        reproduce.find("fedstale-fgi2")


def test_pictures_for_print(tmp_path: Path) -> None:
    figure = sweep.read(small(tmp_path), "smoke")
    found, folder = sweep.cells(figure)[:1], store.open_store(tmp_path / "runs")
    workers.compute(found, folder, jobs=1, resume=False, command="", say=lambda line: None)
    for suffix, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        reproduce.write(figure, found, folder, tmp_path, suffix)
        assert (tmp_path / f"small-smoke.{suffix}").read_bytes().startswith(start)

"""`fedstale run` as a person uses it: interrupted, killed and fed nonsense."""

import csv
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstale.cli.run import run
from fedstale.lab import plan as planning
from fedstale.view.terminal.console import Format
from tests.cli.commands import fedstale
from tests.forks import doomed, forked


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def run_files(out: Path) -> dict[str, bytes]:
    """What must be the same however often a run was stopped: metrics and final parameters."""
    found = {f"{p.parent.name}/{p.name}": p.read_bytes() for p in out.glob("*/metrics.jsonl")}
    return found | {f"{p.parent.name}/{p.name}": p.read_bytes() for p in out.glob("*/params.npy")}


def test_a_comparison_leaves_a_table_a_picture_and_runs(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = fedstale("run", file, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "fedstale beta=0.8" in done.stdout
    assert (out / "try.png").stat().st_size > 10_000
    assert (out / "try.csv").read_text().count("\n") == 4
    assert len(list(out.glob("*/result.json"))) == 6
    again = fedstale("run", file, "--out", out)
    assert "6 of 6 runs were stored already" in again.stderr
    listed = json.loads(fedstale("list", "runs", "--out", out, "--format", "json").stdout)
    assert {row["state"] for row in listed["runs"]} == {"finished"}
    assert {(row["round"], row["metric"], row["lr"], type(row["final"])) for row in listed["runs"]} == {
        (60, "distance", 0.05, float)
    }
    shown = json.loads(fedstale("show", listed["runs"][0]["name"], "--out", out, "--format", "json").stdout)
    assert shown["config"]["data"]["dataset"] == "quadratic"
    assert shown["result"]["rounds"] == 60


def test_an_engine_on_the_command_line_wins_over_the_file(file: Path, tmp_path: Path) -> None:
    done = fedstale("run", file, "--engine", "batched", "--seeds", "1", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    used = {json.loads(p.read_text())["engine"] for p in (tmp_path / "runs").glob("*/config.json")}
    assert used == {"batched"}
    for path in (tmp_path / "runs").glob("*/result.json"):  # three runs in step: the speed is that of one
        result = json.loads(path.read_text())
        assert result["rounds_per_second"] == pytest.approx(result["rounds"] / result["seconds"], rel=0.05)
    assert "'nobody' is unknown" in fedstale("run", file, "--engine", "nobody").stderr


def test_results_as_json(file: Path, tmp_path: Path) -> None:
    done = fedstale("run", file, "--out", tmp_path / "runs", "--seeds", "3", "--format", "json", "-c", "rounds=12")
    result = json.loads(done.stdout)
    assert [row["algorithm"] for row in result["table"]] == ["fedavg", "fedstale beta=0.8", "fedau"]
    assert all(Path(result[key]).exists() for key in ("figure", "numbers"))
    numbers = csv_rows(Path(result["numbers"]))
    assert {(row["rounds"], row["seeds"]) for row in numbers} == {
        ("12", "1")
    }  # what was overridden, how many seeds


def test_a_warm_up_is_computed_once_and_everybody_starts_from_its_end(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    warm = "warmup={rounds=40, lr=0.05}"
    assert fedstale("run", file, "--out", out, "--seeds", "1", "-c", warm, "-c", "rounds=3").returncode == 0
    assert len(list(out.glob("warm-up-s1-*/result.json"))) == 1
    first = {p.parent.name: json.loads(p.read_text().split("\n")[0]) for p in out.glob("fed*/metrics.jsonl")}
    assert len(first) == 3
    cold = tmp_path / "cold"
    assert fedstale("run", file, "--out", cold, "--seeds", "1", "-c", "rounds=3").returncode == 0
    for path in cold.glob("fed*/metrics.jsonl"):
        begun = json.loads(path.read_text().split("\n")[0])["objective"]
        assert all(line["objective"] < begun for line in first.values())


def test_stopped_at_random_and_resumed_is_the_same_as_never_stopped(file: Path, tmp_path: Path) -> None:
    words = ["run", file, "-c", "rounds=200", "--seeds", "1", "--checkpoint", "0.05", "--engine", "serial"]
    whole = tmp_path / "whole"
    assert fedstale(*words, "--out", whole).returncode == 0
    for how in (signal.SIGINT, signal.SIGKILL):
        broken = tmp_path / how.name
        _stopped_again_and_again(doomed(tmp_path), words, broken, how)
        assert run_files(broken) == run_files(whole), how


def _stopped_again_and_again(program: Path, words: list[Any], broken: Path, how: signal.Signals) -> None:
    """After random numbers of the 600 lines of metrics, and then not any more."""
    rng = random.Random(5)
    for _ in range(3):
        doom = [how.value, rng.randint(20, 120), rng.uniform(0.0, 0.01)]
        done = forked(program, *doom, *words, "--out", broken, "--resume")
        assert done.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), done.stderr
    assert fedstale(*words, "--out", broken, "--resume").returncode == 0


def test_interrupted_runs_are_not_silently_started_anew(file: Path, tmp_path: Path) -> None:
    words = ["run", file, "-c", "rounds=20000", "--seeds", "1", "--out", tmp_path / "runs", "--engine", "serial"]
    stopped = forked(doomed(tmp_path), signal.SIGINT.value, 1, 0, *words)
    assert "--resume goes on" in stopped.stderr
    begun = {*(tmp_path / "runs").iterdir()}
    for more in (
        [],
        ["-c", 'grid={"local.lr"=[0.01, 0.05]}'],
    ):  # nor is another rate computed before they are found
        refused = fedstale(*words, *more)
        assert refused.returncode == 2
        assert "add --resume" in refused.stderr
        assert {*(tmp_path / "runs").iterdir()} == begun


NONSENSE = [
    (["-c", "algorithms.1.beta=1.5"], "beta must be in [0, 1], got 1.5"),
    (["-c", "participation.p_min=0.0"], "is 0 for 4 of 8 clients"),
    (["-c", "rounds=0"], "rounds must be at least 1, got 0"),
    (["-c", "data.dataset=mnits"], "did you mean 'mnist'?"),
    (["-c", "roundz=3"], "did you mean 'rounds'?"),
    (["-c", "participation.pmin=3"], "did you mean 'p_min'?"),
    (["-c", "local.lr=-1"], "local.lr must be above 0, got -1"),
    (["-c", "algorithms.7.beta=0"], "the list has 3 entries"),
    (["-c", "nonsense"], "an override is key=value, got 'nonsense'"),
    (["-c", 'participation={kind="trace", matrix="missing.csv"}'], "missing.csv"),
    (["--seeds", "1,1"], "seeds must differ"),
    (["-c", "engine=warp"], "engine 'warp' is unknown"),
]


@pytest.mark.parametrize(("words", "sentence"), NONSENSE, ids=[" ".join(w) for w, _ in NONSENSE])
def test_nonsense_gets_one_sentence(file: Path, tmp_path: Path, words: list[str], sentence: str) -> None:
    done = fedstale("run", file, "--out", tmp_path / "runs", *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


def test_a_trace_of_the_wrong_shape(file: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("1,0,1\n0,1,1\n")
    done = fedstale(
        "run",
        file,
        "--out",
        tmp_path / "runs",
        "-c",
        f'participation={{kind="trace", matrix="{tmp_path}/trace.csv"}}',
    )
    assert done.returncode == 2
    assert "8" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_not_ours_is_left_alone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years of work")
    done = fedstale("run", file, "--out", tmp_path / "precious")
    assert done.returncode == 2
    assert "is not a fedstale store" in done.stderr
    assert os.listdir(tmp_path / "precious") == ["thesis.tex"]


SMALL_FILES = """
import resource, signal
from fedstale.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
main()
"""


def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(file: Path, tmp_path: Path) -> None:
    (tmp_path / "small_files.py").write_text(SMALL_FILES)
    words = ["run", file, "-c", "rounds=120", "--seeds", "1", "--out", tmp_path / "runs", "--checkpoint", "0"]
    full = forked(tmp_path / "small_files.py", *words)
    assert full.returncode == 4, full.stderr
    assert "Traceback" not in full.stderr
    assert fedstale(*words, "--resume").returncode == 0
    assert fedstale(*words[:-4], "--out", tmp_path / "whole").returncode == 0
    assert run_files(tmp_path / "runs") == run_files(tmp_path / "whole")


def test_damaged_runs_are_named_and_computed_again_and_the_others_go_on(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ["run", file, "--out", out, "--keep-checkpoints"]
    assert fedstale(*words).returncode == 0
    whole, folders = run_files(out), sorted(p.parent for p in out.glob("*/config.json"))
    half, empty, line, cut, result, left = folders
    for folder in (half, empty, line, cut):
        for name in ("result.json", "checksums.json"):
            (folder / name).unlink()
    checkpoint = (half / "checkpoint.npz").read_bytes()
    (half / "checkpoint.npz").write_bytes(checkpoint[: len(checkpoint) // 2])
    (empty / "checkpoint.npz").write_bytes(b"")
    metrics = (line / "metrics.jsonl").read_bytes().split(b"\n")
    (line / "metrics.jsonl").write_bytes(b"\n".join([*metrics[:6], b"{oops", *metrics[7:]]))
    (cut / "metrics.jsonl").unlink()
    (result / "result.json").write_text("{oops")
    (left / ".checkpoint.npz.4711").write_text("left by a kill")
    rows = json.loads(fedstale("list", "runs", "-o", out, "--format", "json").stdout)["runs"]
    listed = {row["name"]: row for row in rows}
    assert listed[line.name]["state"] == "damaged: metrics.jsonl is damaged in line 7"
    assert listed[result.name]["state"].startswith("damaged: result.json cannot be read")
    assert listed[left.name]["state"] == "finished"
    shown = fedstale("show", line.name, "-o", out)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    done = fedstale(*words, "--resume")
    assert done.returncode == 0, done.stderr
    for folder in (half, empty, line, cut):
        assert f"{folder.name} starts again from round 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert run_files(out) == whole
    assert json.loads((result / "result.json").read_text())["rounds"] == 60


def test_a_run_that_diverges_says_so_and_the_others_finish(file: Path, tmp_path: Path) -> None:
    done = fedstale(
        "run",
        file,
        "--out",
        tmp_path / "runs",
        "--seeds",
        "1",
        "-c",
        'algorithms=["mifa", {kind="fedavg", lr=1e30}]',
    )
    assert done.returncode == 3
    assert "no update is finite" in done.stderr
    assert len(list((tmp_path / "runs").glob("mifa*/result.json"))) == 1
    (lost,) = (tmp_path / "runs").glob("fedavg*")
    before = (lost / "metrics.jsonl").stat().st_mtime_ns
    known = fedstale(*done.args)
    assert known.returncode == 3
    assert "known from before: --again tries again" in known.stderr
    assert (lost / "metrics.jsonl").stat().st_mtime_ns == before


def test_an_experiment_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    described = planning.describe
    monkeypatch.setattr(planning, "describe", lambda *part: calls.append(part) or described(*part))
    monkeypatch.setattr(sys, "argv", ["fedstale"])
    run("quadratic", ["rounds=2"], tmp_path / "runs", "1")
    assert len(calls) == 1, "a plan describes the participation once"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what diverges
def test_a_sweep_with_tuning_seeds_runs_the_chosen_settings_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedstale"])
    (tmp_path / "sweep.toml").write_text(SWEEP)
    change = ["tune.seeds=[7]", "participation.p_min=0.3", "grid={}"]
    run(str(tmp_path / "sweep.toml"), change, tmp_path / "runs", format=Format.json)
    told = capsys.readouterr()
    assert "3 of 10 runs diverged" in told.err, "1e30 is not tried on the seeds 1 and 2"
    found = json.loads(told.out)
    assert [(r["algorithm"], r["lr"], r["seeds"]) for r in found["table"]] == [
        ("fedavg", 0.1, 2), ("fedstale", 0.1, 2),
    ]  # fmt: skip
    assert [r["tuning"] for r in found["settings"] if "tuning" in r] == [True] * 6
    assert len(found["runs"]) == len([*(tmp_path / "runs").glob("*/config.json")]) == 6 + 2 * 2


SWEEP = """
seeds = [1, 2]
rounds = 12
algorithms = ["fedavg", "fedstale"]
data = { dataset = "quadratic", clients = 4, dimension = 3 }
local = { lr = 0.1 }
[participation]
kind = "two-groups"
[grid]
participation.p_min = [0.3, 0.6]
[tune]
lr = [0.1, 1e30]
beta = [0.5, 1.0]
"""


def test_a_sweep_has_a_table_of_the_best_settings_and_all_runs_in_files(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = ("run", "sweep.toml", "--format", "json")
    done = fedstale(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 of 24 runs diverged" in done.stderr
    found = json.loads(done.stdout)
    assert [(r["algorithm"], r["p_min"], r["lr"]) for r in found["table"]] == [
        (name, p, 0.1) for p in (0.3, 0.6) for name in ("fedavg", "fedstale")
    ]  # fmt: skip
    with (tmp_path / found["numbers"]).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (2 + 4)
    assert sum(row["chosen"] == "True" for row in rows) == 4
    with (tmp_path / found["all_runs"]).open() as file:
        runs = list(csv.DictReader(file))
    assert (
        {row["run"] for row in runs}
        == {*found["runs"]}
        == {p.parent.name for p in tmp_path.glob("runs/*/config.json")}
    )
    assert [row["lr"] for row in runs if row["finished"] == "False"] == ["1e+30"] * 12
    assert [Path(p).name for p in found["figures"]] == ["sweep-p_min=0.3.png", "sweep-p_min=0.6.png"]
    again = fedstale("run", "sweep.toml", cwd=tmp_path)
    assert "12 of 24 runs were stored already" in again.stderr
    assert "of the settings in [tune] those with the best training objective are shown" in again.stdout

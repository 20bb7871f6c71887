"""The papers' figures as a command: all at scale smoke, and one that is killed again and again."""

import csv
import json
import random
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure as Picture

from fedstale.cli.reproduce import listing, reproduce
from fedstale.core import BadInput
from fedstale.lab import executors
from fedstale.lab import plan as planning
from fedstale.lab.papers import results
from fedstale.lab.papers.figure import Figure, Scale, cells, figures, read
from fedstale.lab.plan import Cell, Planned, every_run, planned
from fedstale.lab.recorder import packages
from fedstale.lab.runs import store
from tests.cli.commands import MAIN, fedstale
from tests.forks import Fork, doomed, forked
from tests.lab.papers.small_figure import small_figure

FILES = figures()
SMALL = small_figure()


def computed(figure: Figure, folder: Path) -> tuple[Figure, list[Cell]]:
    found = planned(cells(figure), store.open_store(folder / "runs"))
    executors.compute(found, jobs=1, resume=False, command="", say=lambda line: None)
    return figure, found


QUICK = {"amplified-fig2", "auto-phones", "fedawe-tab2", "fedstale-fig1", "thesis-fig2.1"}  # one of each paper


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FILES])
def test_every_figure_runs_at_scale_smoke(name: str, tmp_path: Path) -> None:
    figure, found = computed(read(name, "smoke"), tmp_path)
    verdicts = results.write(figure, found, tmp_path, "png")
    assert len(verdicts) == len(figure.about["claims"]) > 0
    assert (tmp_path / f"{name}-smoke.png").stat().st_size > 10_000
    runs = sum(len({c.algorithm for c in cell.choices}) * len(cell.experiment.seeds) for cell in found)
    assert (tmp_path / f"{name}-smoke.csv").read_text().count("\n") == 1 + runs
    assert figure.reduced in (tmp_path / f"{name}-smoke-claims.txt").read_text()


def made_up(p: Planned) -> None:
    """A finished run with every number that figures are drawn from."""
    luck, n, folder = random.Random(p.folder.path.name), p.config["data"]["clients"], p.folder
    names = [f"{kind}_exit_{e}" for kind in ("accuracy", "variance") for e in (1, 2, 3, 4, 5)]
    folder.path.mkdir()
    store.write_json(folder.path / "config.json", p.config)
    with (folder.path / "metrics.jsonl").open("w") as file:
        for t in range(1, 13):
            line: dict[str, Any] = {"round": t, "available": n, "participants": n - 1, "weights": [1 / n] * n}
            line |= {"heard": [*range(n - 1)], "not_selected": [n - 1], "excluded": [n - 1]}
            line |= {
                name: luck.random() for name in ("accuracy", "objective", "loss", "variance", "w1", "w2", *names)
            }
            file.write(json.dumps(line) + "\n")
    best = dict.fromkeys(("final", "last10", "best"), luck.random())
    folder.save_result({"rounds": p.config["rounds"], "objective": best, "accuracy": best})


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn once instead of twice and with few pixels: that they look well is not asked here."""
    save = Picture.savefig
    monkeypatch.setattr(Picture, "draw_without_rendering", lambda picture: None)
    monkeypatch.setattr(Picture, "savefig", lambda picture, path, **of: save(picture, path, **of | {"dpi": 40}))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("name", [n for n in FILES if n not in QUICK])
def test_every_other_figure_is_drawn_and_judged(name: str, tmp_path: Path) -> None:
    """From made-up runs; `make test-slow` trains them."""
    figure = read(name, "smoke")
    found = planned(cells(figure), store.open_store(tmp_path / "runs"))
    for p in every_run(found):
        made_up(p)
    verdicts = results.write(figure, found, tmp_path, "png")
    assert len(verdicts) == len(figure.about["claims"]) > 0
    assert (tmp_path / f"{name}-smoke.png").stat().st_size > 2_000


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_figure_is_defined_at_every_scale(name: str, scale: str) -> None:
    """Its claims are about algorithms and settings that it has, and its runs can be planned."""
    figure = read(name, scale)
    results.check(figure)
    found = cells(figure)
    algorithms = {c.algorithm for cell in found for c in cell.choices}
    for claim in figure.about["claims"]:
        known = set(claim.get("columns", algorithms))
        assert {claim[key] for key in ("first", "second") if key in claim} <= known, claim["text"]
    assert all(cell.experiment.evaluate_every or cell.experiment.rounds >= 10 for cell in found)


def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def written(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(out.iterdir()) if p.suffix in (".csv", ".txt", ".png")}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sweep_killed_at_random_ends_with_the_same_bytes(tmp_path: Path, jobs: int) -> None:
    words = ["reproduce", small(tmp_path), "--scale", "smoke", "--resume"]
    assert fedstale(*words, "--jobs", "1", "--out", tmp_path / "whole").returncode == 0
    whole = written(tmp_path / "whole")
    assert len(whole) == 6
    cut, luck = tmp_path / "cut", random.Random(jobs)
    killed = _killed_in_workers if jobs > 1 else _killed
    for blow in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        killed([*words, "--jobs", jobs, "--out", cut], cut, luck, blow)
    for _ in range(60):  # workers that lost their parent may hold their runs for one more round
        if fedstale(*words, "--jobs", jobs, "--out", cut).returncode == 0:
            break
        time.sleep(0.5)
    assert written(cut) == whole


def _killed(words: list[Any], cut: Path, luck: random.Random, blow: signal.Signals) -> None:
    """At one of the 5,400 lines of metrics, in the process itself."""
    done = forked(doomed(cut.parent), blow.value, luck.randint(200, 1200), 0, *words)
    assert done.returncode == (-blow if blow == signal.SIGKILL else 130), done.stderr


def _killed_in_workers(words: list[Any], cut: Path, luck: random.Random, blow: signal.Signals) -> None:
    """When the next runs have begun, or later."""
    begun = len(list(cut.glob("runs/*/metrics.jsonl")))
    with Fork(MAIN, *words) as fork:
        while fork.process.is_alive() and len(list(cut.glob("runs/*/metrics.jsonl"))) <= begun < 36:
            time.sleep(0.01)
        time.sleep(luck.uniform(0.0, 0.1))
        fork.kill(blow)
        fork.process.join(600)


def test_interrupted_runs_are_not_touched_without_resume(tmp_path: Path) -> None:
    found = planned(cells(read(str(small(tmp_path)), "smoke")), store.open_store(tmp_path / "runs"))
    half = executors.waiting(found[0])[0].folder
    half.path.mkdir()
    (half.path / "checkpoint.npz").write_bytes(b"")
    with pytest.raises(BadInput, match="--resume"):
        executors.compute(found, jobs=1, resume=False, command="", say=lambda line: None)
    with half.locked(), pytest.raises(BadInput, match="being computed by another process"):
        executors.compute(found, jobs=1, resume=False, command="", say=lambda line: None)


def test_the_list_shows_the_cost_of_each() -> None:
    rows = {row["name"]: row for row in listing()}
    assert rows.keys() == FILES.keys()
    assert rows["fedstale-fig1"]["paper"] == "720 × 4000"


def test_an_unknown_figure_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="figure 'fedstale-fgi2' is unknown; did you mean 'fedstale-fig2'"):
        read("fedstale-fgi2", "smoke")


def test_pictures_for_print(tmp_path: Path) -> None:
    figure, found = computed(read(str(small(tmp_path)), "smoke", ["rounds=5", "tune={}"]), tmp_path)
    for suffix, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        results.write(figure, found, tmp_path, suffix)
        assert (tmp_path / f"{results.stem(figure, found)}.{suffix}").read_bytes().startswith(start)


def test_every_cell_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    described = planning.describe

    def counted(*words: Any) -> Any:
        calls.append("once in every plan")
        return described(*words)

    monkeypatch.setattr(planning, "describe", counted)
    monkeypatch.setattr(sys, "argv", ["fedstale"])
    change = ["rounds=3", "tune={}"]
    reproduce(str(small(tmp_path)), Scale.smoke, change, seeds="7", jobs=1, out=tmp_path)
    assert len(calls) == 3, "three cells"
    configs = [run.config() for run in store.runs(tmp_path / "runs")]
    assert {(c["rounds"], c["seed"]) for c in configs} == {(3, 7)}


def test_rates_can_be_chosen_on_seeds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedstale"])
    change = ["rounds=10", 'grid={"participation.p_min"=[0.2]}', "tune.seeds=[101,102]"]
    reproduce(str(small(tmp_path)), Scale.smoke, change, seeds="7", jobs=1, out=tmp_path)
    assert "rates are chosen on other seeds than those that are reported: 101, 102" in capsys.readouterr().out
    ((numbers, tuning),) = [
        (p, p.with_name(f"{p.stem}-tuning.csv")) for p in tmp_path.glob("small-smoke-??????.csv")
    ]
    rows = list(csv.DictReader(numbers.read_text().splitlines()))
    assert [row["seed"] for row in rows] == ["7"] * 3
    tried = list(csv.DictReader(tuning.read_text().splitlines()))
    assert [(r["algorithm"], r["lr"]) for r in tried if r["chosen"] == "True"] == [
        (row["algorithm"], row["lr"]) for row in rows
    ]
    assert len(tried) == 6
    assert len([*store.runs(tmp_path / "runs")]) == 6 * 2 + 3, "what was not chosen is not run on the seed 7"


def test_overrides_have_files_of_their_own(tmp_path: Path) -> None:
    file = str(small(tmp_path))
    folder = tmp_path / "runs"
    plain, changed = (read(file, "smoke", change) for change in ([], ["seeds=[3]"]))
    stems = [results.stem(figure, planned(cells(figure), folder)) for figure in (plain, changed, changed)]
    assert stems[0] == "small-smoke"
    assert stems[1] == stems[2]
    assert re.fullmatch("small-smoke-[0-9a-f]{6}", stems[1])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('draw = "curves"', 'draw = "curvs"', "figure.draw 'curvs' is unknown; did you mean 'curves'"),
        ('paper = "amplified"', 'paper = "amplifed"', "figure.paper 'amplifed' is unknown"),
        ('check = "above"', 'check = "abov"', "check 'abov' is unknown; did you mean 'above'"),
    ],
)
def test_a_wrong_drawing_or_claim_is_refused_before_training(
    old: str, new: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace(old, new))
    with pytest.raises(BadInput, match=sentence):
        reproduce(str(path), Scale.smoke, jobs=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_scale_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="small has no scale 'laptop'"):
        reproduce(str(small(tmp_path)), Scale.laptop, jobs=1, out=tmp_path / "out")


def test_progress_counts_rounds() -> None:
    """Of 1000 rounds 100 were there before, and 300 more took 30 s."""
    assert executors.progress((100, 10.0), 400, 1000, 30.0) == "400 of 1000 rounds, 30 s so far, about 40 s left"
    assert executors.progress((100, 5.0), 100, 1000, 5.0) == "100 of 1000 rounds, 5 s so far"


def test_rounds_in_the_store_are_counted_also_of_runs_that_are_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(cells(read(str(small(tmp_path)), "smoke")), store.open_store(tmp_path / "runs"))
    done, half, diverged, _ = found[0].runs[:4]
    for p in (done, half, diverged):
        p.folder.path.mkdir()
    (done.folder.path / "result.json").write_text('{"rounds": 150}')
    (half.folder.path / "metrics.jsonl").write_text("{}\n{}\n{}")
    store.write_json(diverged.folder.path / "diverged.json", {"why": "", "code": packages()["fedstale"]})
    assert executors.rounds_left(found[0].runs[:4]) == 0 + 148 + 0 + 150

    said: list[str] = []
    clock = iter([0.0, 5.0, 15.0, 25.0])
    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(executors, "meanwhile", lambda report, seconds: report)
    report: Any = executors._reporting([found[0]._replace(runs=found[0].runs[:4])], said.append)
    for lines in (2, 52, 102):  # the first new ones say how long loading took, the next ones how long rounds take
        (half.folder.path / "metrics.jsonl").write_text("{}\n" * lines)
        report()
    assert said == [
        "302 of 600 rounds, 5 s so far",
        "352 of 600 rounds, 15 s so far",
        "402 of 600 rounds, 25 s so far, about 40 s left",
    ]

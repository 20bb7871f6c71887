"""What differs between two runs: configuration, environment, and results tested over the seeds that both have."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.cli import compare as comparing
from fedstale.core import BadInput
from fedstale.lab import schema as configuration
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import metrics, pairing, query, store
from fedstale.registry import TABLES
from tests.cli.commands import fedstale

QUADRATIC: dict[str, Any] = {
    "name": "try",
    "rounds": 20,
    "seeds": [1, 2, 3],
    "data": {"dataset": "quadratic", "clients": 6, "dimension": 4, "noise": 0.1},
    "local": {"lr": 0.05},
    "participation": {"kind": "two-groups", "p_min": 0.3},
    "algorithms": ["fedavg", {"kind": "fedstale", "beta": 0.5}],
}


def compute(folder: Path, **changes: Any) -> Path:
    chosen = configuration.check(QUADRATIC | changes)
    for _ in execute(chosen, plan(chosen, store.open_store(folder))):
        pass
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compute(tmp_path_factory.mktemp("compare") / "runs")


def pairs(a: object, b: object) -> list[pairing.Pair]:
    names = (str(a), str(b))
    return pairing.matched(pairing.sides(names[0]), pairing.sides(names[1]), names)


def metric(found: dict[str, Any], name: str, which: str = "last10") -> dict[str, Any]:
    return next(m for m in found["metrics"] if (m["name"], m["which"]) == (name, which))


def test_two_algorithms_of_one_folder(runs: Path) -> None:
    (pair,) = pairs(f"{runs}:fedavg", f"{runs}:fedstale beta=0.5")
    rows = {row["key"]: (row["a"], row["b"]) for row in comparing.differing([pair])}
    assert rows["label"] == ("fedavg", "fedstale beta=0.5")
    assert rows["strategy.kind"] == ("fedavg", "fedstale")
    assert rows["strategy.beta"] == (None, 0.5)
    assert not any(key.startswith(("data", "participation", "local", "seed")) for key in rows)
    found = comparing.result(pair)
    assert found["common_seeds"] == [1, 2, 3]
    assert found["identical_seeds"] == []


def test_the_difference_is_paired_over_the_seeds(runs: Path) -> None:
    (pair,) = pairs(f"{runs}:fedavg", f"{runs}:fedstale beta=0.5")
    found = metric(comparing.result(pair), "objective")
    by_seed = [
        {
            r.config()["seed"]: r.result()["objective"]["last10"]
            for r in store.runs(runs)
            if r.path.name.startswith(n)
        }
        for n in ("fedavg", "fedstale")
    ]
    difference = np.array([by_seed[1][s] - by_seed[0][s] for s in (1, 2, 3)])
    assert found["difference"] == pytest.approx(difference.mean())
    half = 2.919986 * difference.std(ddof=1) / math.sqrt(3)  # Student, 95 %, 2 degrees of freedom
    assert found["interval"] == pytest.approx([difference.mean() - half, difference.mean() + half])


def pair_of(a: dict[int, float], b: dict[int, float], name: str = "accuracy") -> pairing.Pair:
    """Two made-up groups with one value a seed."""

    def side(values: dict[int, float]) -> pairing.Side:
        found = [
            query.Run(store.RunFolder(Path("x")), {"seed": s}, {name: {"last10": v, "final": v}})
            for s, v in values.items()
        ]
        return pairing.Side(query.Setting({}, []), query.Group("g", found, []))

    return pairing.Pair(side(a), side(b))


@pytest.mark.parametrize(
    ("name", "b", "verdict"),
    [
        ("accuracy", {1: 0.90, 2: 0.91, 3: 0.92}, "B is better"),
        ("accuracy", {1: 0.70, 2: 0.71, 3: 0.72}, "A is better"),
        ("objective", {1: 0.70, 2: 0.71, 3: 0.72}, "B is better"),  # less is better
        ("accuracy", {1: 0.70, 2: 0.95, 3: 0.80}, "cannot be told from chance"),
        ("accuracy", {1: 0.80, 2: 0.81, 3: 0.83}, "equal"),
        ("accuracy", {1: 0.90}, "not tested: one common seed alone proves nothing"),
        ("accuracy", {7: 0.90, 8: 0.9}, "not tested: no seed in common"),
    ],
)
def test_verdicts(name: str, b: dict[int, float], verdict: str) -> None:
    found = comparing.result(pair_of({1: 0.80, 2: 0.81, 3: 0.83}, b, name))
    assert metric(found, name)["verdict"] == verdict


@pytest.mark.parametrize("name", ["fedstale beta=0.5", "FedStale BETA=0.5", "fedstale", "FedStale"])
def test_an_algorithm_is_named_by_its_label_or_its_kind_in_any_case(runs: Path, name: str) -> None:
    assert [side.group.label for side in pairing.sides(f"{runs}:{name}")] == ["fedstale beta=0.5"]


def test_a_wrapped_rule_is_shown_in_words_and_its_key_stays(file: Path, tmp_path: Path) -> None:
    stored = "extrapolated strategy={'kind': 'fedstale', 'beta': 0.3}"
    shown = "extrapolated strategy=fedstale(beta=0.3)"
    wrapped = '{ kind = "extrapolated", strategy = { kind = "fedstale", beta = 0.3 } }'
    folder, changes = tmp_path / "runs", ("-c", f"algorithms=[{wrapped}]", "-c", "rounds=2", "--seeds", "1")
    done = fedstale("run", file, *changes, "--out", folder)
    assert f"{shown}, seed 1: " in done.stderr
    assert shown in done.stdout
    (path,) = folder.glob("extrapolated-strategy-kind-fedstale-beta-0.3-s1-*/config.json")
    assert json.loads(path.read_text())["label"] == stored
    for name in (shown, stored, "extrapolated"):
        assert [side.group.label for side in pairing.sides(f"{folder}:{name}")] == [shown]
    listed = fedstale("list", "runs", "-o", folder, "--format", "json").stdout
    assert [row["algorithm"] for row in json.loads(listed)["runs"]] == [shown]


def test_a_kind_that_several_algorithms_have_is_refused(tmp_path: Path) -> None:
    two = [{"kind": "fedstale", "beta": b} for b in (0.2, 0.5)]
    folder = compute(
        tmp_path / "runs", algorithms=[*two, {"kind": "fedavg", "label": "FedStale"}], rounds=2, seeds=[1]
    )
    with pytest.raises(BadInput, match=r"could be FedStale or fedstale beta=0\.2 or fedstale beta=0\.5"):
        pairing.sides(f"{folder}:fedstale")
    assert [side.group.label for side in pairing.sides(f"{folder}:FedStale")] == ["FedStale"]  # a label comes first


def test_a_new_metric_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    recall = metrics.Metric("recall", "recall of rare classes", higher_is_better=True, percent=True)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, recall))
    found = comparing.result(pair_of({1: 0.80, 2: 0.81, 3: 0.83}, {1: 0.90, 2: 0.91, 3: 0.92}, "recall"))
    assert metric(found, "recall")["verdict"] == "B is better"


def test_two_experiments_are_paired_by_label(runs: Path, tmp_path: Path) -> None:
    other = compute(tmp_path / "runs", local={"lr": 0.1}, seeds=[2, 3, 4])
    found = pairs(runs, other)
    assert [(p.a.group.label, p.b.group.label) for p in found] == [(n, n) for n in ("fedavg", "fedstale beta=0.5")]
    assert comparing.differing(found) == [{"key": "local.lr", "a": 0.05, "b": 0.1}]
    assert comparing.result(found[0])["common_seeds"] == [2, 3]


def test_one_algorithm_is_compared_setting_by_setting(tmp_path: Path) -> None:
    for p_min in (0.2, 0.4):
        compute(tmp_path / "runs", participation={"kind": "two-groups", "p_min": p_min}, rounds=3)
    found = pairs(f"{tmp_path}/runs:fedavg", f"{tmp_path}/runs:fedstale beta=0.5")
    assert [p.a.config["participation"] == p.b.config["participation"] for p in found] == [True, True]
    rows = comparing.differing([p._replace(b=found[1 - k].b) for k, p in enumerate(found)])  # crosswise
    assert {"key": "participation.p_min", "a": "2 values", "b": "2 values"} in rows


def test_the_same_run_twice(runs: Path) -> None:
    one = store.runs(runs)[0].path
    found = pairs(one, one)
    assert comparing.differing(found) == []
    assert comparing.machines(found) == []
    assert comparing.result(found[0])["identical_seeds"] == [1]


def test_what_cannot_be_paired_is_said(runs: Path, tmp_path: Path) -> None:
    other = compute(tmp_path / "runs", algorithms=["mifa", "fedvarp"], rounds=2, seeds=[1])
    with pytest.raises(
        BadInput, match=r"name one algorithm of each as FOLDER:NAME; A has fedavg, .*; B has fedvarp"
    ):
        pairs(runs, other)
    (tmp_path / "phones-trace.csv").write_text("")
    with pytest.raises(BadInput, match="has no runs to compare"):
        pairing.sides(str(tmp_path / "phones-trace.csv"))
    for run in store.runs(other):
        for name in ("result.json", "checksums.json"):  # as if it had been stopped
            (run.path / name).unlink()
    with pytest.raises(BadInput, match="has no finished run"):
        pairing.sides(str(other))


def test_the_command_prints_tables_and_json(runs: Path) -> None:
    there = runs.parent
    words = ("compare", "runs:fedavg", "runs:fedstale beta=0.5")
    done = fedstale(*words, cwd=there)
    assert done.returncode == 0, done.stderr
    for part in ("what differs in the configuration", "strategy.kind", "3 seeds in common", "paired t-test"):
        assert part in done.stdout
    found = json.loads(fedstale(*words, "--format", "json", cwd=there).stdout)
    assert list(found) == ["a", "b", "configuration", "environment", "results"]
    assert {m["name"] for m in found["results"][0]["metrics"]} == {"objective", "distance"}
    name = store.runs(runs)[0].path.name  # of the folder `runs`, as in `fedstale show`
    assert "the configuration is the same" in fedstale("compare", name, name, cwd=there).stdout


@pytest.mark.parametrize(
    ("a", "sentence"),
    [
        ("runs:fedagv", "the label in runs 'fedagv' is unknown; did you mean 'fedavg'?"),
        ("nowhere", "nowhere must be a folder of `fedstale run`, `reproduce` or `inspect`, but it is not there"),
    ],
)
def test_nonsense_gives_one_sentence(runs: Path, a: str, sentence: str) -> None:
    done = fedstale("compare", a, "runs", cwd=runs.parent)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_the_command_loads_leaves_no_traceback(tmp_path: Path) -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "fedstale.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from fedstale.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert (done.returncode, done.stderr) == (130, "")


def test_what_is_filled_from_the_data_is_not_listed_as_required() -> None:
    told = {name: settings for name, settings, _ in TABLES["participation"].rows()}
    assert told["label-tied"].startswith("labels = (from the data), ")
    assert told["exits"].startswith("exits = (from the data), p = (from the data)")

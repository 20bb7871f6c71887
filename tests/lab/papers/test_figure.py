"""From a figure's table to cells, runs, tuned rates and rows."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab import executors
from fedstale.lab import plan as sweep
from fedstale.lab.papers import claims, figure, rates
from fedstale.lab.plan import plan
from fedstale.lab.runs import store
from fedstale.lab.spec import put

RAW: dict[str, Any] = {
    "rounds": 12,
    "seeds": [1, 2],
    "evaluate_every": 4,
    "algorithms": [{"kind": "fedstale", "beta": 0.5, "label": "half"}, "unbiased"],
    "data": {"dataset": "quadratic", "clients": 4, "dimension": 3},
    "local": {"lr": 0.1, "steps": 2},
    "participation": {"kind": "two-groups", "p_min": 0.5},
    "grid": {"participation.p_min": [0.5, 0.25], "data.noise": [0.0, 0.1]},
    "tune": {"lr": [0.1, 0.01], "server.lr": [1.0, 0.5]},
    "figure": {"title": "a title", "paper": "fedstale", "draw": "lines"},
    "scale": {"smoke": {"reduced": "much"}, "laptop": {"reduced": "some"}, "paper": {}},
}


def example(scale: str = "smoke", **changes: Any) -> figure.Figure:
    raw = copy.deepcopy(RAW)
    for key, value in changes.items():
        put(raw, key.replace("__", "."), value)
    return figure.at_scale("try", raw, scale)


def run(found: list[figure.Cell], folder: Path, jobs: int = 1) -> list[figure.Cell]:
    planned = sweep.planned(found, store.open_store(folder))
    executors.compute(planned, jobs=jobs, resume=True, command="", say=lambda line: None)
    return planned


def test_a_run_that_two_cells_share_is_computed_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, *_ = sweep.planned(figure.cells(example()), store.open_store(tmp_path))
    both, asked = other._replace(runs=[*other.runs, one.runs[0]]), list[sweep.Cell]()
    monkeypatch.setattr(executors, "_in_processes", lambda todo, jobs, work: asked.extend(todo))
    executors.compute([one, both, one], jobs=2, resume=False, command="", say=lambda line: None)
    assert [list(cell.runs) for cell in asked] == [list(one.runs), list(other.runs)]


def test_every_combination_is_a_cell_with_every_algorithm_at_every_rate() -> None:
    found = figure.cells(example())
    assert [c.point for c in found] == [
        {"participation.p_min": p, "data.noise": n} for p in (0.5, 0.25) for n in (0.0, 0.1)
    ]
    assert found[2].experiment.participation == {"kind": "two-groups", "p_min": 0.25}
    assert found[1].experiment.data["noise"] == 0.1
    entries = found[0].experiment.algorithms
    assert [e["label"] for e in entries][:3] == [
        "half lr=0.1 server.lr=1",
        "half lr=0.1 server.lr=0.5",
        "half lr=0.01 server.lr=1",
    ]  # type: ignore[index]
    assert entries[1] == {"kind": "fedstale", "beta": 0.5, "label": "half lr=0.1 server.lr=0.5",
                          "lr": 0.1, "server": {"kind": "sgd", "lr": 0.5}}  # fmt: skip
    assert [c.tuned for c in found[0].choices[:4]] == [c.tuned for c in found[0].choices[4:]], "one list for all"
    assert sweep.cost(found) == (4 * 8 * 2, 4 * 8 * 2 * 12)


def test_a_scale_changes_settings_grid_tuning_and_panels() -> None:
    change = {"reduced": "much", "data.clients": 6, "algorithms.0.beta": 0.2, "grid": {"data.noise": [0.3]},
              "tune": {"lr": [1.0]}, "without": ["b"], "panel": {"a": {"data.dimension": 2}},
              "figure": {"at": [7]}}  # fmt: skip
    made = example(panel={"a": {"data.spread": 2.0}, "b": {}}, scale__smoke=change)
    found = figure.cells(made)
    assert (made.reduced, made.about["at"]) == ("much", [7])
    assert {c.panel for c in found} == {"a"}
    assert [c.point["data.noise"] for c in found] == [0.3, 0.3]
    data = found[0].experiment.data
    assert (data["clients"], data["spread"], data["dimension"]) == (6, 2.0, 2)
    assert found[0].choices[0].settings == {"beta": 0.2}
    assert {c.tuned["lr"] for c in found[0].choices} == {1.0}
    assert len(figure.cells(example("paper", panel={"a": {}, "b": {}}))) == 8, "other scales are as they were"


def test_a_panel_has_its_own_rates_and_keys_can_be_tied() -> None:
    found = figure.cells(
        example(panel={"a": {"tune": {"lr": [0.5]}}, "b": {}}, grid={"data.noise, data.spread": [0.5, 2.0]})
    )
    assert [len(c.choices) for c in found] == [4, 4, 8, 8]
    assert [(c.experiment.data["noise"], c.experiment.data["spread"]) for c in found[:2]] == [
        (0.5, 0.5),
        (2.0, 2.0),
    ]
    assert rates.place(found[1]) == {"panel": "a", "noise": 2.0}
    drawn = figure.cells(example(grid={"data.seed": [7]}))[0]
    assert rates.place(drawn) == {"data.seed": 7}, "the seed of a run is another column"


def test_variants_are_compared_as_algorithms_are(tmp_path: Path) -> None:
    variants = {"calm": {"data.noise": 0.0}, "noisy": {"data.noise": 0.5, "local.lr": 0.05}}
    made = example(grid={"participation.p_min": [0.5, 0.25]}, tune={}, algorithms=["unbiased"], variant=variants)
    found = figure.cells(made)
    assert [(c.point["participation.p_min"], c.choices[0].algorithm) for c in found] == [
        (0.5, "calm"), (0.25, "calm"), (0.5, "noisy"), (0.25, "noisy"),
    ]  # fmt: skip
    assert [(c.experiment.data["noise"], c.experiment.local.lr) for c in found[::2]] == [(0.0, 0.1), (0.5, 0.05)]
    rows, _ = rates.rows(run(found, tmp_path / "runs"), made.about.get("at", []))
    claim = {"text": "noise hurts", "check": "above", "first": "calm", "second": "noisy", "lower": True,
             "metric": "distance_last10"}  # fmt: skip
    (told,) = claims.judge([claim], rows)
    assert told.holds + told.noise + told.fails == 2, "a case for each point of the grid"
    with pytest.raises(BadInput, match="variants are of one algorithm"):
        figure.cells(example(variant=variants))


def test_rows_tell_what_was_believed_and_who_was_left_out(tmp_path: Path) -> None:
    chain = {"kind": "clustered-markov", "clusters": 2, "availability": 0.5, "eigenvalue": 0.3}
    learnt = {w: {"kind": "transitions", "warmup_rounds": w} for w in (10, 5000)}
    entries = [
        {"kind": "ca-fed", "kappa2": 0.0, "optimum": 0.0, "estimator": estimator, "label": f"w{w}"}
        for w, estimator in learnt.items()
    ]
    made = example(grid={}, tune={}, participation=chain, algorithms=[*entries, "unbiased"])
    found = figure.cells(made)
    rows, _ = rates.rows(run(found, tmp_path / "runs"), [])
    few, _, many, _, plain, _ = (row.values for row in rows)
    assert few["probs_error"] > many["probs_error"] < 0.05
    assert few["mixing_error"] > many["mixing_error"] < 0.05
    assert "probs_error" not in plain
    assert plain["left_out_0"] == 0
    lines = rows[2].run.metrics()
    idle = sum(c >= 2 for line in lines for c in line.get("not_selected", []))
    heard = sum(c >= 2 for line in lines for c in line["heard"])
    assert many["left_out_1"] == pytest.approx(idle / (idle + heard), abs=1e-4)
    excluded = sum(c >= 2 for line in lines for c in line["excluded"])  # of two clients, present or not
    assert many["excluded_1"] == pytest.approx(excluded / (2 * len(lines)), abs=1e-4)
    assert excluded > idle
    assert many["included_mean"] == pytest.approx(np.mean([len(line["heard"]) for line in lines]), abs=1e-4)
    assert many["available_mean"] > many["included_mean"]
    assert "included_mean" not in plain, "a rule that does not select"
    assert idle > 0


def test_visits_set_the_rounds_by_the_rarest_client() -> None:
    raw = {key: value for key, value in copy.deepcopy(RAW).items() if key != "rounds"} | {"visits": 10}
    raw["grid"] = {"participation.p_min": [0.5, 0.05, 0.002]}
    found = figure.cells(figure.at_scale("try", raw, "smoke"))
    assert [c.experiment.rounds for c in found] == [20, 200, 5000]
    del raw["visits"]
    with pytest.raises(BadInput, match="`rounds` or `visits`"):
        figure.cells(figure.at_scale("try", raw, "smoke"))


def test_mistakes_are_told() -> None:
    with pytest.raises(BadInput, match="scale 'smok' is unknown; did you mean 'smoke'"):
        example("smok")
    with pytest.raises(BadInput, match="must say in `reduced`"):
        example("laptop", scale__laptop={"rounds": 3})
    with pytest.raises(BadInput, match=r"figure\.title is missing"):
        example(figure={"paper": "thesis", "draw": "over"})
    with pytest.raises(BadInput, match="did you mean 'claims'"):
        example(figure__claim=[])
    with pytest.raises(BadInput, match="'rownds' is unknown; did you mean 'rounds'"):
        figure.cells(example(rownds=3))
    with pytest.raises(BadInput, match="there is no figure file"):
        figure.read("nowhere.toml", "smoke")


def pretend(cell: figure.Cell, objective: dict[str, float], accuracy: dict[str, float]) -> None:
    """Finished runs with these training objectives and these test accuracies."""
    for p in cell.runs:
        p.folder.path.mkdir(parents=True, exist_ok=True)
        last = {"objective": objective[p.algorithm.label] + 0.001 * p.seed, "accuracy": accuracy[p.algorithm.label]}
        (p.folder.path / "metrics.jsonl").write_text(json.dumps({"round": 1} | last) + "\n")
        result = {name: {"final": value, "last10": value, "best": value} for name, value in last.items()}
        store.write_json(p.folder.path / "result.json", {"rounds": 1} | result)


def test_the_choice_of_rates_never_looks_at_the_test_set(tmp_path: Path) -> None:
    made = example(grid={}, tune={"lr": [0.1, 0.01]})
    cell = figure.cells(made)[0]
    labels = [c.label for c in cell.choices]
    objective = dict(zip(labels, [0.4, 0.3, 0.1, 0.2], strict=True))
    for name, accuracy in (("fair", [0.6, 0.7, 0.9, 0.8]), ("poisoned", [0.99, 0.0, 0.0, 0.99])):
        (planned,) = sweep.planned([cell], tmp_path / name)
        pretend(planned, objective, dict(zip(labels, accuracy, strict=True)))
        rows, tuning = rates.rows([planned], [])
        assert {(r.algorithm, r.tuned["lr"]) for r in rows} == {("half", 0.01), ("unbiased", 0.1)}
        assert [t["chosen"] for t in tuning] == [False, True, True, False]
        assert "accuracy_last10" in rows[0].values
        assert not [key for key in tuning[0] if "accuracy" in key]
    assert tuning[0]["training_objective"] == pytest.approx(0.4015), "the mean over seeds"


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_a_rate_that_diverges_is_not_chosen_and_not_tried_again(tmp_path: Path) -> None:
    made = example(grid={}, tune={"lr": [1e9, 0.01]})
    found = figure.cells(made)
    planned = run(found, tmp_path / "runs")
    assert not executors.waiting(planned[0])
    rows, tuning = rates.rows(planned, [])
    assert {row.tuned["lr"] for row in rows} == {0.01}
    assert [t["training_objective"] for t in tuning if t["lr"] > 1] == [float("inf")] * 2
    only = figure.cells(example(grid={}, tune={"lr": [1e9]}))
    planned = sweep.planned(only, tmp_path / "runs")
    lost, _ = rates.rows(planned, [])
    assert [row.diverged for row in lost] == [True] * 4
    file = planned[0].runs[0].folder.path / "diverged.json"
    file.write_text(file.read_text().replace('"code": "', '"code": "older '))
    assert executors.waiting(planned[0]) == [planned[0].runs[0]]  # other code tries again
    before = file.stat().st_mtime_ns
    executors.compute(planned, jobs=1, resume=False, command="", say=lambda line: None, again=True)
    assert file.stat().st_mtime_ns > before
    assert not executors.waiting(planned[0])


def test_rows_are_what_the_runs_hold(tmp_path: Path) -> None:
    made = example(figure__at=[8, 10], grid={"participation.p_min": [0.5]}, tune={})
    found = figure.cells(made)
    rows, _ = rates.rows(run(found, tmp_path / "runs"), made.about.get("at", []))
    assert [(r.algorithm, r.seed) for r in rows] == [
        ("half", 1),
        ("half", 2),
        ("unbiased", 1),
        ("unbiased", 2),
    ]
    lines = rows[1].run.metrics()
    distance = {line["round"]: line["distance"] for line in lines if "distance" in line}
    assert rows[1].place["p_min"] == 0.5
    assert rows[1].settings["beta"] == 0.5
    assert rows[1].values["distance_final"] == pytest.approx(distance[12])
    assert rows[1].values["distance_at_8"] == pytest.approx(distance[8])
    assert rows[1].values["distance_at"] == pytest.approx((distance[8] + distance[10]) / 2)
    assert rows[1].values["distance_last10"] == pytest.approx(sum(distance[t] for t in range(3, 13)) / 10)
    curves = [c for c in rates.curves(rows) if (c["metric"], c["algorithm"]) == ("distance", "half")]
    assert [c["round"] for c in curves] == list(distance)
    assert float(curves[-1]["mean"]) == pytest.approx(
        (rows[0].values["distance_final"] + rows[1].values["distance_final"]) / 2, rel=1e-4
    )


def test_what_is_there_is_reused_and_two_processes_give_the_same(tmp_path: Path) -> None:
    made = example(grid={"participation.p_min": [0.5, 0.25]}, tune={})
    found = figure.cells(made)
    run(found[:1], tmp_path / "one")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "one").glob("*/result.json")}
    run(found, tmp_path / "one")
    assert len(before) == 4
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())
    one, two = run(found, tmp_path / "one"), run(found, tmp_path / "two", jobs=2)
    assert [r.columns() for r in rates.rows(one, [])[0]] == [r.columns() for r in rates.rows(two, [])[0]]


def test_a_run_says_what_was_tuned_and_its_key_does_not_depend_on_it(tmp_path: Path) -> None:
    (cell,) = sweep.planned(figure.cells(example(grid={}, tune={"lr": [0.1], "server.lr": [0.5]})), tmp_path)
    assert cell.runs[0].config["tuned"] == {"algorithm": "half", "settings": {"lr": 0.1, "server.lr": 0.5}}
    again = plan(cell.experiment, tmp_path)
    assert [p.folder for p in again] == [p.folder for p in cell.runs]
    (plain,) = sweep.planned(figure.cells(example(grid={}, tune={})), tmp_path)
    assert "tuned" not in plain.runs[0].config


def write(tmp_path: Path, raw: dict[str, Any] = RAW) -> str:
    """A TOML file of a figure."""
    lines = [f"{key} = {toml(value)}" for key, value in raw.items()]
    (tmp_path / "try.toml").write_text("\n".join(lines))
    return str(tmp_path / "try.toml")


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def test_overrides_change_every_cell(tmp_path: Path) -> None:
    file = write(tmp_path)
    changed = figure.read(file, "smoke", ["rounds=7", "seeds=[5]", "tune={lr=[0.2]}"])
    found = figure.cells(changed)
    assert {(c.experiment.rounds, *c.experiment.seeds) for c in found} == {(7, 5)}
    assert {c.tuned["lr"] for cell in found for c in cell.choices} == {0.2}
    assert changed.changed
    assert changed.reduced == "rounds=7, seeds=[5], tune={lr=[0.2]}; much", "and the picture says so"
    assert not figure.read(file, "smoke").changed


@pytest.mark.parametrize("change", ["algorithms=[]", "figure.title=other", "scale.smoke.rounds=3"])
def test_what_a_figure_is_about_cannot_be_overridden(change: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="of a figure cannot be overridden"):
        figure.read(write(tmp_path), "smoke", [change])


@pytest.mark.parametrize(
    ("change", "table"),
    [("data.noise=1", "grid"), ("local.lr=1", "tune"), ("server.lr=1", "tune"), ("data.spread=1", "panel.a")],
)
def test_what_the_figure_varies_itself_cannot_be_overridden(change: str, table: str, tmp_path: Path) -> None:
    file = write(tmp_path, RAW | {"panel": {"a": {"data.spread": 2.0}}})
    with pytest.raises(BadInput, match=rf"is varied by \[{table}\] of try"):
        figure.read(file, "smoke", [change])

"""Questions to the store: what a run is, how far it got, who took part; damaged runs are named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.lab.runs import query, store
from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED

CONFIG: dict[str, Any] = {
    "label": "FedAvg",
    "seed": 3,
    "rounds": 5,
    "engine": "serial",
    "local": {"lr": 0.1},
    "data": {"clients": 4},
    "strategy": {"kind": "fedavg"},
}
RESULT = {"rounds": 5, "accuracy": {"final": 0.92, "last10": 0.9, "best": 0.95}}


def made(path: Path, lines: str = '{"round":1}\n', **files: Any) -> store.RunFolder:
    path.mkdir()
    for name, value in files.items():
        store.write_json(path / f"{name}.json", value)
    (path / "metrics.jsonl").write_text(lines)
    return store.RunFolder(path)


def test_a_row_has_numbers_and_the_main_metric(tmp_path: Path) -> None:
    assert query.run_row(made(tmp_path / "run", config=CONFIG, result=RESULT)) == {
        "name": "run", "algorithm": "FedAvg", "seed": 3, "lr": 0.1, "engine": "serial", "state": "finished",
        "round": 5, "rounds": 5, "metric": "accuracy", "final": 0.92, "hours": None, "megabytes": None,
    }  # fmt: skip
    begun = query.run_row(made(tmp_path / "begun", config=CONFIG))
    assert (begun["state"], begun["round"], begun["metric"], begun["final"]) == ("interrupted", 1, None, None)


@pytest.mark.parametrize(
    ("file", "text", "state"),
    [
        ("config.json", "{", "damaged: "),
        ("result.json", "{", "damaged: "),
        ("result.json", '{"rounds": 5, "accuracy": {}}', "damaged: "),
        ("result.json", '{"rounds": 5, "accuracy": 3}', "damaged: "),
        ("result.json", '{"round": 5}', "damaged: result.json is damaged: its rounds"),
        ("metrics.jsonl", "{oops\n", "damaged: "),
    ],
)
def test_a_damaged_run_has_a_row_that_says_so(tmp_path: Path, file: str, text: str, state: str) -> None:
    files = {"config": CONFIG} | ({"result": RESULT} if file == "config.json" else {})
    folder = made(tmp_path / "run", **files)
    (folder.path / file).write_text(text)
    row = query.run_row(folder)
    assert row["state"].startswith(state)
    assert row["name"] == "run"
    assert list(row) == list(query.run_row(made(tmp_path / "good", config=CONFIG, result=RESULT)))


def test_presence_has_every_client() -> None:
    lines = [{"heard": [0], "not_selected": [2]}, {"heard": [], "lost": [1]}]
    assert query.presence({"data": {"clients": 4}}, lines).tolist() == [
        [HEARD, AWAY], [AWAY, LOST], [NOT_SELECTED, AWAY], [AWAY, AWAY],
    ]  # fmt: skip
    assert query.clients({"data": {"clients": 2}}, [*lines, {"weights": [0.1] * 6}]) == 6  # (node, exit) pairs
    assert query.clients({}, lines) == 3  # what was seen


def test_a_curve_is_of_the_rounds_that_every_seed_has() -> None:
    seeds = [
        [{"round": 1, "x": 1.0}, {"round": 2}, {"round": 3, "x": 3.0}],
        [{"round": 1, "x": 5.0}, {"round": 2, "x": 9.0}, {"round": 3, "x": 7.0}],
    ]
    rounds, values = query.curve(seeds, "x")
    assert (rounds, values.tolist()) == ([1, 3], [[1.0, 3.0], [5.0, 7.0]])
    assert query.curve(seeds, "y")[0] == query.curve([], "x")[0] == []


def test_of_two_engines_the_finished_run_of_a_seed_counts(tmp_path: Path) -> None:
    done = made(tmp_path / "a", config=CONFIG, result=RESULT)
    half = made(tmp_path / "b", config=CONFIG | {"engine": "batched"})
    for order in ([done, half], [half, done]):
        (setting,) = query.settings(order)
        (group,) = setting.groups
        assert [r.folder for r in group.runs] == [done]
        assert group.broken == []
        assert "engine" not in setting.config


def test_algorithms_of_one_name_are_told_apart_by_their_settings_or_a_number(tmp_path: Path) -> None:
    settings = ({"lr": 0.1}, {"lr": 0.1, "steps": 2}, {"lr": 0.2})
    runs = [made(tmp_path / f"{k}", config=CONFIG | {"local": of}, result=RESULT) for k, of in enumerate(settings)]
    (found,) = query.settings(runs)
    labels = ["FedAvg (local.lr 0.1, no. 1)", "FedAvg (local.lr 0.1, no. 2)", "FedAvg (local.lr 0.2)"]
    assert [g.label for g in found.groups] == labels


def test_the_training_objective_of_a_group_without_a_result_is_infinite() -> None:
    results = [{"objective": {"last10": 1.0}}, {"objective": {"last10": 3.0}}]
    assert query.tuning_score(results) == 2.0
    assert query.tuning_score([*results, None]) == np.inf
    assert query.tuning_score([{"accuracy": {"last10": 1.0}}]) == np.inf
    assert query.tuning_score([{"objective": {"last10": np.nan}}]) == np.inf


def test_a_client_is_mute_if_it_is_asked_again_and_again_and_never_answers() -> None:
    def line(asked: list[int], absent: list[int]) -> query.Line:
        return {"asked": asked, "absent": absent}

    silent = [line([2], [2]), line([0, 1, 2], [1]), line([0, 1], [1]), line([0, 2], [2]), line([0, 1, 2], [1, 2])]
    assert query.mute(silent) == [1]  # client 2 was silent twice since it answered
    assert query.mute([*silent, line([1, 2], [2])]) == [2]
    assert query.mute(silent[1:2] * 2) == query.mute([]) == []


def test_a_damaged_model_is_named_by_all_that_compares_runs(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", config=CONFIG)
    folder.save_params(np.zeros(3, np.float32))
    folder.save_result(RESULT)
    assert len(query.settings([folder])) == 1  # without a warning, which would be an error here
    np.save(folder.path / "params.npy", np.ones(3, np.float32))
    with pytest.warns(UserWarning, match=r"params\.npy is damaged"):
        assert len(query.settings([folder])) == 1


def test_settings_are_readable() -> None:
    spec = {"kind": "sampling", "size": 100, "base": {"kind": "bernoulli", "p": 0.1}, "seed": None}
    assert query.in_words(spec) == "sampling(size=100, base=bernoulli(p=0.1))"
    assert query.in_words({"kind": "known"}) == "known"
    assert query.in_words({"lr": 0.1, "steps": 5}) == "lr=0.1, steps=5"
    assert query.in_words([0.5] * 24) == "[0.5, 0.5, 0.5, … 24 values]"
    assert query.in_words([True, "a", None]) == "[true, a, none]"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("fedstale beta=0.5", "fedstale beta=0.5"),
        ("clipped strategy={'kind': 'fedavg'}, norm=2.0", "clipped strategy=fedavg, norm=2.0"),
        (
            "extrapolated strategy={'kind': 'clipped', 'strategy': {'kind': 'fedstale', 'beta': 0.3}}, most=8",
            "extrapolated strategy=clipped(strategy=fedstale(beta=0.3)), most=8",
        ),
        ("of={'kind': 'a'} and={'kind': 'b'}", "of=a and=b"),
        *((own, own) for own in ("β {1}", "{}", "}{", "{'kind': fedavg}", "{" * 300 + "}" * 300)),
    ],
)
def test_a_label_with_tables_is_shown_in_words(label: str, words: str) -> None:
    assert query.label_in_words(label) == words

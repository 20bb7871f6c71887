"""Every key of an experiment is checked before any work."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import registry as recipes
from fedstale.core import BadInput, Local
from fedstale.core.schedules import Cosine, UniformSteps
from fedstale.lab import build as catalogue
from fedstale.lab.plan import algorithm, plan
from fedstale.lab.schema import SUCH_AS, Experiment, check, read
from fedstale.lab.spec import algorithm as parts_of
from fedstale.lab.spec import build, describe, describe_local, make, settings_in

BASE: dict[str, Any] = {
    "name": "t",
    "rounds": 5,
    "data": {"dataset": "quadratic"},
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.2},
    "algorithms": ["fedavg"],
}


@pytest.mark.parametrize("name", sorted(recipes.RECIPES))
def test_every_recipe_can_be_described_and_built_again(name: str) -> None:
    strategy = recipes.recipe(name).strategy
    assert build(describe(strategy, recipes.STRATEGIES), recipes.STRATEGIES, "x") == strategy


@pytest.mark.parametrize("path", [Path("experiments/demo.toml"), Path("experiments/quadratic.toml")], ids=str)
def test_the_experiments_that_ship_are_valid(path: Path, tmp_path: Path) -> None:
    assert plan(read(path), tmp_path)


def test_arrays_are_named_by_content() -> None:
    a, b = np.random.default_rng(0).random((2, 100))
    first, second, again = (describe(fs.Bernoulli(p), recipes.PARTICIPATION) for p in (a, b, a.copy()))
    assert first == again != second
    assert "sha256" in first["p"]


def test_a_list_that_came_later_is_described_where_it_is_given() -> None:
    given, left_out = (fs.strategies.Amplified(2, 3.0, q=q) for q in ([0.5, 0.25], None))
    assert describe(given, recipes.STRATEGIES) == describe(left_out, recipes.STRATEGIES) | {"q": [0.5, 0.25]}
    assert [*settings_in(given)] == ["period", "factor", "q"]


def test_the_entry_wins_over_the_recipe_and_the_recipe_over_the_file() -> None:
    e = check(BASE | {"estimator": {"kind": "intervals", "cutoff": 7}})
    assert algorithm("fedavg", e, "a").estimator == fs.Intervals(7)
    assert algorithm("fedau", e, "a").estimator == fs.Intervals(50)
    assert algorithm({"kind": "fedau", "estimator": "known"}, e, "a").estimator == fs.estimators.Known()
    assert algorithm({"kind": "fedvarp", "beta": 0.3}, e, "a").strategy == fs.FedStale(0.3)
    assert algorithm({"kind": "mifa", "lr": 0.7}, e, "a").local.lr == 0.7
    assert algorithm({"kind": "mifa", "server": {"kind": "adam", "lr": 0.5}}, e, "a").server == fs.servers.Adam(
        lr=0.5
    )


def test_overrides_reach_into_names_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        'rounds = 3\nalgorithms = ["fedavg", "fedstale"]\nparticipation = "two-groups"\n'
        '[data]\ndataset = "quadratic"\n[local]\nlr = 0.1\n'
    )
    e = read(path, ["participation.p_min=0.4", "algorithms.1.beta=0.9", "local.steps=2", "name=other"])
    assert e.participation == {"kind": "two-groups", "p_min": 0.4}
    assert e.algorithms[1] == {"kind": "fedstale", "beta": 0.9}
    assert (e.local.steps, e.name) == (2, "other")  # type: ignore[attr-defined]


def test_a_model_may_be_a_bare_name() -> None:
    raw: dict[str, Any] = {"name": "e", "rounds": 1, "algorithms": ["fedavg"], "participation": "two-groups"}
    raw |= {"data": {"dataset": "digits"}, "local": {"lr": 0.1}}
    named, table = (check(raw | {"model": model}).model for model in ("mlp", {"kind": "mlp"}))
    assert named == table


TABLE = {"csv": str(Path(__file__).parents[2] / "tools" / "patients.csv"), "client": "site", "label": "ill"}
REFUSED = [
    ({"participation": 3}, "^participation must be a name or a table with `kind`, got 3"),
    ({"data": {"dataset": "digits", "held_out": 2}}, "^data.held_out must be below 1 or a list, got 2"),
    ({"algorithms": []}, "algorithms"),
    ({"algorithms": ["fedavg", "fedavg"]}, "label of its own"),
    ({"algorithms": [{"beta": 0.5}]}, "algorithms.0.kind is missing"),
    ({"algorithms": [{"kind": "fedstale", "bta": 0.5}]}, "did you mean 'beta'"),
    ({"algorithms": [{"kind": "fedstale", "beta": "much"}]}, "must be a number"),
    ({"algorithms": [{"kind": "auto", "gain": True}]}, "gain must be a number"),
    (
        {"algorithms": [{"kind": "fedstale", "beta": "auto"}]},
        'fixed beta; the rule that learns it is kind "auto"',
    ),
    ({"participation": {"p_min": 0.2}}, "participation.kind is missing"),
    ({"participation": {"kind": "two-groups"}}, "needs p_min"),
    (
        {"participation": {"kind": "sampling", "size": 2}},
        'needs base; everybody is base = { kind = "bernoulli", p = 1.0',
    ),
    ({"local": {}}, "local.lr is missing"),
    ({"local": {"lr": 0.1, "rounds": 3}}, "local setting 'rounds' is unknown"),
    ({"warmup": {"lr": 0.1, "rounds": 3, "stepps": 3}}, "warmup setting 'stepps' is unknown; did you mean 'steps'"),
    ({"data": {}}, "data.dataset is missing"),
    (
        {"data": {"dataset": "digits", "fractoin": 0.5}},
        "the key in data 'fractoin' is unknown; did you mean 'fraction'",
    ),
    (
        {"data": {"dataset": "digits", "cis": {"threshold": 0.5}}},
        "the key in data.cis 'threshold' is unknown; did you mean 'thresholds'",
    ),
    ({"data": {"dataset": "digits", "partition": {"kind": "dirichlet", "alpha": -1.0}}}, "alpha"),
    ({"name": "../up"}, "name"),
    ({"estimator": {"kind": "known", "bogus": 1}, "algorithms": ["fedau"]}, "estimator setting 'bogus' is unknown"),
    ({"algorithms": [{"kind": "fedavg", "label": 5}]}, "algorithms.0.label must be a text, got 5"),
    ({"engine": "batchd"}, "did you mean 'batched'"),
    ({"local": {"lr": 0.1, "decay": float("inf")}}, "local: decay must be at least 0 and finite, got inf"),
    ({"participation": {"kind": "bernoulli", "p": True}}, "p must be a number or an array of numbers, got true"),
    ({"participation": {"kind": "bernoulli", "p": [0.5, True]}}, "p must be a number or an array of numbers"),
    ({"data": {"dataset": "digits", "fraction": "0.5"}}, "data.fraction must be a number, got '0.5'"),
    ({"algorithms": [{"kind": "fedavg", "server": 5}]}, "server must be a name or a table with `kind`, got 5"),
    ({"channel": {"kind": "loss", "up": "much"}}, "up must be a number or an array of numbers, got 'much'"),
    ({"channel": {"kind": "loss", "up": 0.1, "retries": 2**63}}, "retries must be a whole number"),
    (
        {"estimator": {"kind": "transitions", "prior": "x"}},
        "prior must be a number or an array of numbers, got 'x'",
    ),
    ({"participation": {"kind": "sampling", "size": 2, "base": [1]}}, "base must be a name or a table with `kind`"),
    ({"participation": {"kind": "events", "events": 5}}, "must be a list of events or a file of them, got 5"),
    ({"algorithms": [{"kind": "mifa", "memory": {"kind": "int8", "folder": "a\0b"}}]}, "folder must be a text"),
    ({"rounds": True}, "rounds"),
    ({"server": {"kind": "sgd", "lr": 0.0}}, "lr must be above 0"),
    ({"tune_by": "accuracy"}, "tune_by needs settings to choose, .tune., got none"),
    ({"monitor": "distance"}, "monitor needs patience or target, got neither"),
    (
        {"data": {"dataset": "quadratic"}, "model": {"kind": "mlp"}},
        "model must be left out with quadratic functions",
    ),
    ({"data": {"dataset": "quadratic", "start": [1.0]}}, "data.start must be left out without data.centers"),
    (
        {"data": {"dataset": "quadratic", "clients": 1, "centers": [[1.0]], "spread": 2.0}},
        "data.spread .* with data.c",
    ),
    ({"data": TABLE | {"clients": 0}}, "data.clients must be at least 1, got 0"),
    ({"data": TABLE | {"clients": 4}}, "data.clients is read from patients.csv, which has 3: leave it out, got 4"),
    ({"data": TABLE | {"dataset": "digits"}}, "data.dataset is read from patients.csv"),
    ({"data": TABLE | {"sha256": "word"}}, "data.sha256 is read from patients.csv"),
    ({"data": TABLE | {"csv": "é" * 300}}, "cannot be read: .*File name too long|there is no file"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_what_cannot_be_used_is_refused_before_any_work(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence) as caught:
        plan(check(BASE | change), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", sorted(Experiment.model_fields))
def test_a_value_of_another_type_is_told_what_the_key_takes_in_our_words(key: str) -> None:
    for value in ("fast", 3, -2.5, True, ["a"], {"a": 1}, float("nan")):
        try:
            check(BASE | {key: value})
        except BadInput as error:
            sentence = str(error)
            assert sentence.startswith(key), sentence
            assert not re.search(r"\n|Input|valid|instance|dictionary|should", sentence), sentence


@pytest.mark.parametrize(("key", "example"), SUCH_AS.items())
def test_the_example_of_a_table_or_list_is_one(key: str, example: str) -> None:
    with pytest.raises(BadInput, match=f"{key} must be a (table|list), such as {re.escape(example)}, got true"):
        check(BASE | {key: True})
    check(BASE | {"data": {"dataset": "digits"}} | {key: tomllib.loads(f"x = {example}")["x"]})


def test_a_recording_is_looked_for_in_the_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "who.csv").write_text("1,0,1\n1,1,0\n")
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path))
    spec = {"kind": "sampling", "size": 1, "base": {"kind": "trace", "matrix": "traces/who.csv"}}
    assert catalogue.make_participation(spec, {}).probs(3).sum() == pytest.approx(1)
    with pytest.raises(BadInput, match=r"nobody\.csv"):
        catalogue.make_participation({"kind": "trace", "matrix": "nobody.csv"}, {})


def test_a_word_that_a_numeric_setting_knows_is_taken() -> None:
    entry = {"kind": "ca-fed", "kappa2": 1.0, "estimator": "known"}
    chosen = algorithm(entry | {"optimum": "local"}, check(BASE), "algorithms.0")
    assert chosen.strategy.optimum == "local"  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="optimum must be a number, an array of numbers or 'local', got 'lokal'"):
        algorithm(entry | {"optimum": "lokal"}, check(BASE), "algorithms.0")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"clients": 2, "centers": [[1.0], [1.0, 2.0]]},
            r"data.centers must be rows of equal length, got .*\[1, 2\]",
        ),
        ({"clients": 3, "centers": [[1.0], [2.0]]}, "data.centers must be one for each of 3 clients, got 2"),
        ({"clients": 10**15}, "data.clients must be at most 10000000, got 1000000000000000"),
        ({"clients": 10**7, "dimension": 10**7}, "data.clients · data.dimension must be at most 1e9 numbers"),
        ({"clients": 2, "centers": [[1.0], [float("nan")]]}, "data.centers.1.0 must be a finite number, got nan"),
    ],
)
def test_a_task_that_cannot_be_made_is_told_in_a_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        catalogue.make_task(check(BASE | {"data": {"dataset": "quadratic", **data}}).data, {})


@pytest.mark.filterwarnings("ignore:.*clients have")
def test_a_division_that_leaves_clients_empty_says_what_to_do() -> None:
    data = {"dataset": "digits", "clients": 100, "partition": {"kind": "dirichlet", "alpha": 0.05}}
    sentence = (
        r"leaves 16 of 100 clients without .*: take a larger alpha, fewer clients, its min_samples or data.drop"
    )
    with pytest.raises(BadInput, match=sentence):
        catalogue.divide(check(BASE | {"data": data}).data)


def test_an_entry_replaces_the_amount_of_work_and_the_optimizer_of_the_file() -> None:
    """Also with what belongs to them: drop_last to epochs, momentum to the optimizer."""
    local = {"lr": 0.1, "epochs": 2, "drop_last": True, "momentum": 0.9, "weight_decay": 5e-4}
    for own, due in (
        ({}, Local(0.1, epochs=2, drop_last=True, momentum=0.9, weight_decay=5e-4)),
        ({"steps": 3}, Local(0.1, steps=3, momentum=0.9, weight_decay=5e-4)),
        ({"optimizer": "adam"}, Local(0.1, epochs=2, drop_last=True, optimizer="adam", weight_decay=5e-4)),
        (
            {"work": {"kind": "uniform", "low": 1, "high": 4}, "schedule": {"kind": "cosine", "rounds": 9}},
            Local(0.1, work=UniformSteps(1, 4), schedule=Cosine(9), momentum=0.9, weight_decay=5e-4),
        ),
    ):
        made = parts_of({"kind": "fedavg", **own}, "algorithms.0", local=local, estimator="known").local
        assert made == due
        assert make(Local, describe_local(made), "local") == made


def test_a_setting_that_came_later_is_in_a_key_only_where_it_is_set() -> None:
    assert describe(fs.Sgd(0.5), recipes.SERVERS) == {"kind": "sgd", "lr": 0.5}
    told = describe(fs.servers.Projection(2.0, fs.Sgd(1.0, weight_decay=0.1)), recipes.SERVERS)
    assert told["base"] == {"kind": "sgd", "lr": 1.0, "weight_decay": 0.1}
    assert build(told, recipes.SERVERS, "server") == fs.servers.Projection(2.0, fs.Sgd(1.0, weight_decay=0.1))


def test_new_settings_of_local_training_are_in_a_key_only_where_they_are_set() -> None:
    assert describe_local(Local(0.1)) == {"lr": 0.1, "steps": 5, "batch": 32, "decay": 0.0, "prox": 0.0}
    assert describe_local(Local(0.1, momentum=0.9))["momentum"] == 0.9

"""`fedstale advise`: numbers that can be worked out by hand, advice that follows from them, an honest ranking."""

import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedstale.cli.advise import advise
from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.lab import schema as configuration
from fedstale.lab.advise import rules, text, trial
from fedstale.lab.advise.evidence import of_probs, of_run, of_table
from fedstale.lab.advise.lessons import FEATURES, Lesson, features
from fedstale.lab.advise.measures import cycle, independent_weights, measure
from fedstale.lab.execute import execute
from fedstale.lab.plan import algorithm, plan
from fedstale.lab.runs import store
from fedstale.participation import Cyclic, Markov
from fedstale.participation.estimators import Intervals

app = typer.Typer()
app.command()(advise)

QUADRATIC = """
rounds = 30
algorithms = ["fedavg"]
data = { dataset = "quadratic", clients = 6, dimension = 4, noise = 0.1 }
local = { lr = 0.05, steps = 2 }
participation = { kind = "two-groups", p_min = 0.2 }
"""


@pytest.fixture
def quadratic(tmp_path: Path) -> Path:
    path = tmp_path / "quadratic.toml"
    path.write_text(QUADRATIC)
    return path


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def found(*words: object) -> dict[str, Any]:
    text = told(*words, "--format", "json")
    return dict(json.loads(text[text.index("{") :]))  # the runner mixes in what goes to stderr


def enumerated(p: list[float], a: list[float]) -> Any:
    """FedAvg's mean weights over every set of clients that may be there."""
    total, chance = np.zeros(len(p)), 0.0
    for here in itertools.product((0, 1), repeat=len(p)):
        here_weights = np.multiply(a, here)
        if here_weights.sum() > 0:
            likely = np.prod([q if x else 1 - q for q, x in zip(p, here, strict=True)])
            total, chance = total + likely * here_weights / here_weights.sum(), chance + likely
    return total / chance


def test_the_numbers_of_three_probabilities_by_hand() -> None:
    m = found("--probs", "1,0.5,0.1")["measures"]
    # who is there beside client 0: nobody .45, 1 .45, 2 .05, both .05
    b = [0.45 + 0.45 / 2 + 0.05 / 2 + 0.05 / 3, 0.45 / 2 + 0.05 / 3, 0.05 / 2 + 0.05 / 3]
    assert m["realised"] == pytest.approx(b)
    assert m["bias"] == pytest.approx(b[0] - 1 / 3)
    assert (m["gains"]["client"], m["loses"]["client"]) == (0, 2)
    assert m["loses"]["value"] == pytest.approx(1 / 3 - b[2])
    assert m["inflation"] == pytest.approx((0 + 1 + 9) / 3)
    assert m["noisiest"] == pytest.approx({"client": 2, "value": 0.9, "alike": 0})
    assert m["gap"] == pytest.approx((1 + 2 + 10) / 3)
    assert (m["least_rounds"], m["enough_rounds"]) == (pytest.approx(10), pytest.approx(100))
    assert m["rarest"] == pytest.approx({"client": 2, "value": 0.1, "alike": 0})
    assert m["mixing"] == 0
    assert m["memory"] is None


def test_people_read_the_same_numbers() -> None:
    text = told("--probs", "1,0.5,0.1")
    for part in (
        "Use ",
        "1/p_var = 3.33",
        "client 2: 90 % of it",
        "33.3 % → 71.7 %",
        "at least 10",
        "100 for 10",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.05, 1)), min_size=1, max_size=5))
def test_the_weights_of_plain_averaging_are_exact(clients: list[tuple[float, float]]) -> None:
    p, a = [q for q, _ in clients], [w / sum(w for _, w in clients) for _, w in clients]
    assert independent_weights(p, a) == pytest.approx(enumerated(p, a), abs=1e-9)


def test_a_trace_is_measured_not_assumed(tmp_path: Path) -> None:
    here = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]])  # client 3 never
    np.savetxt(tmp_path / "who.csv", here, fmt="%d", delimiter=",")
    (tmp_path / "cells.csv").write_text(
        f"cell,{','.join(FEATURES)},auto\na,0,0,0,0,0,0,2,0\n"
    )  # auto is all it knows
    answer = found(tmp_path / "who.csv", "--arena", tmp_path / "cells.csv")
    m = answer["measures"]
    assert (m["rounds"], m["clients"], m["never"], m["lost"]) == (4, 4, [3], 0.25)
    b = np.array([0.5 + 1 + 0.5 + 0.5, 0.5 + 0.5, 0.5, 0]) / 4
    assert m["realised"] == pytest.approx(b)
    assert m["bias"] == pytest.approx(b[0] - 1 / 3)  # of the three who come
    assert m["gap"] == pytest.approx((1 + 2 + 4) / 3)
    assert m["absence"] == {"client": 1, "value": 2.0, "alike": 1}
    assert any("1 client (3) never came" in sentence for sentence in answer["advice"]["warnings"])
    assert "beta-bernoulli" in answer["advice"]["entry"]["estimator"]["kind"]  # a recording is not known ahead


def test_clients_are_called_by_the_names_in_the_header(tmp_path: Path) -> None:
    (tmp_path / "who.csv").write_text("round,north,south,harbour\n1,1,0,0\n2,1,1,0\n3,1,0,0\n")
    text = told(tmp_path / "who.csv")
    assert "loses most: south" in text
    assert "1 client (harbour) never came" in text
    (tmp_path / "plain.csv").write_text("1,0,0\n1,1,0\n")
    with pytest.warns(UserWarning, match="^the trace is read as 2 rounds of 3 clients"):
        assert "client 1" in told(tmp_path / "plain.csv")
    (tmp_path / "pandas.csv").write_text(",0,1\n0,1,0\n1,1,1\n")
    assert "client 1" in told(tmp_path / "pandas.csv")


def test_clients_first_and_weights(tmp_path: Path) -> None:
    np.save(tmp_path / "who.npy", np.array([[1, 1, 1], [0, 1, 0]]))
    noisiest = found("--probs", "0.5,0.5", "--weights", "1,3")["measures"]["noisiest"]
    assert noisiest == pytest.approx({"client": 1, "value": 0.9, "alike": 0})  # a_i² (1 - p_i) / p_i
    m = found(tmp_path / "who.npy", "--clients-first", "--weights", "1,3")["measures"]
    assert m["wanted"] == [0.25, 0.75]
    assert m["realised"] == pytest.approx([(1 + 0.25 + 1) / 3, 0.25])


def test_probabilities_from_files(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("0.5\n1\n")
    (tmp_path / "p.csv").write_text("client,share\n0,0.5\n1,1\n")
    np.save(tmp_path / "p.npy", [0.5, 1.0])
    answers = [found("--probs", tmp_path / name)["measures"] for name in ("p.txt", "p.csv", "p.npy")]
    assert answers[0]["realised"] == pytest.approx([0.25, 0.75])
    assert answers[0] == answers[1] == answers[2]


def test_an_experiment_has_a_task(quadratic: Path) -> None:
    m = found(quadratic)["measures"]
    assert m["memory"] == {"float32": 6 * 4 * 4, "float16": 6 * 4 * 2, "int8": 6 * 4}
    assert m["planned"] == 30
    assert m["inflation"] == pytest.approx(0.5 * 4)
    assert m["rarest"] == pytest.approx({"client": 3, "value": 0.2, "alike": 2}, abs=1e-6)
    assert "30 rounds see the rarest client 6.0 times" in " ".join(found(quadratic)["advice"]["warnings"])


def test_an_experiment_that_comes_with_the_package_is_named() -> None:
    assert found("quadratic")["source"].startswith("quadratic, participation ")


def test_a_trace_with_the_task_of_an_experiment(quadratic: Path, tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((50, 6)) < np.linspace(0.1, 1, 6)
    np.save(tmp_path / "who.npy", table)
    m = found(tmp_path / "who.npy", "--experiment", quadratic)["measures"]
    assert m["memory"]["int8"] == 24
    assert m["rarest"]["value"] == pytest.approx(table.mean(axis=0).min())


def test_advice_goes_into_an_experiment(quadratic: Path) -> None:
    for words in (["--probs", "1,0.5,0.1"], ["--probs", "0.3,0.3"], [str(quadratic)]):
        lines = [line.strip() for line in told(*words).splitlines() if "algorithms" in line]
        entry = tomllib.loads(lines[0])["algorithms"][0]
        assert entry == found(*words)["advice"]["entry"]
        raw = tomllib.loads(QUADRATIC) | {"name": "x", "algorithms": [entry]}
        algorithm(entry, configuration.check(raw), "algorithms.0")


def test_who_always_comes_needs_no_evidence() -> None:
    assert rules.advise(measure(of_probs(np.ones(3), None)), known=True).entry == {"kind": "fedavg"}


def rows(process: Any, n: int, rounds: int) -> Any:
    return np.array([*itertools.islice(process.rows(n, stream(1, "participation")), rounds)])


def test_turns_are_found_and_chains_are_not() -> None:
    turns = rows(Cyclic(groups=4, on=5, off=15), 8, 200)
    assert cycle(turns) == 20
    chains = rows(Markov(0.3, 0.9), 40, 1000)
    assert cycle(chains) is None
    m = measure(of_table("chains", chains, None))
    assert m.mixing == pytest.approx(0.9, abs=0.03)
    assert m.effective_share == pytest.approx((1 - m.mixing) / (1 + m.mixing))


def test_lossy_links(quadratic: Path) -> None:
    words = (
        quadratic,
        "-c",
        "participation.p_min=1.0",
        "-c",
        'channel={ kind = "loss", up = [0, 0, 0, 0.9, 0.9, 0.9] }',
    )
    answer = found(*words)
    assert answer["advice"]["entry"] == {"kind": "upga-pl"}
    assert answer["measures"]["inflation"] == pytest.approx(0.5 * 9)
    both = found(*words, "-c", "participation.p_min=0.1")  # rarely there as well: not only the links
    assert both["advice"]["rule"] == "as in the arena"
    assert both["measures"]["rarest"]["value"] == pytest.approx(0.01, abs=1e-6)


def test_memory_that_does_not_fit_is_written_smaller() -> None:
    m = measure(of_probs(np.array([1, 0.1]), None)._replace(d=10**9))
    assert rules.memory(m) == {"kind": "float16"}
    assert rules.memory(measure(of_probs(np.array([1, 0.1]), None)._replace(d=10**10))) == {
        "kind": "int8",
        "folder": "memory",
    }
    lesson = Lesson("only", np.zeros(len(FEATURES)), {"auto": 0.0})
    lines = list(text.entry(rules.advise(m, False, [lesson]).entry))
    assert max(map(len, lines)) <= 100
    assert tomllib.loads("\n".join(lines))["algorithms"][0]["memory"] == {"kind": "float16"}


def played(quadratic: Path, out: Path, rounds: int, kind: str) -> store.RunFolder:
    e = configuration.read(quadratic, [f'algorithms=["{kind}"]', f"rounds={rounds}"])
    planned = plan(e, store.open_store(out))
    for done in execute(e, planned):
        if done.t == 20 and rounds > 20:
            break  # as if killed
    return planned[0].folder


def test_a_run_says_who_came(quadratic: Path, tmp_path: Path) -> None:
    folder = played(quadratic, tmp_path / "runs", 20, "fedau")
    answer = found(folder.path)
    heard = [line["heard"] for line in folder.metrics()]
    shares = np.array([sum(i in row for row in heard) for i in range(6)]) / 20
    m = answer["measures"]
    assert m["rarest"]["value"] == pytest.approx(shares[shares > 0].min())
    assert (m["rounds"], m["planned"], m["memory"]["float32"]) == (20, 20, 96)
    assert m["misjudged"] is not None  # FedAU has an opinion
    assert "finished" in answer["source"]


def test_a_killed_run_says_how_far_it_got(quadratic: Path, tmp_path: Path) -> None:
    folder = played(quadratic, tmp_path / "runs", 5000, "fedavg")
    lines = len(folder.metrics())
    assert 0 < lines <= 20
    assert f"{lines} of 5000 rounds so far" in told(folder.path)


def test_the_estimators_belief_is_replayed(quadratic: Path, tmp_path: Path) -> None:
    folder = played(quadratic, tmp_path / "runs", 20, "fedau")
    e = of_run(folder, None)
    belief = Intervals().init(6)
    for line in folder.metrics():
        belief = Intervals().observe(belief, np.isin(np.arange(6), line["heard"]))
    assert e.believed == pytest.approx(Intervals().probs(belief))


def test_the_shortlist_is_tried_and_ranked(quadratic: Path, tmp_path: Path) -> None:
    words = (quadratic, "--simulate", "--rounds", 12, "--seeds", "1,2,3")
    first = found(*words, "--out", tmp_path / "a")["simulation"]
    again = found(*words, "--out", tmp_path / "b")["simulation"]
    assert first == again
    assert first == found(*words, "--out", tmp_path / "a")["simulation"]  # nothing is computed twice
    names = [row["rule"] for row in first["ranking"]]
    assert {*trial.SHORTLIST} <= {*names}
    objectives = [row["objective"] for row in first["ranking"]]
    assert objectives == sorted(objectives)
    assert [row["place"] for row in first["ranking"]] == sorted(row["place"] for row in first["ranking"])
    assert (first["engine"], first["rounds"]) == ("auto", 12)
    assert "not 10" in first["cautions"][0]
    text = told(*words, "--out", tmp_path / "a")
    assert f"{first['advised']}*" in text
    best = first["ranking"][0]
    assert f" {best['objective']:.4g} ± {best['objective_std']:.1g} " in text
    assert first["verdict"] in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_recording_is_replayed_in_the_simulation(quadratic: Path, tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((10, 6)) < 0.6
    np.save(tmp_path / "who.npy", table)
    found(
        tmp_path / "who.npy",
        "--experiment",
        quadratic,
        "--simulate",
        "--rounds",
        10,
        "--seeds",
        1,
        "-o",
        tmp_path / "r",
    )
    for run in store.runs(tmp_path / "r"):
        assert [line["heard"] for line in run.metrics()] == [np.flatnonzero(row).tolist() for row in table]
        assert run.config()["estimator"]["kind"] in ("beta-bernoulli", "intervals", "transitions")


def scores(*objectives: float) -> list[dict[str, float]]:
    return [{"objective": x} if np.isfinite(x) else {} for x in objectives]


def test_equal_places_cannot_be_told_apart() -> None:
    table = {"noisy": scores(0.5, 2.2, 0.9), "best": scores(1.0, 1.1, 1.2), "worse": scores(1.3, 1.4, 1.5),
             "lost": scores(1, np.inf, 1)}  # fmt: skip
    ranked = trial.ranking(table)
    assert [(row["rule"], row["place"]) for row in ranked] == [("best", 1), ("noisy", 1), ("worse", 3), ("lost", 4)]
    assert ranked[2]["behind"] == pytest.approx(1.4 / 1.1 - 1)
    assert ranked[3] == {"place": 4, "rule": "lost", "diverged": 1, "behind": None}
    assert trial.verdict(ranked, "noisy", 3, False) == "noisy is among the 2 best, which cannot be told apart."
    assert "worse is 27.3 % behind best: take best" in trial.verdict(ranked, "worse", 3, False)
    assert "add rounds" in trial.verdict(ranked, "worse", 3, True)
    assert "lost diverged: take best" in trial.verdict(ranked, "lost", 3, False)


def test_one_seed_proves_nothing() -> None:
    ranked = trial.ranking({"a": scores(1), "b": scores(9)})
    assert [row["place"] for row in ranked] == [1, 1]
    assert "add seeds" in trial.verdict(ranked, "a", 1, False)
    assert "smaller learning rate" in trial.verdict(trial.ranking({"a": scores(np.inf, np.inf)}), "a", 2, False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "advise needs a trace"),
        ("--probs 0,0.5", r"probs must be in \(0, 1\], got 0 for client 0"),
        ("--probs 0.5,1.5", r"got 1.5 for client 1"),
        ("--probs nan", "got nan for client 0"),
        ("--probs ,", "one chance per client, got none"),
        ("--probs missing.txt", "there is no file missing.txt"),
        ("--probs 1,0.5 --weights 1", "weights must be 2 numbers"),
        ("--probs 1,0.5 --simulate", "--simulate needs an experiment"),
        ("--probs 1,0.5 who.csv", "not both"),
        ("--probs 1,0.5 --experiment quadratic.toml", "of 2 clients, the experiment of 6"),
        ("missing.csv", "there is no file or folder missing.csv"),
        ("missing.toml", "there is no experiment file missing.toml"),
        ("empty.csv", "has no rounds in it"),
        ("nobody.csv", "2 rounds with nobody there"),
        ("bare.toml", "participation is missing"),
        ("folder", "it has no config.json"),
        ("quadratic.toml --simulate --seeds x", "seeds must be whole numbers"),
        ("quadratic.toml --simulate --seeds 1,1", "seeds must differ"),
        ("quadratic.toml --simulate --rounds 0", "rounds must be at least 1"),
        ("quadratic.toml -c participation.p_min=2", "p_min must be"),
        ("quadratic.toml -c participation={kind='bernoulli',p=0.0}", "nobody with a weight ever comes"),
    ],
)
def test_nonsense_gets_a_sentence(
    words: str, sentence: str, quadratic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "nobody.csv").write_text("0,0\n0,0\n")
    (tmp_path / "who.csv").write_text("0,1\n1,0\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bare.toml").write_text(
        "\n".join(line for line in QUADRATIC.splitlines() if "participation" not in line)
    )
    with pytest.raises(BadInput, match=sentence):
        CliRunner().invoke(app, words.split(), catch_exceptions=False)


def test_a_store_is_not_a_run(tmp_path: Path, quadratic: Path) -> None:
    folder = played(quadratic, tmp_path / "runs", 2, "fedavg")
    with pytest.raises(BadInput, match=f"is a folder of runs: name one of them, such as .*{folder.path.name}"):
        CliRunner().invoke(app, [str(tmp_path / "runs")], catch_exceptions=False)


def test_a_short_recording_is_not_taken_for_uneven() -> None:
    here = np.random.default_rng(1).random((60, 20)) < 0.3
    m = measure(of_table("short", here, None))
    assert 0.02 < m.bias < 1.5 * m.chance
    assert features(m, True)[0] == 0
    drawn = [measure(of_table("", np.random.default_rng(k).random((400, 50)) < 0.3, None)) for k in range(20)]
    assert np.mean([m.bias for m in drawn]) == pytest.approx(np.mean([m.chance for m in drawn]), rel=0.2)


def test_sampling_of_equals_is_even(quadratic: Path) -> None:
    answer = found(
        quadratic, "-c", 'participation={ kind = "sampling", size = 2, base = { kind = "bernoulli", p = 0.5 } }'
    )
    assert answer["measures"]["bias"] < 0.02
    assert answer["measures"]["rounds"] is None  # drawn, not recorded

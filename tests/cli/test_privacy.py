"""`fedstale privacy`: an ε becomes noise, from a file, a participation process, or a bound on visits."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedstale.cli.privacy import privacy
from fedstale.privacy.gaussian import mu_of

app = typer.Typer()
app.command()(privacy)


def told(*words: str, ok: bool = True) -> str:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code == 0) == ok, result.output
    return " ".join(result.output.split()) + str(result.exception or "")


def noises(*words: str) -> list[float]:
    return [row["noise"] for row in json.loads(told(*words, "--format", "json"))["rules"]]


def test_a_file_or_a_process_becomes_noise(tmp_path: Path) -> None:
    table = np.ones((20, 4), int)
    table[10:, 2:] = 0
    np.savetxt(tmp_path / "here.csv", table, "%d", delimiter=",", header="a,b,c,d", comments="")
    unbiased = noises(str(tmp_path / "here.csv"), "--epsilon", "4")[1]
    assert unbiased == pytest.approx(np.sqrt(10 * 0.5**2) / mu_of(4, 1e-5))  # ten visits at a_i / p_i = 0.5
    groups = ("two-groups", "--clients", "40", "--rounds", "50", "-c", "p_min=0.1", "--epsilon")
    assert np.divide(noises(*groups, "2"), noises(*groups, "8")) == pytest.approx(mu_of(8, 1e-5) / mu_of(2, 1e-5))


def test_a_bound_on_visits_is_the_dearest_client_in_closed_form() -> None:
    n, T, K, c = 10, 30, 6, 0.5
    bound = ("--visits", "6", "--clients", "10", "--rounds", "30", "--max-weight", "0.5", "--epsilon", "4")
    a = 1 / n
    squares = [
        K * c**2,  # FedAvg, whose denominator is p
        K * c**2,
        c**2 + (K - 1) * (2 * c - a) ** 2 + (T - K) * a**2,
        (0.2 * c) ** 2 + (K - 1) * (0.2 * c + a) ** 2 + (T - K) * a**2,
    ]
    assert noises(*bound) == pytest.approx(np.sqrt(squares) / mu_of(4, 1e-5), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--epsilon 4", "privacy needs a file, a participation process, or visits, got none of them"),
        ("two-groups --epsilon 4", "two-groups needs --clients, at least 1, got none"),
        ("two-groups --clients 3 --epsilon 4", "two-groups needs --rounds, at least 1, got none"),
        ("--visits 9 --clients 3 --rounds 8 --max-weight 1 --epsilon 4", "visits must be from 1 to the rounds, 8"),
        ("--visits 2 --clients 3 --rounds 8 --epsilon 4", "visits need max_weight"),
        ("--visits 2 --clients 3 --rounds 8 --max-weight 0.1 --epsilon 4", "max_weight must be at least"),
        ("x.csv --visits 2 --epsilon 4", "leave out x.csv, or visits"),
        ("nothing.csv --epsilon 4", "there is no trace file nothing.csv"),
        ("bernoulli --clients 3 --rounds 8 -c p=0.5 --epsilon -1", "epsilon must be above 0 and finite"),
        ("bernoulli --clients 3 --rounds 8 -c p=0.5 --epsilon 1 --delta 1", "delta must be above 0 and below 1"),
        ("bernoulli --clients 3 --rounds 8 -c p=0.5 --epsilon 1 --clip 0", "clip must be above 0 and finite"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words: str, sentence: str) -> None:
    assert sentence in told(*words.split(), ok=False)

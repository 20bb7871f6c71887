"""What rules cost, counted by hand."""

import pytest

from fedstale.core import Local
from fedstale.lab.arena.cell_record import server_ms, units
from fedstale.lab.build import make_task
from fedstale.lab.schema import check
from fedstale.lab.spec import algorithm
from fedstale.registry import RECIPES
from fedstale.tasks.flops import sample_flops
from fedstale.tasks.quadratic import Quadratic

LOCAL = {"lr": 0.1, "steps": 3, "batch": 4}


def of(kind: str, n: int = 5, d: int = 7) -> dict[str, float]:
    return units(algorithm(kind, "rule", local=LOCAL, estimator="known"), Quadratic.random(n, d))


@pytest.mark.parametrize(
    ("kind", "server", "client", "down", "asked"),
    [
        ("fedavg", 0, 0, 28, 0),
        ("scaffold", 8 * 7, 4 * 7, 2 * 28, 0),
        ("fedawe", 0, 4 * 7 + 8, 28, 0),
        ("focus", 8 * 7, 4 * 7, 2 * 28, 0),
        ("power-of-choice", 0, 0, 0, 28),
    ],
)
def test_state_and_messages(kind: str, server: int, client: int, down: int, asked: int) -> None:
    found = of(kind)
    assert (found["server_bytes"], found["client_bytes"]) == (server, client)
    assert (found["up"], found["down"], found["asked"]) == (28, down, asked)
    assert found["flops"] is None


def test_a_rule_whose_absent_clients_train_says_so() -> None:
    assert [of(kind)["unheard"] for kind in ("fedpbc", "fedawe")] == [True, False]


def test_a_memory_of_updates_is_at_the_server() -> None:
    assert of("mifa")["server_bytes"] >= 4 * 5 * 7
    assert of("mifa")["client_bytes"] == 0


@pytest.mark.parametrize("kind", RECIPES)
def test_the_time_of_the_server_is_measured_for_every_rule(kind: str) -> None:
    rule = algorithm(kind, "rule", local=LOCAL, estimator="known")
    assert server_ms(rule, Quadratic.random(12, 7), 11) > 0


@pytest.mark.parametrize("kind", ["fedavg", "ca-fed"])
def test_operations_of_a_linear_model(kind: str) -> None:
    """Forward and the gradient of the weights: two products of 64 × 10 numbers, each multiplied and added.

    A client that CA-Fed leaves out has done the first product, once on one batch.
    """
    raw = {"name": "x", "rounds": 1, "data": {"dataset": "digits", "clients": 2}, "local": {"lr": 0.1},
           "participation": {"kind": "bernoulli", "p": 1.0}, "algorithms": ["fedavg"]}  # fmt: skip
    whole = check(raw)
    rule = algorithm(kind, "rule", local=LOCAL, estimator="known")
    assert Local(**LOCAL) == rule.local  # type: ignore[arg-type]
    found = units(rule, make_task(whole.data, whole.model.model_dump()))
    assert found["flops"] == 2 * 2 * 64 * 10 * 3 * 4
    assert found["look"] == (2 * 64 * 10 * 4 if kind == "ca-fed" else 0)


@pytest.mark.parametrize("model", [{"kind": "linear"}, {"kind": "mlp", "hidden": [32, 8]}])
def test_products_of_dense_layers_are_as_many_as_torch_counts(model: dict[str, object]) -> None:
    raw = {"name": "x", "rounds": 1, "data": {"dataset": "digits", "clients": 2}, "local": {"lr": 0.1},
           "model": model, "participation": {"kind": "bernoulli", "p": 1.0}, "algorithms": ["fedavg"]}  # fmt: skip
    whole = check(raw)
    task = make_task(whole.data, whole.model.model_dump())
    known = sample_flops(task)
    task.dense = None  # type: ignore[attr-defined]
    assert known == sample_flops(task)

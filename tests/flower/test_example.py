"""The example's comparison in short; the full version is `python examples/flower-quickstart/compare.py`."""

from pathlib import Path

import numpy as np

from tests.flower.direct import Direct

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"


def test_auto_is_ahead_of_flowers_fedavg_when_half_of_the_clients_come_rarely(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from quickstart import client_app, server_app

    def accuracy(rule, seed):
        result = server_app.train(Direct(10, client_app.app), rule, 35, seed, fraction_evaluate=0.0)
        return np.mean([result.evaluate_metrics_serverapp[t]["accuracy"] for t in range(26, 36)])

    ahead = [accuracy("auto", seed) - accuracy("flower", seed) for seed in (1, 2, 3)]
    print(ahead)
    assert np.mean(ahead) > 0.05


def test_the_example_resumes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from quickstart import client_app, server_app

    def train(rounds, state):
        return server_app.train(
            Direct(10, client_app.app), "auto", rounds, 1, fraction_evaluate=0.0, state=str(state)
        )

    whole = train(4, "").arrays
    train(2, tmp_path / "state")
    rest = train(2, tmp_path / "state").arrays
    assert all(np.array_equal(whole[name].numpy(), rest[name].numpy()) for name in whole)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]

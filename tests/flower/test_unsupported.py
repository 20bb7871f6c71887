"""What cannot be combined with our strategies is refused in a sentence, before any client has worked."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.server import ServerConfig, SimpleClientManager
from flwr.server.server import Server
from flwr.serverapp import strategy as flower

from fedstale.core import BadInput
from fedstale.flower import FedStale, Uneven
from tests.flower.direct import Direct, N, quadratic, start

WRAPPERS = [getattr(flower, name) for name in flower.__all__ if name.startswith("DifferentialPrivacy")]


def wrapped(kind, strategy):
    fixed = {"clipping_norm": 1.0} if "Fixed" in kind.__name__ else {"clipped_count_stddev": 1.0}
    return kind(strategy, noise_multiplier=1.0, num_sampled_clients=N, **fixed)


def idle(message, context):
    raise AssertionError("no client may be asked")


def in_app(*mods, train=None, client_fn=None):
    """Clients that run a ClientApp with these mods, as a SuperNode does: what they raise is an error reply."""
    app = ClientApp(client_fn=client_fn, mods=[*mods])
    if train:
        app.train()(train)

    def answer(message, context):
        try:
            return app(message, context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    return answer


def test_flower_has_the_wrappers_that_are_tested():
    assert len(WRAPPERS) == 4


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("rule", ["auto", "fedavg"])
def test_wrappers_for_differential_privacy_are_refused_at_the_start(kind, rule):
    sentence = rf"^{kind.__name__} accounts for updates that move the model once.*memory.*FedAvg.*LocalDpMod$"
    with pytest.raises(BadInput, match=sentence):
        wrapped(kind, FedStale(rule)).start(Direct(N, idle), start(), num_rounds=2, evaluate_fn=idle)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_are_refused_when_an_app_plays_the_rounds_itself(kind):
    class Own(Uneven):
        """A strategy of a user between the wrapper and ours."""

        def configure_train(self, *settings):
            return super().configure_train(*settings)

    with pytest.raises(BadInput, match="the privacy guarantee would be false"):
        wrapped(kind, Own("auto")).configure_train(1, start(), ConfigRecord(), Direct(N, idle))


def test_a_wrapper_around_another_strategy_and_ours_beside_it_both_train():
    class Other(FedStale):
        """A strategy of a user that holds a wrapped one."""

        def __init__(self):
            super().__init__("auto", fraction_evaluate=0.0)
            self.self = wrapped(WRAPPERS[0], flower.FedAvg())

    assert len(Other().start(Direct(N, quadratic()), start(), num_rounds=1).arrays) == 1


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
def test_mods_that_clip_for_a_wrapper_are_refused_in_the_first_round(mod):
    strategy = FedStale("auto", fraction_evaluate=0.0)
    with pytest.raises(BadInput, match=r"^a mod that clips for differential privacy accounts for updates"):
        strategy.start(Direct(3, in_app(mod, train=idle)), start(), num_rounds=5)


@pytest.mark.parametrize("mod", [LocalDpMod(1.0, 0.001, 1.0, 0.1), arrays_size_mod, message_size_mod])
def test_other_mods_work(mod):
    strategy = FedStale("auto", fraction_evaluate=0.0)
    trained = strategy.start(Direct(N, in_app(mod, train=quadratic())), start(), num_rounds=2)
    assert len(strategy.report.heard) == N
    assert np.isfinite(trained.arrays["w"].numpy()).all()


def test_a_server_of_the_legacy_api_is_refused():
    server = Server(client_manager=SimpleClientManager(), strategy=FedStale("auto"))
    with pytest.raises(
        BadInput, match=r"for Flower's Message API, and this app uses the legacy one.*@app.main\(\)"
    ):
        server.fit(num_rounds=ServerConfig().num_rounds, timeout=None)


def test_clients_of_the_legacy_api_are_refused_in_the_first_round():
    class Client(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    answer = in_app(client_fn=lambda context: Client().to_client())
    with pytest.raises(BadInput, match=r"uses the legacy one .*NumPyClient.*@app.train\(\)"):
        FedStale("auto").start(Direct(3, answer), start(), num_rounds=5)


def test_one_client_that_fails_like_that_does_not_stop_the_others():
    honest = quadratic()

    def answer(message, context):
        return (
            Message(Error(2, "fitins."), reply_to=message) if context.node_id == 1000 else honest(message, context)
        )

    strategy = FedStale("auto", fraction_evaluate=0.0)
    strategy.start(Direct(N, answer), start(), num_rounds=2)
    assert len(strategy.report.heard) == N - 1


def test_trees_are_refused_with_the_strategy_that_merges_them():
    trees = ArrayRecord([np.frombuffer(b'{"learner": {}}', np.uint8)])
    with pytest.raises(BadInput, match="use FedXgbBagging"):
        FedStale("auto").start(Direct(3, idle), trees, num_rounds=1)

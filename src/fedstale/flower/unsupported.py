"""What the strategies of this package cannot be combined with, each with a sentence that names a way out."""

import sys
from collections.abc import Collection

from flwr.serverapp import strategy as flower

from fedstale.core import BadInput

WRAPPERS = (
    flower.DifferentialPrivacyClientSideAdaptiveClipping, flower.DifferentialPrivacyClientSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping, flower.DifferentialPrivacyServerSideFixedClipping,
)  # fmt: skip
PRIVACY = (
    "{found} accounts for updates that move the model once, as in FedAvg, but a rule of fedstale divides an update "
    "by a probability and applies it again in later rounds, from its memory, so that the privacy guarantee would "
    "be false: use Flower's FedAvg there, or let every client add noise of its own, with Flower's LocalDpMod"
)
LEGACY = (
    "a strategy of fedstale is for Flower's Message API, and this app uses the legacy one (server_fn, NumPyClient, "
    "client_fn, start_simulation, flwr.server.strategy): give the ServerApp a function @app.main() that calls "
    "strategy.start(grid, arrays), and the ClientApp functions @app.train() and @app.evaluate()"
)
TELLING = {  # what errors of all clients say → what is wrong with the app
    "fitins.": LEGACY,  # the record that a NumPyClient looks for
    "clippingnorm": PRIVACY.format(found="a mod that clips for differential privacy"),
}


def refuse_privacy_wrapper() -> None:
    """Raise BadInput if a wrapper for differential privacy calls the strategy, at the start or in a round.

    A wrapper says nothing to the strategy that it holds, so it is looked for among the callers.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), WRAPPERS):
            raise BadInput(PRIVACY.format(found=type(caller).__name__))
        frame = frame.f_back


def refuse_app(errors: Collection[str]) -> None:
    """Raise BadInput if these errors, the answers of all clients in a round, tell that the app does not fit."""
    for word, sentence in TELLING.items():
        if errors and all(word in error.replace("_", "") for error in errors):
            raise BadInput(sentence)

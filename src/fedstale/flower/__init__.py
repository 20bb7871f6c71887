"""The public names for Flower: everything that an app of your own imports.

    from fedstale.flower import FedStale                              a strategy for an app that you have
    from fedstale.flower import client_app, of_module, server_app     a federation of `fedstale federation`

Each name is loaded on first use, because it loads flwr or torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers and editors do not see what __getattr__ loads
    from fedstale.clock.pace import Buffer as Buffer
    from fedstale.clock.pace import Ticks as Ticks
    from fedstale.flower.federation.client.app import client_app as client_app
    from fedstale.flower.federation.client.app import task_app as task_app
    from fedstale.flower.federation.server.app import of_module as of_module
    from fedstale.flower.federation.server.app import server_app as server_app
    from fedstale.flower.secure import SecAgg as SecAgg
    from fedstale.flower.secure_mod import SecureMod as SecureMod
    from fedstale.flower.strategy import FedStale as FedStale
    from fedstale.flower.strategy import Uneven as Uneven

HOMES = {
    "Buffer": "fedstale.clock.pace",
    "Ticks": "fedstale.clock.pace",
    "client_app": "fedstale.flower.federation.client.app",
    "task_app": "fedstale.flower.federation.client.app",
    "server_app": "fedstale.flower.federation.server.app",
    "of_module": "fedstale.flower.federation.server.app",
    "FedStale": "fedstale.flower.strategy",
    "SecAgg": "fedstale.flower.secure",
    "SecureMod": "fedstale.flower.secure_mod",
    "Uneven": "fedstale.flower.strategy",
}
GONE = (
    "FedstaleStrategy(folder) is gone: server_app(start) is a ServerApp that plays the federation in a folder, and "
    "FedStale(rule) is a strategy for a ServerApp of your own"
)
__all__ = [
    "Buffer", "FedStale", "SecAgg", "SecureMod", "Ticks", "Uneven", "client_app", "of_module", "server_app",
    "task_app",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name == "FedstaleStrategy":
        raise ImportError(GONE)
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)

"""The public names for Flower: everything that an app of your own imports.

    from fedstale.flower import FedStale                              a strategy for an app that you have
    from fedstale.flower import client_app, of_module, server_app     a federation of `fedstale federation`

Each name is loaded on first use, because it loads flwr or torch.
"""

from typing import TYPE_CHECKING, Any

from fedstale.core.moved import on_first_use

if TYPE_CHECKING:  # type checkers and editors do not see what __getattr__ loads
    from fedstale.flower.federation.client.app import client_app, task_app
    from fedstale.flower.federation.server.app import of_module, server_app
    from fedstale.flower.secure import SecAgg
    from fedstale.flower.secure_mod import SecureMod
    from fedstale.flower.strategy import FedStale, Uneven
    from fedstale.participation.clock.pace import Buffer, Ticks

NAMES = {
    "participation.clock.pace": "Buffer Ticks", "flower.federation.client.app": "client_app task_app",
    "flower.federation.server.app": "of_module server_app", "flower.secure": "SecAgg",
    "flower.secure_mod": "SecureMod", "flower.strategy": "FedStale Uneven",
}  # fmt: skip
HOMES = {name: f"fedstale.{home}" for home, names in NAMES.items() for name in names.split()}
GONE = (
    "FedstaleStrategy(folder) is gone: server_app(start) is a ServerApp that plays the federation in a folder, and "
    "FedStale(rule) is a strategy for a ServerApp of your own"
)
__all__ = [
    "Buffer", "FedStale", "SecAgg", "SecureMod", "Ticks", "Uneven", "client_app", "of_module", "server_app",
    "task_app",
]  # fmt: skip
_load = on_first_use(__name__, {name: f"{home}:{name}" for name, home in HOMES.items()})


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name == "FedstaleStrategy":
        raise ImportError(GONE)
    return _load(name)

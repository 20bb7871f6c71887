"""The public names of a Flower federation: what an app of your own imports.

from fedstale.flower import client_app, server_app
"""

from importlib import import_module
from typing import Any

HOMES = {
    "client_app": "fedstale.federation.client.app",
    "task_app": "fedstale.federation.client.app",
    "server_app": "fedstale.federation.server.app",
    "of_module": "fedstale.federation.server.app",
    "FedstaleStrategy": "fedstale.federation.server.strategy",
}
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    """Each name is loaded on first use, as it loads flwr or torch."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)

"""How local training runs."""

from fedstale.engines.serial import Serial

__all__ = ["Serial"]

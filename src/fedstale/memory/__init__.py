"""The last update of every client, in float32, float16 or int8, in RAM, in a file or on a device of torch."""

from fedstale.memory.memory import KeepsMemory, Memory, latest
from fedstale.memory.rows import AtClients, Coding, Float16, Float32, Int8, OnDevice

__all__ = ["AtClients", "Coding", "Float16", "Float32", "Int8", "KeepsMemory", "Memory", "OnDevice", "latest"]

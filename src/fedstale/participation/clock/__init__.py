"""Time: how long clients take, when the server steps, and the timeline that follows from both."""

from fedstale.participation.clock.clock import Clock
from fedstale.participation.clock.latency import Constant, Devices, Fleet, Latency, Load, Lognormal
from fedstale.participation.clock.pace import Buffer, Pace, Rounds, Rule, Ticks
from fedstale.participation.clock.presence import Change, changes
from fedstale.participation.clock.timeline import Row, timeline

__all__ = [
    "Buffer", "Change", "Clock", "Constant", "Devices", "Fleet", "Latency", "Load", "Lognormal", "Pace", "Rounds",
    "Row", "Rule", "Ticks", "changes", "timeline",
]  # fmt: skip

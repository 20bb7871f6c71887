"""The simulation: the loop that plays rounds, and how a round is closed.

loop    a round from beginning to end, and the functions that play runs
round   its steps: who is asked, and what for; what is received, refused, and how it closes, also in federations
run     the parts and settings of a run, what is checked before round 1, and its first checkpoint
"""

from fedstale.core import bound
from fedstale.simulate.loop import Play, play, simulate, together
from fedstale.simulate.round import Rules, close_round, screen
from fedstale.simulate.run import Diverged, Interrupted, Run, checked, first, require_kind, warmed_up

__all__ = [
    "Diverged", "Interrupted", "Play", "Rules", "Run", "bound", "checked", "close_round", "first", "play",
    "require_kind", "screen", "simulate", "together", "warmed_up",
]  # fmt: skip

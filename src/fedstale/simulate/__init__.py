"""The simulation: the loop that plays rounds, and how a round is closed.

loop     a round from beginning to end, and the functions that play runs
orders   its first half: who is there, who is asked, and what for
round    its second half: what is received, refused, and how the round closes; federations close theirs by it
checks   what is checked before round 1
run      the parts and settings of a run, and its first checkpoint
"""

from fedstale.core import bound
from fedstale.simulate.checks import checked, require_kind, warmed_up
from fedstale.simulate.loop import Play, play, simulate, together
from fedstale.simulate.round import Rules, close_round, screen
from fedstale.simulate.run import Diverged, Interrupted, Run, first

__all__ = [
    "Diverged", "Interrupted", "Play", "Rules", "Run", "bound", "checked", "close_round", "first", "play",
    "require_kind", "screen", "simulate", "together", "warmed_up",
]  # fmt: skip

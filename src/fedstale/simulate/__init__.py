"""The simulation: the loop that plays rounds, and how a round is closed."""

from fedstale.simulate.loop import (
    Diverged,
    Interrupted,
    Play,
    Run,
    bound,
    checked,
    close_round,
    first,
    play,
    require_kind,
    simulate,
    together,
    warmed_up,
)

__all__ = [
    "Diverged", "Interrupted", "Play", "Run", "bound", "checked", "close_round", "first", "play", "require_kind",
    "simulate", "together", "warmed_up",
]  # fmt: skip

"""Clients that lie, and the defence against them."""

from fedstale.defence.judge import Defence, Verdict, Watch
from fedstale.defence.liars import Liars

__all__ = ["Defence", "Liars", "Verdict", "Watch"]

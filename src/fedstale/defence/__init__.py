"""Clients that lie, and the defence against them."""

from fedstale.defence.judge import Defence, Screened, Verdict, Watch, screened
from fedstale.defence.liars import Liars

__all__ = ["Defence", "Liars", "Screened", "Verdict", "Watch", "screened"]

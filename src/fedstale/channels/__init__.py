"""What gets through between the server and the clients.

Luck is drawn by client number, so that who was chosen does not change who is lost. What is lost is sent
again, up to `retries` times and each time with new luck; the state counts the `transmissions` spent.
"""

from fedstale.channels.bursts import GilbertElliott
from fedstale.channels.loss import Loss, Lossless
from fedstale.channels.packets import Packets

__all__ = ["GilbertElliott", "Loss", "Lossless", "Packets"]

"""The words of the package: parts, the records of a round, and what each part must and may be able to do.

A part is a frozen dataclass whose fields are its settings, with pure methods over explicit state.
"""

from fedstale.core import abilities, device_array, hooks, local, parts, protocols, records, rng, split
from fedstale.core.abilities import *  # noqa: F403
from fedstale.core.device_array import *  # noqa: F403
from fedstale.core.hooks import *  # noqa: F403
from fedstale.core.local import *  # noqa: F403
from fedstale.core.parts import *  # noqa: F403
from fedstale.core.protocols import *  # noqa: F403
from fedstale.core.records import *  # noqa: F403
from fedstale.core.rng import *  # noqa: F403
from fedstale.core.split import *  # noqa: F403

__all__ = [
    *abilities.__all__, *device_array.__all__, *hooks.__all__, *local.__all__, *parts.__all__, *protocols.__all__,
    *records.__all__, *rng.__all__, *split.__all__,
]  # fmt: skip

"""Model, data and loss of every client. Only the quadratic works without torch."""

from typing import TYPE_CHECKING

from fedstale.core.moved import on_first_use

__all__ = ["Split"]

if TYPE_CHECKING:
    from fedstale.tasks.split import Split
else:
    __getattr__ = on_first_use(__name__, {"Split": f"{__name__}.split:Split"})

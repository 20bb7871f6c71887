"""Model, data and loss of every client. Only the quadratic works without torch."""

from typing import TYPE_CHECKING

from fedstale.core.moved import on_first_use

__all__ = ["Root", "Split"]

if TYPE_CHECKING:
    from fedstale.tasks.root import Root
    from fedstale.tasks.split import Split
else:
    __getattr__ = on_first_use(__name__, {"Root": f"{__name__}.root:Root", "Split": f"{__name__}.split:Split"})

"""The laboratory: plans, computes and stores runs, and asks questions of them."""

from typing import TYPE_CHECKING

from fedstale.core.moved import on_first_use

__all__ = ["RunFolder"]

if TYPE_CHECKING:
    from fedstale.lab.runs.store import RunFolder
else:
    __getattr__ = on_first_use(__name__, {"RunFolder": f"{__name__}.runs.store:RunFolder"})

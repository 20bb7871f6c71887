"""Arrays on a device of torch: the arithmetic that rules need to sum updates where they were trained."""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ["DeviceArray", "on_host"]

OPERATIONS = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
}  # fmt: skip


class DeviceArray(NDArrayOperatorsMixin):
    """Float32 on a device of torch, with as much of numpy's arithmetic as sums of updates need.

    Results stay on the device, and an operand of numpy goes there. Whatever else numpy is to do with it is a
    TypeError, so that nothing comes back unnoticed: `on_host` brings it.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, out: Any = None, **more: Any) -> Any:
        if ufunc not in OPERATIONS or method != "__call__" or more:
            return NotImplemented
        result = OPERATIONS[ufunc](*map(self.there, given))
        return DeviceArray(out[0].tensor.copy_(result) if out else result)

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("numpy cannot read what stays on a device")

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, some: Any) -> "DeviceArray":
        return DeviceArray(self.tensor[some])

    def __setitem__(self, some: Any, values: Any) -> None:
        self.tensor[some] = self.there(values)

    def there(self, x: Any) -> Any:
        """An operand as a tensor on this device; a number, also one in an array (1,), as it is."""
        if isinstance(x, DeviceArray):
            return x.tensor
        return np.asarray(x).item() if np.shape(x) in ((), (1,)) else self.restored(x).tensor

    def zeros(self, *shape: int) -> Any:
        """Zeros on this device."""
        return DeviceArray(self.tensor.new_zeros(shape))

    def astype(self, kind: npt.DTypeLike = np.float32) -> "DeviceArray":
        """A copy, in float32 whatever is asked for: every device has it."""
        return DeviceArray(self.tensor.clone())

    copy = astype

    def weighted_sum(self, weights: npt.NDArray[Any]) -> Any:
        """(d,) Σ_k weights[k] · row k, row after row: the same bits however many threads there are."""
        total = self.zeros(self.shape[1])
        for weight, row in zip(weights.tolist(), self.tensor, strict=True):
            total.tensor.add_(row, alpha=weight)
        return total

    def saved(self) -> npt.NDArray[Any]:
        """The numbers, for a checkpoint (see SavesItself)."""
        return np.asarray(self.tensor.cpu().numpy())

    def restored(self, saved: npt.NDArray[Any]) -> Any:
        """Other numbers, such as those of a checkpoint, on this device."""
        return DeviceArray(self.tensor.new_tensor(np.asarray(saved, np.float32)))


def on_host(array: Any) -> Any:
    """An array as one of numpy, from its device if it is on one."""
    return array.saved() if isinstance(array, DeviceArray) else array

"""Linear layers that do not compute what is never read.

A transformer whose head reads one step, `self.head(self.blocks(x)[:, -1])`, computes all steps of its last block,
and their gradients, which are zero. Here a linear layer with inputs (b, t, …), and what follows it vector by
vector, waits until it is read: an index is passed on to the inputs, anything else computes the whole.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEEP = 100  # functions that wait for each other, at most
WORTH = 1 << 18  # multiplications for a sample that waiting has to spare
CHANGED = (
    "a tensor that an earlier layer has yet to read must not be changed in place, got a change of its input: "
    "use engine 'serial' or 'pool', which wait for nothing"
)
UNSEEN = (
    "a function that torch does not show to its inputs, such as a torch.autograd.Function, must be given tensors "
    "that are computed, got those of a linear layer that waits: use engine 'serial' or 'pool'"
)
POINTWISE = {
    F.gelu, F.relu, F.silu, F.sigmoid, F.tanh, torch.relu, torch.sigmoid, torch.tanh, Tensor.relu, Tensor.sigmoid,
    Tensor.tanh,
}  # fmt: skip
BINARY = {Tensor.add, Tensor.sub, Tensor.mul, torch.add, torch.sub, torch.mul}
PRODUCTS = {Tensor.matmul, torch.matmul}
PROPERTIES = {vars(torch._C.TensorBase)[name].__get__ for name in ("shape", "dtype", "device", "ndim")}
KNOWN = PROPERTIES | {Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point}  # before it is computed


T = TypeVar("T")


class Rows(Tensor):
    """The result, not computed yet, of a function that treats each vector along the last axis by itself."""

    call: tuple[Callable[..., Tensor], tuple[Any, ...], Mapping[str, Any]]
    versions: list[tuple[Tensor, int]]  # of the tensors that it will read
    deep: int

    @classmethod
    def of(
        cls, width: int, function: Callable[..., Tensor], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """The function's result with rows of this width."""
        known = tuple(_known(arg) for arg in args)
        first, waits = known[0], [arg for arg in known if isinstance(arg, Rows)]
        kind = {"dtype": first.dtype, "device": first.device, "requires_grad": True}
        made: Rows = Tensor._make_wrapper_subclass(cls, (*first.shape[:-1], width), **kind)
        made.register_hook(_unseen)  # type: ignore[no-untyped-call]
        made.call, made.deep = (function, known, kwargs), 1 + max((arg.deep for arg in waits), default=0)
        read = (arg for arg in (*known, *kwargs.values()) if isinstance(arg, Tensor) and not isinstance(arg, Rows))
        made.versions = [(tensor, tensor._version) for tensor in read]
        return made if made.deep < DEEP else made.whole

    @cached_property
    def whole(self) -> Tensor:
        """The result."""
        function, args, kwargs = self._checked()
        plain = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
        with torch.enable_grad(), plain:
            value = function(*map(_computed, args), **kwargs)
        self.versions = [(value, value._version)]
        return value

    def some(self, index: Any, found: dict[int, Tensor]) -> Tensor:
        """The rows at an index of all axes but the last; `found` are those of other results at the same index."""
        if "whole" in vars(self):
            return self.whole[index]
        if id(self) not in found:
            function, args, kwargs = self._checked()
            rows = (
                arg.some(index, found) if isinstance(arg, Rows) else arg[index] if _is_rows(arg, self) else arg
                for arg in args
            )
            found[id(self)] = function(*rows, **kwargs)
        return found[id(self)]

    def _checked(self) -> tuple[Callable[..., Tensor], tuple[Any, ...], Mapping[str, Any]]:
        waits = (arg for arg in self.call[1] if isinstance(arg, Rows) and "whole" in vars(arg))
        read = [*self.versions, *(pair for arg in waits for pair in arg.versions)]
        if any(tensor._version != version for tensor, version in read):
            raise RuntimeError(CHANGED)
        return self.call

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function in KNOWN:
                return function(*args, **kwargs)
            if _may_wait():
                if function is Tensor.__getitem__ and isinstance(args[0], Rows) and _by_rows(args[1], args[0].ndim):
                    return args[0].some(args[1], {})
                if width := _width(function, args, kwargs):
                    return cls.of(width, function, args, kwargs)
            return function(*_computed(args), **_computed(kwargs))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(UNSEEN)


def _unseen(gradient: Tensor) -> None:
    """Nobody may ask for the gradient of what is not computed: it would not reach the layers before it."""
    raise RuntimeError(UNSEEN)


def _width(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Of the rows of a result that can wait; 0 if the function needs more than a row at a time, or is not known."""
    if not args or not isinstance(args[0], Tensor):
        return 0
    x, wide = args[0], args[0].shape[-1]
    if function in POINTWISE or function is F.dropout:
        drawn = function is F.dropout and kwargs.get("training", True) and kwargs.get("p", 0.5) > 0
        return wide if len(args) == 1 and not kwargs.get("inplace") and not drawn else 0
    if function is F.layer_norm:
        return wide if len(args) == 2 and len(args[1]) == 1 else 0
    if function in BINARY and len(args) == 2 and not kwargs:
        other = args[1]
        alike = other.shape == x.shape and other.dtype == x.dtype if isinstance(other, Tensor) else True
        return wide if alike else 0
    if function in PRODUCTS and len(args) == 2 and isinstance(args[1], Tensor) and type(args[1]) is not Rows:
        return args[1].shape[1] if args[1].ndim == 2 and x.ndim > 2 and not kwargs else 0
    return args[1].shape[0] if function is F.linear and args[1].ndim == 2 else 0


def _by_rows(index: Any, axes: int) -> bool:
    """Whether an index leaves the last axis as it is."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(isinstance(part, int | slice) and not isinstance(part, bool) for part in parts)
    return plain and len(parts) < axes


def _is_rows(arg: Any, of: Rows) -> bool:
    return isinstance(arg, Tensor) and arg.ndim == of.ndim


def _known(arg: Any) -> Any:
    return arg.whole if isinstance(arg, Rows) and "whole" in vars(arg) else arg


def _computed(arg: Any) -> Any:
    """Whatever is in an argument, computed."""
    if isinstance(arg, Rows):
        return arg.whole
    if isinstance(arg, dict):
        return {key: _computed(value) for key, value in arg.items()}
    return type(arg)(map(_computed, arg)) if type(arg) in (list, tuple) else arg


def _may_wait() -> bool:
    """Not where a context changes what a function does: whoever reads the result may be outside of it."""
    return torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer that waits, where its input has steps and its gradient is wanted."""
    if x.ndim < 3 or not _may_wait():
        return nn.Linear.forward(layer, x)
    with torch._C.DisableTorchFunctionSubclass():
        return Rows.of(layer.out_features, F.linear, (x, layer.weight, layer.bias), {})


def wait(module: nn.Module, names: Iterable[str]) -> None:
    """Let these linear layers of a module wait until they are read."""
    for name in names:
        layer = module.get_submodule(name)
        layer.forward = MethodType(_forward, layer)


def layers(module: nn.Module, play: Callable[[], T]) -> tuple[tuple[str, ...], T]:
    """The linear layers of which `play`, which trains the module on two samples, does not read all, and its result.

    None of them if that spares less than asking for it costs.
    """
    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    said: list[tuple[str, Any]] = []
    for name, layer in linear.items():
        layer.register_forward_hook(lambda _, inputs, out, name=name: said.append((name, out)))
    wait(module, linear)
    played = play()
    left = [(name, out) for name, out in said if isinstance(out, Rows) and "whole" not in vars(out)]
    spared = sum(out.numel() * linear[name].in_features for name, out in left) // 2
    return tuple(dict.fromkeys(name for name, _ in left)) if spared >= WORTH else (), played

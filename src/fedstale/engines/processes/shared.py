"""Memory that processes share: a file without a name, freed with the last process that holds it."""

import contextlib
import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

from fedstale.core import BadInput

SMALL = 4096  # bytes below which an array travels with the rest
ALIGNED = 64  # bytes: a cache line


class Shared:
    """A mapped file in memory; it can grow, also for the other processes that have its descriptor."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _nameless() if fd is None else fd
        self._map: mmap.mmap | None = None

    def fit(self, size: int) -> None:
        """Make it at least `size` bytes long, and never empty; arrays made before stay valid."""
        size = max(size, 1)  # an empty file cannot be mapped
        if self.size < size:
            os.ftruncate(self.fd, size)
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self.fd, size)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def array(self, start: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
        assert self._map is not None, "fit comes first"
        return np.ndarray(shape, dtype, buffer=self._map, offset=start)

    def close(self) -> None:
        """Give up this process's hold on the memory."""
        self._map = None
        os.close(self.fd)

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        """Pickled for a process that is being started: it gets the descriptor."""
        return _handed, (reduction.DupFd(self.fd),)


def _handed(descriptor: Any) -> Shared:
    return Shared(descriptor.detach())


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedstale")
    with tempfile.TemporaryFile() as file:  # unlinked from the start
        return os.dup(file.fileno())


def dump(thing: Any, shared: Shared, promise: str, pickler: "type[Pickler] | None" = None) -> bytes:
    """Pickle an object, its large CPU tensors and arrays into the shared memory; `promise` is what must hold."""
    file = io.BytesIO()
    shared.fit(0)
    try:
        (pickler or Pickler)(file, shared).dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(f"{promise}, got {error}") from error
    return file.getvalue()


def load(packed: bytes, array: Callable[[int, tuple[int, ...], str], np.ndarray[Any, Any]]) -> Any:
    """The object that `dump` pickled; `array` finds its large arrays in the shared memory, as Shared.array does."""
    return _Unpickler(io.BytesIO(packed), array).load()


Place = tuple[bool, int, tuple[int, ...], str]  # array (or tensor), start, shape, dtype


class Pickler(pickle.Pickler):
    """Puts large arrays and tensors into shared memory, each once."""

    def __init__(self, file: io.BytesIO, shared: Shared) -> None:
        super().__init__(file)
        self.shared, self.used = shared, 0
        self.places: dict[int, tuple[Any, Place]] = {}  # with the thing itself, so that its id is not used again

    def persistent_id(self, thing: Any) -> Place | None:
        values = _values(thing)
        if values is None or values.nbytes < SMALL or values.dtype.hasobject:
            return None
        if id(thing) not in self.places:
            start, self.used = self.used, -(-(self.used + values.nbytes) // ALIGNED) * ALIGNED
            self.shared.fit(self.used)
            self.shared.array(start, values.shape, values.dtype.str)[...] = values
            self.places[id(thing)] = thing, (values is thing, start, values.shape, values.dtype.str)
        return self.places[id(thing)][1]


def _values(thing: Any) -> np.ndarray[Any, Any] | None:
    """What an array or a plain tensor holds, without importing torch to find out."""
    if type(thing) is np.ndarray:
        return thing
    if type(thing).__module__ == "torch" and type(thing).__name__ == "Tensor" and not thing.requires_grad:
        with contextlib.suppress(TypeError, RuntimeError):  # on a GPU, sparse, or of a type that numpy lacks
            return np.asarray(thing.numpy())
    return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, array: Callable[..., np.ndarray[Any, Any]]) -> None:
        super().__init__(file)
        self.array = array

    def persistent_load(self, place: Place) -> Any:
        plain, *where = place
        values = self.array(*where)
        if plain:
            return values
        import torch  # only where there are tensors: it takes a second

        return torch.from_numpy(values)

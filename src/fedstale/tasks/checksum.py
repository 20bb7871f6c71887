"""What a task made in Python is, in names and checksums: the part of a run's key that a TOML file has as text."""

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedstale.core import Task

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Path)
NAMED = (type, types.FunctionType, types.ModuleType)
INSTALLED = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))  # besides site-packages


def describe_task(task: Task, version: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Kind, size and checksum of a task, and the user's own code in it; with a `version` its data is not read."""
    values = [inner for v in vars(task).values() for inner in (v.values() if isinstance(v, dict) else [v])]
    cls, made = type(task), [v for v in values if isinstance(v, (*NAMED, functools.partial))]
    kind = cls.__name__ if cls.__module__.startswith("fedstale.") else f"{cls.__module__}:{cls.__qualname__}"
    found = Content([cls, *made] if version else [task])
    content = {"version": version} if version else {"content": found.digest()}
    return {"dataset": kind, "clients": task.n, "dimension": task.d, **content}, found.code


class Content:
    """A checksum of objects with their arrays, and of the user's own functions and classes that they are made of.

    Equal objects that are made by equal code have equal checksums, in every process. A function counts by its
    source and by the values that it has from outside; what is installed counts by its name. Values that are
    computed on first use (`cached_property`) do not count.
    """

    def __init__(self, values: Iterable[object]) -> None:
        self.code: dict[str, str] = {}  # own function or class → hash of its source
        self._hash, self._seen = hashlib.sha256(), dict[int, object]()
        for value in values:
            self._add(value)

    def digest(self) -> str:
        """The first 16 characters of the checksum."""
        return self._hash.hexdigest()[:16]

    def _add(self, value: Any) -> None:
        self._hash.update(f";{type(value).__name__} ".encode())
        if isinstance(value, PLAIN):
            self._hash.update(repr(value).encode())
        elif (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):  # no tensor without it
            self._array(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
            self._hash.update(f"{value.dtype}{tuple(value.shape)}".encode())
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._array(value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value  # kept, so that its id stays its own
            for part in [self._named(value)] if isinstance(value, NAMED) else _parts(value):
                self._add(part)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        whole = np.ascontiguousarray(value)
        self._hash.update(f"{whole.dtype}{value.shape}".encode())
        self._hash.update(whole.reshape(-1).view(np.uint8).data)

    def _named(self, value: Any) -> str:
        """The name of a function, class or module; of the user's own the code is noted as well."""
        whole = isinstance(value, types.ModuleType)
        module = value if whole else sys.modules.get(value.__module__)
        name = value.__name__ if whole else f"{value.__module__}:{value.__qualname__}"
        if not _installed(module):
            inner = Content([_source(value)])
            inner._seen |= self._seen  # what refers to itself ends here
            for part in _used(value):
                inner._add(part)
            self._seen |= inner._seen
            self.code |= {str(name): inner.digest()} | inner.code
            self._hash.update(inner._hash.digest())
        return str(name)


def _parts(value: Any) -> Iterable[Any]:
    """What an object is made of: its items, or what pickle would keep of it."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    try:
        kept = value.__reduce_ex__(4)
    except Exception:  # an open file, a connection: anything may happen here
        return [type(value), len(value) if isinstance(value, Sized) else None]
    if isinstance(kept, str):
        return [kept]
    make, arguments, state, *items = (*kept, None)[:5]
    if isinstance(state, dict):
        cached = {
            key
            for key in state
            if isinstance(inspect.getattr_static(type(value), str(key), None), functools.cached_property)
        }
        state = {key: inner for key, inner in state.items() if key not in cached} or None
    return [make, arguments, state, *(list(of) for of in items if of is not None)]


def _installed(module: types.ModuleType | None) -> bool:
    """Whether a module is part of Python, of an installed package or of this one; a notebook is not."""
    if module is None or module.__name__ == "__main__":
        return False
    file = Path(vars(module).get("__file__") or INSTALLED[0]).resolve()
    return bool({"site-packages", "dist-packages"} & {*file.parts}) or str(file).startswith(INSTALLED)


def _source(value: Any) -> str:
    """The text of a function, class or module; where there is none, the instructions of a function."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # of classes in notebooks, too: their functions have texts
        code = dis.get_instructions(value) if isinstance(value, types.FunctionType) else ()
        return repr([(i.opname, i.argrepr) for i in code if " at 0x" not in i.argrepr])


def _used(value: Any) -> Iterator[Any]:
    """What a class is made of, and what a function has from outside: defaults, enclosing and global values."""
    if isinstance(value, type):
        members = [cast(Any, m.fget if isinstance(m, property) else m) for m in vars(value).values()]
        functions = [m for m in map(inspect.unwrap, members) if isinstance(m, types.FunctionType)]
        yield from (*value.__bases__, *functions)
    if isinstance(value, types.FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__)
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
        yield from (value.__globals__[name] for name in _globals(value.__code__) if name in value.__globals__)


def _globals(code: types.CodeType) -> Iterator[str]:
    yield from (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner)

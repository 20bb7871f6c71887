"""What a task made in Python is, in names and checksums: the part of a run's key that a TOML file has as text."""

import ast
import dis
import functools
import hashlib
import importlib.util
import inspect
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedstale.core import Task
from fedstale.core.own_modules import INSTALLED, installed

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Path)
NAMED = (type, types.FunctionType, types.ModuleType)


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
    source, by the values that it has from outside, and by the own modules that it imports and the files that it
    names; what is installed counts by its name. Values that are computed on first use (`cached_property`) do not
    count.
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
            for file in _reached(_source(value), module):
                inner._hash.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
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
    return installed(Path(vars(module).get("__file__") or INSTALLED[0]))


def _reached(text: str, module: types.ModuleType | None) -> list[Path]:
    """The files that the text of own code imports or names, and those that they do, wherever in it."""
    known = vars(module) if module else {}
    waiting = [(text, str(known.get("__package__") or ""), Path(known.get("__file__") or "."))]
    found = dict[Path, None]()
    while waiting:
        text, package, file = waiting.pop()
        for reached, inside in _mentioned(text, package, file.parent):
            if (whole := reached.resolve()) not in found and whole != file.resolve():
                found[whole] = None
                if inside is not None:
                    waiting.append((reached.read_text(errors="replace"), inside, reached))
    return [*found]


def _mentioned(text: str, package: str, folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The files of the own modules that a text imports with their packages, and the data files that it names."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):  # the part of a line that a lambda is written in
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from _own_files([alias.name for alias in node.names])
        elif isinstance(node, ast.ImportFrom):
            inside = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, (*inside, node.module)))
            yield from _own_files([base, *(f"{base}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and names_file(node.value):
            yield from [(place, None) for place in (folder / node.value, Path(node.value)) if place.is_file()][:1]


def names_file(text: str) -> bool:
    """Whether a text may be the name of a file: short, with an ending."""
    return len(text.encode(errors="replace")) < 256 and text.isprintable() and bool(Path(text).suffix)


def _own_files(modules: Iterable[str]) -> Iterator[tuple[Path, str]]:
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):  # a name that is no module's
            continue
        file = Path(found.origin or "") if found else Path()
        if found and file.is_file() and not installed(file):
            yield file, found.parent or ""


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

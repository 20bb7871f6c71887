"""The user's own modules: found in the folder of a file first, and read again when they have been changed."""

import functools
import importlib
import sys
import sysconfig
from collections.abc import Set
from pathlib import Path
from types import ModuleType

READ = "__fedstale_read__"  # in an own module: time and size of its file when it was imported
PYTHON = {*map(sysconfig.get_path, ("stdlib", "platstdlib")), sysconfig.get_config_var("DESTSHARED")}
INSTALLED = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))  # besides site-packages


def installed(file: Path) -> bool:
    """Whether a file is part of Python, of an installed package or of this one."""
    whole = file.resolve()
    return bool({"site-packages", "dist-packages"} & {*whole.parts}) or str(whole).startswith(INSTALLED)


def import_from(folder: Path) -> None:
    """Look for own parts in this folder first, as Python does for a script; its own modules stay Python's."""
    place = folder.resolve()
    names = {path.stem for path in place.glob("*.py")} | {path.parent.name for path in place.glob("*/__init__.py")}
    sys.path[:] = [entry for entry in sys.path if entry != str(place)]
    python = [k for k, entry in enumerate(sys.path) if entry in PYTHON] if names & sys.stdlib_module_names else []
    sys.path.insert(max(python, default=-1) + 1, str(place))
    for name in _outdated(place, names):
        del sys.modules[name]
    importlib.invalidate_caches()


def note_version(module: ModuleType) -> None:
    """Keep, in the own modules of a folder that have been imported, which version of their file that was."""
    file = _file(module)
    if file is None or READ in vars(module):
        return
    place = file.resolve().parents[module.__name__.count(".") + (file.stem == "__init__")]
    for other in [*sys.modules.values()]:
        inner = _file(other)
        if inner and place in inner.resolve().parents:
            vars(other).setdefault(READ, _version(inner))


def _outdated(place: Path, names: Set[str]) -> list[str]:
    """Own modules that are loaded from elsewhere though they are in this folder, or all if one has been changed."""
    own = {name: file for name, module in [*sys.modules.items()] if (file := _file(module))}
    inside = {name for name, file in own.items() if place in file.resolve().parents}
    noted = {name: vars(sys.modules[name])[READ] for name in inside if READ in vars(sys.modules[name])}
    changed = any(version != _version(own[name]) for name, version in noted.items())
    moved = [name for name in own if name.partition(".")[0] in names and name not in inside]
    return moved + [*noted] * changed


def _file(module: object) -> Path | None:
    """The file of a loaded module of the user's own."""
    if not isinstance(module, ModuleType) or module.__name__ == "__main__":
        return None
    known = vars(module).get("__file__")
    return _own(known) if isinstance(known, str) else None


@functools.cache  # asked of thousands of modules whenever a file of settings is read
def _own(name: str) -> Path | None:
    return None if installed(Path(name)) else Path(name)


def _version(file: Path) -> tuple[int, int]:
    found = file.stat() if file.is_file() else None
    return (found.st_mtime_ns, found.st_size) if found else (0, 0)

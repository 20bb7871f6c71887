"""The experiment files that come with the package, and those that a user names."""

import difflib
from pathlib import Path

from fedstale.core import BadInput, known

PACKAGED = Path(__file__).parent / "experiments"


def find(name: str, folder: Path = PACKAGED, what: str = "experiment") -> Path:
    """The TOML file that a user names: by its path, or by the bare name of one that comes with the package."""
    if name.endswith(".toml") or Path(name).is_file() or "/" in name:
        return Path(name)
    files = packaged(folder)
    if near := difflib.get_close_matches(name, [path.name for path in Path().glob("*.toml")], n=1, cutoff=0.6):
        raise BadInput(f"there is no file {name}; did you mean {near[0]}?")
    return files[known(name, files, what)]


def packaged(folder: Path = PACKAGED) -> dict[str, Path]:
    """The TOML files of a folder by their bare names."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}

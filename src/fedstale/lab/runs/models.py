"""The model of a finished run as named arrays, and as a file that PyTorch and others read."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, require
from fedstale.lab.runs.store import RunFolder, read_json, write

Arrays = dict[str, npt.NDArray[Any]]
LAYOUT = "model.json"  # in the folder of a run: names, shapes and types of the model's parameters and buffers


def arrays(run: RunFolder) -> Arrays:
    """The final parameters of the model, and its buffers if training changed them, by their names in the model."""
    require(run.finished, f"{run.path.name} is not finished; the same command with --resume goes on with it")
    known = (run.path / LAYOUT).exists()
    unnamed = f"{run.path.name} has no {LAYOUT}: its task has no model, or an earlier version has computed it"
    require(known, f"{unnamed}; params.npy has its parameters as one vector")
    require(not run.damage, run.damage)
    params, buffers = run.params(), run.buffers()
    try:
        return named(read_json(run.path / LAYOUT), params, buffers)
    except (KeyError, TypeError, ValueError) as error:
        text = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        raise BadInput(f"{run.path / LAYOUT} does not describe the model ({text})") from None


def named(layout: Mapping[str, Any], params: npt.NDArray[Any], buffers: npt.NDArray[Any] | None) -> Arrays:
    """Flat parameters and buffers in pieces, by the names and shapes of a layout."""
    return _cut(layout["parameters"], params) | ({} if buffers is None else _cut(layout["buffers"], buffers))


def _cut(layout: list[dict[str, Any]], flat: npt.NDArray[Any]) -> Arrays:
    """A flat vector in pieces, by their names."""
    sizes = [int(np.prod(piece["shape"])) for piece in layout]
    require(sum(sizes) == len(flat), f"{LAYOUT} describes {sum(sizes)} numbers, but there are {len(flat)}")
    pieces = zip(layout, np.split(flat, np.cumsum(sizes)[:-1]), strict=True)
    return {p["name"]: _typed(values, p["dtype"]).reshape(p["shape"]) for p, values in pieces}


def _typed(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    return (values if "float" in dtype else np.rint(values)).astype(dtype)  # the mean of counters is seldom whole


def export(run: RunFolder, path: Path) -> Arrays:
    """Write the model to a file, in the format that its ending says; returns what was written."""
    check_ending(path)
    found = arrays(run)
    save(found, path)
    return found


def check_ending(path: Path) -> None:
    """Refuse a file whose ending says no format."""
    allowed = ", ".join(FORMATS)
    require(path.suffix in FORMATS, f"--to must be a file that ends in {allowed}, got {str(path)!r}")


def save(found: Arrays, path: Path) -> None:
    """Write arrays to a file, in the format that its ending says."""
    check_ending(path)
    made = FORMATS[path.suffix](found)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, made)


def _torch(found: Arrays) -> Callable[[Any], Any]:
    torch = import_module("torch")
    state = {name: torch.from_numpy(values.copy()) for name, values in found.items()}
    return lambda file: torch.save(state, file)


def _safetensors(found: Arrays) -> Callable[[Any], Any]:
    try:
        save = import_module("safetensors.numpy").save
    except ModuleNotFoundError:
        raise BadInput("a .safetensors file needs safetensors: pip install safetensors, or choose .pt") from None
    data: bytes = save({name: np.ascontiguousarray(values) for name, values in found.items()})
    return lambda file: file.write(data)


FORMATS: Mapping[str, Callable[[Arrays], Callable[[Any], Any]]] = {".pt": _torch, ".safetensors": _safetensors}

"""The model of the last committed round, by the names of its parameters and buffers."""

from pathlib import Path

from fedstale.core import Checkpoint, require
from fedstale.flower.federation.state.backup import unswept
from fedstale.flower.federation.state.manifest import RESTORE, checksum, read_manifest
from fedstale.flower.federation.state.sealed import read_sealed
from fedstale.flower.federation.state.server_state import ServerState
from fedstale.lab.runs.models import LAYOUT, Arrays, named
from fedstale.lab.runs.store import read_tree


def read_model(folder: Path) -> tuple[int, Arrays]:
    """The last committed round of the federation in a folder, and the model's arrays after it."""
    state = folder / "state"
    none = f"{folder} has no committed round yet; `fedstale federation run {folder}` trains"
    require(read_manifest(state) is not None, none)
    unnamed = f"{folder} has no {LAYOUT}, which names the model's parameters"
    require((folder / LAYOUT).exists(), f"{unnamed}: give server_app its layout, or make the start with of_module")
    with unswept(state):
        manifest = read_manifest(state) or {}
        name, expected = manifest["checkpoint"]
        same = checksum(state / name) == expected
        require(same, f"{state / name} is damaged, its checksum is not the manifest's; {RESTORE}")
        tree = read_tree(state / name, None)[ServerState._fields.index("checkpoint")]
    params, buffers = (tree[Checkpoint._fields.index(field)] for field in ("params", "buffers"))
    layout = read_sealed(folder / LAYOUT, f"{RESTORE}, or let the server write it again when it starts")
    return int(manifest["t"]), named(layout, params, buffers)

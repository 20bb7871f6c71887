"""What a client keeps to itself between rounds (personal layers, FedBN, the state of a training loop), in files."""

from pathlib import Path

from fedstale.core import State
from fedstale.lab.runs.store import read_tree, write_tree

KEPT = 2  # rounds: a round that was void is asked for again, and begins where it began


class OwnState:
    """A folder of one client with its state after each of the last rounds that it trained in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, run: str, t: int) -> State | None:
        """The client's state when round t of a run begins; None if it has not trained in this run."""
        earlier = [path for path in self._files(run) if _round(path) < t]
        return read_tree(earlier[-1], None) if earlier else None

    def save(self, run: str, t: int, state: State) -> None:
        """Keep the state after round t, and that of the round before."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_tree(self.folder / f"{run}.{t}.npz", state)
        late = [path for path in self._files(run) if _round(path) > t]  # of rounds that the server has lost since
        for path in [*late, *[p for p in self._files(run) if p not in late][:-KEPT]]:
            path.unlink()

    def _files(self, run: str) -> list[Path]:
        return sorted(self.folder.glob(f"{run}.*.npz"), key=_round)


def _round(path: Path) -> int:
    return int(path.stem.rpartition(".")[2])

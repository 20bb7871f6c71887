"""A play as a text task: predict the next character; a client is a speaker."""

from collections.abc import Sequence

import numpy as np

from fedstale.core import require
from fedstale.data.formats import Samples

WINDOW = 20  # characters that are read before the one that is predicted


def speakers(contents: Sequence[bytes]) -> Samples:
    """Windows of the speeches of each speaker, x (M, 20), and the character that follows, y (M,).

    A play is blocks between empty lines, each a name with a colon and, below it, a speech. The speeches of a
    speaker are joined and cut into windows that do not overlap. Characters are numbered by their codes.
    """
    text = contents[0].decode()
    speeches: dict[str, list[str]] = {}
    for block in text.strip().split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        require(name.endswith(":"), f"a speech must stand below a name with a colon, got {name[:40]!r}")
        speeches.setdefault(name, []).append(speech)
    number = {c: k for k, c in enumerate(sorted({*text}))}
    rows, owners = [], []
    for k, said in enumerate(speeches.values()):
        codes = np.array([number[c] for c in "\n".join(said)], np.int64)
        whole = codes[: len(codes) // (WINDOW + 1) * (WINDOW + 1)].reshape(-1, WINDOW + 1)
        rows.append(whole)
        owners.append(np.full(len(whole), k))
    windows = np.concatenate(rows)
    return Samples(windows[:, :-1], windows[:, -1], len(windows), np.concatenate(owners))

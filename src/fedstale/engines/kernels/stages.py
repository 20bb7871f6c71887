"""Where the numbers of a small convolutional network are in memory, as tables for its compiled loops.

A network is a sequence of stages: a convolution or a dense layer, relu, 2 × 2 pooling or none. The samples of
a block lie side by side at every position of an image; a few blocks are computed at a time. A dense layer
is a convolution of images that have one pixel.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]


class Stage(NamedTuple):
    """Images (inputs, height, width) to (outputs, …); relu follows in all stages but the last."""

    inputs: int
    outputs: int
    size: tuple[int, int] = (1, 1)  # height and width of its images
    kernel: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    pool: int = 1  # 2 to keep the largest of 2 × 2 positions

    @property
    def conv(self) -> tuple[int, int]:
        """Height and width of what the convolution gives."""
        (h, w), (kh, kw), (ph, pw) = self.size, self.kernel, self.padding
        return h + 2 * ph - kh + 1, w + 2 * pw - kw + 1

    @property
    def margin(self) -> tuple[int, int]:
        """Zeros around what the convolution gives, so that every input gets its gradient from a whole kernel."""
        (kh, kw), (ph, pw) = self.kernel, self.padding
        return max(0, kh - 1 - ph), max(0, kw - 1 - pw)

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of what the stage gives."""
        return self.conv[0] // self.pool, self.conv[1] // self.pool


class Tables(NamedTuple):
    """A row for each stage. Places are those in one flat array of all activations and their gradients.

    `x` are the inputs of a stage with their padding, `g` the gradients of the inputs, laid out alike, and `y` its
    outputs, in the backward pass their gradients, with the margin that this pass needs. The places of a block
    come before those of the next, and the positions of a pooling window are neighbours.
    """

    inputs: Places  # (S,)
    outputs: Places
    kernel: Places  # height × width
    window: Places  # positions that are pooled
    n_y: Places  # positions of a block, without those that the pooling leaves out
    n_g: Places  # positions of its inputs
    weights: Places  # place of the weights (outputs, inputs × kernel) among the parameters; the bias follows
    gradients: Places  # of their gradients in an array of its own, with whole tiles; those of the bias come first
    x_plane: Places  # from a channel to the next
    y_plane: Places
    into_plane: Places
    x_to_g: Places
    x_taps: Places  # (S, ·) from the first input of a position to each that it is computed from
    x_at: Places  # the first input of each position
    y_at: Places  # each position
    y_taps: Places  # from the first gradient that an input gets to each
    w_taps: Places  # the weights that these are multiplied with
    back_at: Places  # the first gradient of each input
    g_at: Places  # each input; in the first stage, which needs no gradient of them, in x
    into_at: Places  # the inputs of the next stage
    order: Places  # 0, 1, 2, …: the weights of a position in the order of its inputs


class Grid(NamedTuple):
    """Images of several channels in the array: where the first is, and how far the next row, channel, block."""

    first: int
    row: int
    plane: int
    block: int
    lanes: int

    @classmethod
    def of(cls, first: int, channels: int, height: int, width: int, lanes: int) -> "Grid":
        plane = (height * width | 1) * lanes  # odd: caches keep few lines whose distance is a power of two
        return cls(first, width * lanes, plane, padded(channels, 4) * plane, lanes)

    def at(self, blocks: int, rows: Any, columns: Any) -> Places:
        """These positions in the first channel of all blocks."""
        places: Places = np.ravel(rows * self.row + columns * self.lanes)
        return np.ravel(self.first + self.block * np.arange(blocks)[:, None] + places)

    def taps(self, channels: int, rows: Any, columns: Any) -> Places:
        """How far these positions are from the first one, channel by channel."""
        places: Places = np.ravel(rows * self.row + columns * self.lanes)
        return np.ravel(self.plane * np.arange(channels)[:, None] + places)


def padded(count: int, tile: int) -> int:
    """The next multiple of the tile."""
    return -(-count // tile) * tile


def tables(stages: Sequence[Stage], blocks: int, lanes: int) -> tuple[Tables, int, int]:
    """The tables for so many blocks of so many lanes; how long the array is, and that of the weights' gradients."""
    grids: list[tuple[Grid, Grid, Grid]] = []
    columns, free, weights, gradients = [], 0, 0, 0
    for s in stages:
        (h, w), (ph, pw), (ch, cw), (mh, mw) = s.size, s.padding, s.conv, s.margin
        x = Grid.of(free, s.inputs, h + 2 * ph, w + 2 * pw, lanes)
        y = Grid.of(free + blocks * x.block, s.outputs, ch + 2 * mh, cw + 2 * mw, lanes)
        g = y.first + blocks * y.block if grids else free
        grids.append((x, y, x._replace(first=g)))
        free = g + blocks * x.block if len(grids) > 1 else y.first + blocks * y.block
    for k, s in enumerate(stages):
        after = (stages[k + 1], grids[k + 1][0]) if k + 1 < len(stages) else None
        columns.append({"weights": weights, "gradients": gradients, **_forward(s, *grids[k][:2], after, blocks)})
        columns[-1] |= _backward(s, *grids[k], blocks)
        taps = s.inputs * s.kernel[0] * s.kernel[1]
        weights += s.outputs * (taps + 1)
        gradients += padded(s.outputs, 4) * (padded(taps, 3) + 1)
    return Tables(*(_stacked([column[name] for column in columns]) for name in Tables._fields)), free, gradients


def _forward(s: Stage, x: Grid, y: Grid, after: tuple[Stage, Grid] | None, blocks: int) -> dict[str, Any]:
    """What the way from the inputs to those of the stage after it needs."""
    py, px, dy, dx = np.ogrid[: s.pooled[0], : s.pooled[1], : s.pool, : s.pool]
    row, column = py * s.pool + dy, px * s.pool + dx  # window by window
    taps = x.taps(s.inputs, *np.ogrid[: s.kernel[0], : s.kernel[1]])
    made: dict[str, Any] = {
        "inputs": s.inputs, "outputs": s.outputs, "kernel": s.kernel[0] * s.kernel[1], "window": s.pool**2,
        "n_y": (row + column).size, "x_plane": x.plane, "y_plane": y.plane,
        "x_taps": np.pad(taps, (0, -len(taps) % 3), mode="edge"), "order": np.arange(len(taps)),
        "x_at": x.at(blocks, row, column), "y_at": y.at(blocks, row + s.margin[0], column + s.margin[1]),
        "into_at": np.zeros(0), "into_plane": 0,
    }  # fmt: skip
    if after:
        then, grid = after
        if then.size == s.pooled:
            made |= {
                "into_at": grid.at(blocks, py + then.padding[0], px + then.padding[1]),
                "into_plane": grid.plane,
            }
        else:  # a dense layer: all positions of all channels are channels
            made |= {
                "into_at": grid.at(blocks, 0, py * s.pooled[1] + px),
                "into_plane": py.size * px.size * y.lanes,
            }
    return made


def _backward(s: Stage, x: Grid, y: Grid, g: Grid, blocks: int) -> dict[str, Any]:
    """What the way from the gradients of the outputs to those of the inputs needs."""
    (kh, kw), (ph, pw) = s.kernel, s.padding
    row, column = np.ogrid[: s.size[0], : s.size[1]]
    ky, kx = np.ogrid[:kh, :kw]
    taps, kernel = s.inputs * kh * kw, np.ravel(ky * kw + kx)
    return {
        "n_g": s.size[0] * s.size[1], "x_to_g": g.first - x.first,
        "y_taps": y.taps(s.outputs, kh - 1 - ky, kw - 1 - kx),
        "w_taps": np.ravel(taps * np.arange(s.outputs)[:, None] + kernel),
        "back_at": y.at(blocks, row + max(0, ph - kh + 1), column + max(0, pw - kw + 1)),
        "g_at": g.at(blocks, row + ph, column + pw),
    }  # fmt: skip


def _stacked(rows: Sequence[Any]) -> Places:
    """(S,) or (S, ·), filled up with zeros."""
    if np.ndim(rows[0]) == 0:
        return np.array(rows, np.int64)
    made = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, places in zip(made, rows, strict=True):
        row[: len(places)] = places
    return made

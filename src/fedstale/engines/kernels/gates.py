"""What a recurrent network is made of, and where its numbers lie, for `recurrent`. Without numba."""

from typing import Any, NamedTuple

import numpy as np


class Gates(NamedTuple):
    """An embedding, stacked GRUs or LSTMs over it, and a linear layer on the last steps.

    `places` are the first parameters of the embedding, of the last layer's weights and bias, and then of each
    recurrent layer its weights of inputs and of the state, and its biases of both.
    """

    lstm: bool
    steps: int  # T
    symbols: int
    embedding: int
    hidden: int  # H
    outputs: int
    said: int  # steps with an output: the last one, or all
    places: tuple[int, ...]

    @property
    def layers(self) -> int:
        return (len(self.places) - 3) // 4

    @property
    def products(self) -> int:
        """Multiplications of one sample."""
        rows = (4 if self.lstm else 3) * self.hidden
        inside = rows * (self.embedding + self.hidden + (self.layers - 1) * 2 * self.hidden)
        return 3 * (self.steps * inside + self.said * self.hidden * self.outputs)


class Tables(NamedTuple):
    """The numbers of a network as compiled loops take them, and where its activations lie."""

    lstm: Any
    steps: Any
    embedding: Any
    hidden: Any
    outputs: Any
    said: Any
    places: Any  # (3 + 4 layers,)
    scores: Any  # where the outputs are, one step after the other
    inputs: Any  # (layers,) where a layer's inputs are; a step of the first has `embedding` rows, else `hidden`
    gates: Any  # (layers,) its gates, four times `hidden` rows a step
    states: Any  # (layers,) its states, from the one before the first step on
    cells: Any  # (layers,) its cells likewise (LSTM)
    slopes: Any  # (layers,) the gradients of its states likewise
    pulls: Any  # the gradients of the embedded inputs
    pull: Any  # the gradient of the cells


def tables(net: Gates, lanes: int) -> tuple[Tables, int, int]:
    """The tables of a network, the numbers of its activations, and of the room for the gradients of a matrix."""
    T, H, end = net.steps, net.hidden, 0

    def room(rows: int) -> int:
        nonlocal end
        end += rows * lanes
        return end - rows * lanes

    first, scores, pulls, pull = (
        room(T * net.embedding),
        room(net.said * net.outputs),
        room(T * net.embedding),
        room(H),
    )
    per_layer = [(room(4 * T * H), *(room((T + 1) * H) for _ in range(3))) for _ in range(net.layers)]
    gates, states, cells, slopes = (np.array(at, np.int64) for at in zip(*per_layer, strict=True))
    inputs = np.array([first, *(states[:-1] + H * lanes)], np.int64)
    made = Tables(
        net.lstm, T, net.embedding, H, net.outputs, net.said, np.array(net.places, np.int64), scores,
        inputs, gates, states, cells, slopes, pulls, pull,
    )  # fmt: skip
    most = (max(4 * H, net.outputs) + 4) * (max(H, net.embedding) + 3)
    return made, end + 4 * lanes, most

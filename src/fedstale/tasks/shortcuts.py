"""A copy of a task whose gradients are computed faster: images channels last, layers that compute what is read."""

import copy
from contextlib import suppress
from functools import partial

import numpy as np
from torch import nn

from fedstale.core import Array, Local
from fedstale.tasks import flat, unread
from fedstale.tasks.supervised import Batch, Supervised


def laid_out(task: Supervised) -> Supervised:
    """A copy whose gradients differ by rounding and take less time; the task itself if there is none.

    Images are channels last if there are convolutions, and linear layers leave out what the model does not
    read, see `unread`. Both are tried first: a model with `x.view(len(x), -1)` behind a convolution needs its
    own layout, say.
    """
    kinds = {type(layer) for layer in task.module().modules()}
    convolves, found = any(issubclass(kind, nn.Conv2d) for kind in kinds), task
    waits = nn.Linear in kinds and (task.dense, task.stages, task.precision) == (None, None, "float32")
    if task.device.type != "cpu" or not (convolves or waits):
        return task
    client, params = int(task.samples.argmax()), flat.joined(task.init(0), task.initial_state(0))
    first = next(task.batches(client, Local(1.0, steps=1, batch=2), np.random.default_rng(0)))
    if convolves:
        found = copy.copy(task)
        found.channels_last = True
        try:
            found.gradient(params, client, first)
        except (RuntimeError, AttributeError):  # of a layout that the model cannot use; of inputs without one
            found = task
    if waits:
        with suppress(Exception):  # whatever a model does with layers that wait, it can do without
            return _reading(found, params, client, first)
    return found


def _reading(task: Supervised, params: Array, client: int, batch: Batch) -> Supervised:
    """A copy whose linear layers wait until they are read; the task itself if that spares little."""
    plain, other = copy.copy(task), copy.copy(task)
    due = plain.gradient(params, client, batch)[1]
    names, said = unread.layers(other.working.flat.module, partial(other.gradient, params, client, batch))
    if not names or not np.allclose(said[1], due, rtol=0, atol=1e-4 * np.abs(due).max()):
        return task
    other = copy.copy(task)  # with a model of which no other layer waits
    other.waiting = names
    return other

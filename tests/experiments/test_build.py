"""From the sections of a file to the task: which samples train, and which evaluate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstale.core import BadInput
from fedstale.experiments.build import make_task
from fedstale.experiments.schema import read

OWN = """
import numpy as np
import fedstale as fs

def images():
    "900 noisy images of three classes; the last 300 are the official test set."
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    x = rng.integers(0, 100, (900, 1, 4, 4)) + 50 * y[:, None, None, None]
    return fs.data.Dataset("images", x.astype(np.uint8), y, 600, 3, (0.5,), (0.25,))
"""
FILE = """
rounds = 2
algorithms = ["fedavg"]
local = { lr = 0.1 }
participation = { kind = "bernoulli", p = 0.5 }
[data]
dataset = "made_images:images"
clients = 10
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """The task of the file with more keys of [data]."""
    (tmp_path / "made_images.py").write_text(OWN)

    def make(more: str = "") -> Any:
        (tmp_path / "e.toml").write_text(FILE + more)
        chosen = read(tmp_path / "e.toml")
        return chosen.data, make_task(chosen.data, chosen.model.model_dump())

    return make


def test_the_keys_of_samples_for_evaluation_reach_the_task(made: Any) -> None:
    data, task = made('test = "official"\nvalidation = 0.2\nheld_out = 0.3\npartition = "iid"')
    assert task.n == 7
    assert task.samples.tolist() == [48] * 7
    central, validation, held_out = (scored.split for scored in task.scored)
    assert (central.sizes.tolist(), held_out.sizes.tolist()) == ([300], [60] * 3)
    assert validation.sizes.tolist() == [12] * 7
    found = task.evaluate(task.init(0))
    assert {"accuracy", "validation_accuracy", "held_out_accuracy", "validation_loss", "held_out_loss"} < {*found}
    assert data["held_out"] == 0.3


def test_keys_with_their_defaults_are_no_part_of_a_run(made: Any) -> None:
    data, task = made('test = "per-client"\nvalidation = 0\nheld_out = 0.0\ndrop_empty = false')
    keys = {"dataset", "clients", "seed", "partition", "swap", "fraction", "test_share", "weights"}
    assert {*data} == keys
    assert [scored.prefix for scored in task.scored] == [""]


def test_pixels_are_scaled_with_the_mean_and_deviation_of_the_file(made: Any) -> None:
    (_, plain), (_, own) = made(), made("mean = [0.1]\nstd = [2.0]")
    torch.testing.assert_close(own.train.x, (plain.train.x * 0.25 + 0.5 - 0.1) / 2)
    with pytest.raises(BadInput, match=r"data.mean must be one number for each of 1 channels, got \[0.1, 0.2\]"):
        made("mean = [0.1, 0.2]")
    with pytest.raises(BadInput, match=r"data.std.0 should be greater than 0"):
        made("std = [0.0]")


@pytest.mark.filterwarnings("ignore:.*have one sample")
def test_clients_without_samples_are_left_out(made: Any) -> None:
    with pytest.warns(UserWarning, match="clients have no samples and are left out"):
        _, task = made("drop_empty = true\nfraction = 0.05\npartition = { kind = 'dirichlet', alpha = 0.05 }")
    assert 0 < task.n < 10
    assert np.isclose(task.weights.sum(), 1)


def test_a_tree_of_nodes_has_test_samples_of_its_own(made: Any) -> None:
    tree = "validation = 0.1\ncis = { widths = [6, 3, 1], mix = [0.2, 0.3, 0.5] }"
    with pytest.raises(
        BadInput, match=r"data.cis tests every node on samples of its own: leave out data.validation"
    ):
        made(tree)

"""The Python of docs/guides/flower_app.md runs, with a grid in this process."""

import re
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord

from tests.flower.direct import Direct, reply

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "flower_app.md"


def client(message, context):
    arrays = {name: a.numpy() + 1 for name, a in message.content["arrays"].items()}
    return reply(message, arrays, {"num-examples": 1, "train_loss": 1.0})


def test_the_examples_of_the_guide_run_and_training_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {
        "grid": Direct(4, client), "ArrayRecord": ArrayRecord, "ConfigRecord": ConfigRecord,
        "Net": lambda: torch.nn.Linear(2, 1),
    }  # fmt: skip
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 5
    for block in [*blocks, blocks[-1]]:  # the last one again: it continues
        exec(block, names)
    assert names["strategy"]._training.population.checkpoint.t == 4
    assert np.isfinite(names["strategy"].arrays["weight"].numpy()).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.npz"]

"""What a training loop keeps comes back as it was, also through a file."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from fedstale.core import BadInput
from fedstale.lab.runs.codec import pack, unpack
from fedstale.tasks.loops import restored, stored


def through_a_file(tree: Any) -> Any:
    arrays: dict[str, Any] = {}
    return unpack(json.loads(json.dumps(pack(tree, "a", arrays))), None, "a", arrays.__getitem__)


def test_a_state_comes_back_with_its_types() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.8, 0.9))
    model(torch.ones(1, 2)).backward()
    optimizer.step()
    kept = {"rounds": 3, "dual": torch.arange(3.0), "rows": [np.arange(2), ("a", None)], 7: {"optimizer": None}}
    kept[7] = optimizer.state_dict()
    found = restored(through_a_file(stored(kept)))
    assert [*found] == ["rounds", "dual", "rows", 7]
    assert torch.equal(found["dual"], torch.arange(3.0))
    assert found["rows"][1] == ("a", None)
    assert isinstance(found["rows"], list)
    assert found[7]["param_groups"][0]["betas"] == (0.8, 0.9)
    again = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
    again.load_state_dict(found[7])
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_state_is_a_copy() -> None:
    weight, row = torch.zeros(2), np.zeros(2)
    kept = stored({"weight": weight, "row": row})
    weight += 1
    row += 1
    found = restored(kept)
    found["weight"] += 5
    found["row"] += 5
    assert torch.equal(restored(kept)["weight"], torch.zeros(2))
    assert restored(kept)["row"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"log": open}, r"got builtin_function_or_method in context\.state\['log'\]"),
        ({"a": [1, {2}]}, r"got set in context\.state\['a'\]\[1\]"),
        ({"a": torch.zeros(1, dtype=torch.bfloat16)}, r"numpy knows, got torch\.bfloat16 in context\.state\['a'\]"),
        ({"a": np.array([None])}, "got ndarray in"),
        ({"a/b": 1}, r"texts without a slash, got \['a/b'\] in context\.state"),
        ({(1, 2): 1}, "keys must be whole numbers"),
        ({1: 0, "1": 0}, r"keys must differ as texts, got \[1, '1'\]"),
    ],
)
def test_what_cannot_be_stored_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        stored(value)

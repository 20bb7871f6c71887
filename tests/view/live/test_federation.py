"""A federation on the page: what its folder says, also while it is damaged or before its first round."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedstale.core import BadInput
from fedstale.lab.runs.store import RunFolder
from fedstale.view.live import federation
from fedstale.view.live.axes import View
from fedstale.view.live.experiment import Experiments
from fedstale.view.live.index import Index
from fedstale.view.live.lists import Lists


def line(t: int) -> dict[str, Any]:
    heard = [0, 1] if t % 2 else [0]
    return {
        "round": t, "clients": [0, 1, 2], "asked": [0, 1, 2], "heard": heard, "idle": [], "absent": [2],
        "rejected": {"1": "its norm is <b>20</b> times the median"} if t % 2 == 0 else {}, "voids": 1,
        "refused": [], "heard_weight": len(heard) / 3, "train_loss": 1 / t, "step_norm": 1.0, "seconds": 2.0,
        **({"accuracy": t / 10} if t % 2 == 0 else {}),
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "hospitals"
    (place / "state").mkdir(parents=True)
    (place / "federation.toml").write_text('name = "hospitals"\nrounds = 10\n')
    keys = {"rounds": 6, "asked": 6, "rejected": 1, "p_low": 0.2, "p_high": 0.9, "weight_target": 0.33}
    clients = [{"client": k, "heard": 3 * k, "staleness": k or None, "p": 0.5, **keys} for k in range(3)]
    (place / "status.json").write_text(json.dumps({"round": 6, "voids": 1, "clients": clients}))
    (place / "state" / "metrics.jsonl").write_text("".join(json.dumps(line(t)) + "\n" for t in range(1, 7)))
    return place


def opened(folder: Path) -> Experiments:
    index = Index([], [folder])
    index.scan()
    return Experiments(index)


def test_it_is_a_row_among_the_experiments(folder: Path) -> None:
    (row,) = Lists(opened(folder).index).experiments({})["rows"]
    assert (row["title"], row["state"], row["done"], row["total"]) == (
        "Federation hospitals, 3 clients", "interrupted", 6, 10,
    )  # fmt: skip
    with RunFolder(folder / "state").locked():
        (row,) = Lists(opened(folder).index).experiments({"q": "hospitals"})["rows"]
    assert row["state"] == "running"


def test_it_shows_clients_rounds_shares_and_reasons(folder: Path) -> None:
    found = opened(folder).show("federation-1", View())
    titles = [f["html"].split("</figcaption>")[0].rpartition(">")[2] for f in found["figures"].values()]
    assert titles == [
        "Test accuracy", "Training loss of the clients heard", "Who took part: each client",
        "How much of the objective was heard: each round", "How often each client is heard",
    ]  # fmt: skip
    assert "Round 6 of 10, interrupted; 1 attempts at a round were void." in found["above"]
    assert "heard 1 clients, 33 % of the weight" in found["above"]
    assert "Mute, without an answer in the last 3 rounds that asked them: 2." in found["above"]
    assert "<td>3</td><td class=text>its norm is &lt;b&gt;20&lt;/b&gt; times the median</td>" in found["below"]
    assert found["seeds"].count("<tr>") == 4
    heard, lost = opened(folder).plots("federation-1", View())[0].plots[2].data
    assert [row.count(1) for row in heard["z"]] == [6, 3, 0]
    assert [row.count(1) for row in lost["z"]] == [0, 3, 6]  # rejected, and absent
    shares = opened(folder).plots("federation-1", View())[0].plots[-1]
    assert shares.data[0]["error_y"]["arrayminus"] == [0.3] * 3


def test_a_new_round_is_noticed(folder: Path) -> None:
    index = Index([], [folder])
    assert index.scan()
    assert not index.scan()
    now = json.loads((folder / "status.json").read_text())
    (folder / "status.json").unlink()
    (folder / "status.json").write_text(json.dumps(now | {"round": 10}))
    assert index.scan()
    assert federation.now(folder).state == "finished"


def test_before_the_first_round_and_with_damage_there_is_a_sentence_or_a_gap(folder: Path) -> None:
    (folder / "state" / "metrics.jsonl").write_text("nonsense\n")
    found = opened(folder).show("federation-1", View())
    assert "damaged in line 1" in " ".join(found["notes"])
    (folder / "state" / "metrics.jsonl").unlink()
    (folder / "status.json").unlink()
    assert opened(folder).show("federation-1", View())["figures"] == {}
    for name, text in (("status.json", "{"), ("federation.toml", "name = ")):
        (folder / name).write_text(text)
        with pytest.raises(BadInput, match="cannot be read"):
            opened(folder).show("federation-1", View())
        (row,) = Lists(opened(folder).index).experiments({})["rows"]
        assert row["state"] == "damaged"

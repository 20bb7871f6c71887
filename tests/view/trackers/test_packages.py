"""The trackers themselves: what was logged is read back with their own packages, without a network."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstale.lab.runs.store import RunFolder
from fedstale.view.trackers.follow import log_runs
from tests.view.live.stores import computed

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of theirs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trackers") / "runs"
    computed(folder, rounds=4, seeds=[1], algorithms=["fedavg", "auto"])
    return folder


def accuracies(run: RunFolder) -> dict[int, float]:
    return {line["round"]: line["accuracy"] for line in run.metrics() if "accuracy" in line}


def test_tensorboard(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra `tensorboard`")
    from tensorboardX.proto.event_pb2 import Event

    assert log_runs(store, "tensorboard", tmp_path) == 2
    for run in store.glob("*-s1-*"):
        (file,) = (tmp_path / "tensorboard" / run.name).iterdir()
        data, found = file.read_bytes(), {}
        while data:  # length (8), its checksum (4), the event, its checksum (4)
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            found |= {event.step: v.simple_value for v in event.summary.value if v.tag == "accuracy"}  # noqa: B035
            data = data[16 + size :]
        assert found == pytest.approx(accuracies(RunFolder(run)))


def test_mlflow_in_files(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert log_runs(store, "mlflow", tmp_path) == 2
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlflow").as_uri())
    place = client.get_experiment_by_name("fedstale").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([place])}
    assert set(runs) == {run.name for run in store.glob("*-s1-*")}
    for name, run in runs.items():
        told = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "accuracy")}
        assert told == pytest.approx(accuracies(RunFolder(store / name)))
        assert (run.data.params["rounds"], run.info.status) == ("4", "FINISHED")


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: after 7 bytes, blocks of 32 KiB as in a log of LevelDB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a full record, or the last piece of one
            yield whole
            whole = b""


def steps(file: Path) -> dict[int, float]:
    """Step → accuracy in a file of Weights & Biases."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    found = {}
    for data in records(file.read_bytes()):
        history = Record.FromString(data).history
        items = {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
        if "accuracy" in items:
            found[history.step.num] = float(items["accuracy"])
    return found


def test_weights_and_biases_offline(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert log_runs(store, "wandb", tmp_path) == 2
    expected = sorted(str(accuracies(RunFolder(run))) for run in store.glob("*-s1-*"))
    end = time.monotonic() + 600
    while (found := sorted(str(steps(file)) for file in tmp_path.rglob("*.wandb"))) != expected:
        assert time.monotonic() < end, found  # its own process writes, a little later
        time.sleep(0.2)

import gpu
import pytest
import workloads
from workloads import Workload

from fedstale.tasks.models import MLP


def test_rounds_of_a_device_are_compared_with_the_reference(monkeypatch, capsys):
    tiny = Workload("tiny", MLP((3,)), "batched", (4,), clients=3, batch=5, steps=2, samples=8, classes=2)
    monkeypatch.setattr(workloads, "WORKLOADS", {"tiny": tiny})
    gpu.main(["--device", "cpu", "--workloads", "tiny", "--turns", "1"])
    printed = capsys.readouterr().out
    both = ("cpu serial, fedstale in numpy", "cpu serial, fedstale in torch")
    for contender in ("cpu auto", "cpu serial float32", "cpu batched float32", "cpu serial bfloat16", *both):
        assert contender in printed


def test_the_distance_from_the_reference_is_that_of_the_updates():
    tiny = Workload("tiny", MLP((3,)), "batched", (4,), clients=3, batch=5, steps=2, samples=8, classes=2)
    apart = {name: float(apart) for name, _, _, apart in gpu.rows(tiny, "cpu", 1)}
    assert apart["cpu serial float32"] == 0
    assert apart["cpu batched float32"] == pytest.approx(0, abs=1e-5)
    assert 1e-5 < apart["cpu serial bfloat16"] < 0.2


def test_whole_rounds_with_sums_on_the_device_are_near_those_in_numpy():
    tiny = Workload("tiny", MLP((3,)), "batched", (4,), clients=3, batch=5, steps=2, samples=8, classes=2)
    (_, _, one, same), (_, _, _, apart) = gpu.whole_rounds(tiny, "cpu", 1)
    assert (one, float(same)) == ("1.00", 0)
    assert float(apart) < 1e-5

"""Comparisons of tasks made in Python: stored, resumed to the same bits, and known by their content."""

import functools
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.lab.runs import query
from fedstale.tasks.checksum import Content, describe_task
from tests.forks import forked

LOCAL = fs.Local(lr=0.1)
PROGRAM = """
import os, signal, sys, torch
import fedstale as fs

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)  # its buffers are part of every checkpoint
    def forward(self, x):
        return self.norm(self.layer(x))

class Doomed(fs.Supervised):
    def evaluate(self, params, *kept):
        sys.argv[2] = str(int(sys.argv[2]) - 1)  # evaluations that are left; none of our own values may change
        if sys.argv[2] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(params, *kept)

class Lazy(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.y)
    def __getitem__(self, k):
        return self.x[k] + 0.1 * torch.randn(3), self.y[k]  # what it draws is seeded by the batch

def with_momentum(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), context.rate, momentum=0.9)
    if "optimizer" in context.state:
        optimizer.load_state_dict(context.state["optimizer"])
    for x, y in data.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    context.state["optimizer"] = optimizer.state_dict()
    context.state["rounds"] = context.state.get("rounds", 0) + 1

if __name__ == "__main__":
    made = torch.Generator().manual_seed(0)
    clients = [(torch.randn(9, 3, generator=made), torch.arange(9) % 2) for _ in range(4)]
    task = Doomed(Net, clients, clients)
    own = {"kind": "fedavg", "label": "own", "train": with_momentum}  # what its clients keep is, too
    fs.compare(task, ["fedavg", fs.FedStale(0.5), own], fs.Bernoulli(0.5), rounds=8, seeds=(1, 2), engine="serial",
               local=fs.Local(lr=0.1), out=sys.argv[1], evaluate_every=1, checkpoint_seconds=0, resume=True)
    lazy = Doomed(Net, [Lazy(*pair) for pair in clients], clients, buffers="local", personal=["layer.bias"])
    fs.compare(lazy, [{"kind": "fedstale", "label": "personal"}], fs.Bernoulli(0.5), rounds=40, engine="serial",
               local=fs.Local(lr=0.1), out=sys.argv[1], evaluate_every=1, checkpoint_seconds=0, resume=True)
"""


@pytest.fixture
def task() -> fs.Quadratic:
    return fs.Quadratic.random(n=4, d=3)


def fingerprints(found: fs.Comparison) -> dict[str, str]:
    return {run.path.name: run.result()["fingerprint"] for run in found.runs}


def test_it_is_stored_printed_and_not_computed_twice(
    task: fs.Quadratic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "rounds": 6,
        "seeds": (1, 2),
        "local": LOCAL,
        "out": tmp_path / "runs",
        "name": "mine",
    }
    found = fs.compare(task, ["fedavg", {"kind": "fedstale", "beta": 0.3}], fs.Bernoulli(0.5), **settings)
    assert [row["algorithm"] for row in found.rows] == ["fedavg", "fedstale beta=0.3"]
    assert found.runs[0].environment()["command"] == "fs.compare(…, name='mine')"
    assert found.picture.exists()
    assert found.numbers.read_text().startswith("algorithm,seeds,")
    found.table()
    assert "mine: Quadratic, 4 clients, bernoulli(p=0.5), 2 seeds" in capsys.readouterr().out
    before = [run.path.joinpath("result.json").stat().st_mtime_ns for run in found.runs]
    again = fs.compare(task, ["fedavg", fs.FedStale(0.3)], {"kind": "bernoulli", "p": 0.5}, **settings)
    assert "4 of 4 runs were stored already (again=True computes them again)" in capsys.readouterr().err
    assert fingerprints(again) == fingerprints(found)
    assert before == [run.path.joinpath("result.json").stat().st_mtime_ns for run in again.runs]
    fs.compare(task, ["fedavg"], fs.Bernoulli(0.5), **settings | {"again": True})
    assert before[0] != found.runs[0].path.joinpath("result.json").stat().st_mtime_ns


def test_it_equals_simulate_to_the_bit(task: fs.Quadratic, tmp_path: Path) -> None:
    found = fs.compare(
        task, {"mine": fs.strategies.MIFA()}, fs.Bernoulli(0.5), rounds=5, local=LOCAL, out=tmp_path / "runs"
    )
    engine = fs.engine("auto", task, LOCAL)
    *_, last = fs.simulate(engine, fs.strategies.MIFA(), fs.Bernoulli(0.5), rounds=5, seed=1)
    np.testing.assert_array_equal(found.runs[0].params(), last.params)
    assert found.rows[0]["algorithm"] == "mine"


def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert forked(program, tmp_path / "whole", -1).returncode == 0
    for after in (1, 15, 40):  # the last one early in the clients' own layers and lazy data
        assert forked(program, tmp_path / "parts", after).returncode == -signal.SIGKILL
    (begun,) = (tmp_path / "parts").glob("personal*")
    assert not (begun / "params.npy").exists()
    assert forked(program, tmp_path / "parts", -1).returncode == 0
    names = {path.parent.name for path in (tmp_path / "whole").glob("*/config.json")}
    assert len(names) == 7
    for name in names:
        kept = ["buffers.npy"] if not name.startswith("personal") else []  # which stay with the clients there
        kept += ["states.npz"] if name.startswith(("own", "personal")) else []
        for file in ("metrics.jsonl", "params.npy", "clients.json", "config.json", *kept):
            one, other = ((tmp_path / place / name / file).read_bytes() for place in ("whole", "parts"))
            assert one == other, (name, file)
    states = fs.lab.RunFolder(tmp_path / "parts" / next(n for n in names if n.startswith("own"))).client_states()
    assert states is not None
    assert sorted(states) == [0, 1, 2, 3]
    assert 4 * 8 > sum(state["loop"]["rounds"] for state in states.values()) > 8  # of those in which it came


def test_a_changed_model_or_other_data_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "my_own_model.py"
    helper = "import torch\nWIDTH = 2\ndef layer():\n    return torch.nn.Linear(3, WIDTH)\n"
    text = helper + "class Net(torch.nn.Sequential):\n    def __init__(self):\n        super().__init__(layer())\n"

    def name(source: str, shift: float = 0.0) -> str:
        file.write_text(source)
        os.utime(file, ns=(time.time_ns(), time.time_ns() + len(list(tmp_path.iterdir())) * 10**10))
        sys.modules.pop("my_own_model", None)
        importlib.invalidate_caches()
        net = importlib.import_module("my_own_model").Net
        x = np.ones((4, 3), np.float32) * (1 + shift)
        task = fs.Supervised(net, [(x, np.array([0, 1, 0, 1]))] * 2)
        found = fs.compare(task, ["fedavg"], fs.Bernoulli(1.0), rounds=2, local=LOCAL, out=tmp_path / "runs")
        task.evaluate(task.init(0))  # what it computes and keeps is no part of it
        same = fs.compare(task, ["fedavg"], fs.Bernoulli(1.0), rounds=2, local=LOCAL, out=tmp_path / "runs")
        assert same.runs == found.runs
        return found.runs[0].path.name

    first = name(text)
    assert name(text) == first
    assert name(text + "\n\ndef unrelated():\n    return 1\n") == first
    others = [
        name(text.replace("super().__init__(layer())", "super().__init__(layer(), torch.nn.Tanh())")),
        name(text.replace("return torch.nn.Linear(3, WIDTH)", "return torch.nn.Linear(3, WIDTH, bias=False)")),
        name(text.replace("WIDTH = 2", "WIDTH = 3")),
        name(text, shift=0.5),
    ]
    assert len({first, *others}) == 5
    sources = json.loads((tmp_path / "runs" / first / "config.json").read_text())["sources"]
    assert {"my_own_model:Net", "my_own_model:layer"} <= {*sources}


def test_a_version_stands_for_data_that_are_not_read(task: fs.Quadratic, tmp_path: Path) -> None:
    def name(task: fs.Quadratic, version: str) -> str:
        found = fs.compare(
            task, ["fedavg"], fs.Bernoulli(1.0), rounds=2, local=LOCAL, out=tmp_path / "runs", version=version
        )
        return found.runs[0].path.name

    other = fs.Quadratic.random(n=4, d=3, seed=7)
    assert name(task, "1") == name(other, "1") != name(task, "2")
    assert name(task, "") != name(other, "")


class Keeps:
    @functools.cached_property
    def value(self) -> float:
        return 1.0


class Kept(Keeps):
    pass


def test_checksums_see_arrays_closures_and_settings_but_not_identity() -> None:
    def made(width: int) -> Any:
        return lambda: width

    def digest(*values: object) -> str:
        return Content(values).digest()

    assert digest(made(1)) == digest(made(1)) != digest(made(2))
    assert digest(np.arange(3)) != digest(np.arange(3.0)) != digest(np.arange(3.0).reshape(3, 1))
    assert digest({"a": [1, 2]}) == digest({"a": [1, 2]}) != digest({"a": [1, 3]})
    assert digest(fs.FedStale(0.5)) == digest(fs.FedStale(0.5)) != digest(fs.FedStale(0.4))
    kept = Kept()
    before = digest(kept)
    assert kept.value
    assert digest(kept) == before  # also where it is inherited
    with open(os.devnull) as file:
        assert digest(file)  # what cannot be pickled counts by its class


def test_results_of_another_version_are_returned_with_a_warning(task: fs.Quadratic, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "local": LOCAL, "out": tmp_path / "runs"}
    found = fs.compare(task, ["fedavg"], fs.Bernoulli(1.0), **settings)
    place = found.runs[0].path / "environment.json"
    made = json.loads(place.read_text())
    assert made["packages"]["fedstale"].startswith(f"{fs.__version__} (")  # and a hash of the code
    made["packages"] |= {"fedstale": "0.0.1", "numpy": "1.0"}
    place.write_text(json.dumps(made))
    (place.parent / "checksums.json").unlink()
    sentence = rf"1 stored run was computed with fedstale 0.0.1, now {fs.__version__} \(.* and numpy 1.0, now"
    with pytest.warns(UserWarning, match=sentence):
        fs.compare(task, ["fedavg"], fs.Bernoulli(1.0), **settings)


def test_a_changed_strategy_is_another_run_of_its_own_alone(
    task: fs.Quadratic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def names(factor: int) -> dict[str, str]:
        text = "import fedstale as fs\n\ndef scaled(step):\n    return FACTOR * step\n\n@fs.part\nclass Mine:\n"
        text += "    def init(self, n, d):\n        return ()\n"
        text += "    def aggregate(self, state, r):\n        return scaled(r.received().mean(0)), state\n"
        (tmp_path / f"mine_{factor}.py").write_text(f"FACTOR = {factor}\n" + text)
        mine = importlib.import_module(f"mine_{factor}").Mine
        monkeypatch.setattr(mine, "__module__", "mine_1")  # the same module, changed
        algorithms = {"mine": mine(), "fedavg": "fedavg"}
        found = fs.compare(task, algorithms, fs.Bernoulli(1.0), rounds=2, local=LOCAL, out=tmp_path / "runs")
        assert len(query.settings(found.runs)) == 1
        return {run.config()["label"]: run.path.name for run in found.runs}

    one, other = names(1), names(2)
    assert one["mine"] != other["mine"]
    assert one["fedavg"] == other["fedavg"]


def test_what_a_class_inherits_the_defaults_of_a_function_and_the_type_of_an_array_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digests(factor: int, limit: int) -> list[str]:
        text = f"class Base:\n    def f(self):\n        return {factor}\n\nclass Mine(Base):\n    pass\n\n"
        (tmp_path / "inherits.py").write_text(f"{text}LIMIT = {limit}\ndef limited(*, k=LIMIT):\n    return k\n")
        monkeypatch.delitem(sys.modules, "inherits", raising=False)
        importlib.invalidate_caches()
        module = importlib.import_module("inherits")
        return [Content([value]).digest() for value in (module.Mine, module.limited)]

    (mine, limited), (other, same), (again, longer) = digests(1, 5), digests(22, 5), digests(1, 555)
    assert (mine == again) is (limited == same) is True
    assert mine != other
    assert limited != longer
    whole, real = (Content([np.zeros(4, kind)]).digest() for kind in (np.int32, np.float32))
    assert whole != real


def test_metrics_are_known_by_their_source_also_with_a_version() -> None:
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])

    def code(value: float) -> dict[str, str]:
        metrics = {"mine": lambda outputs, y: value}
        task = fs.Supervised(functools.partial(torch.nn.Linear, 3, 2), [(x, y)], [(x, y)], metrics=metrics)
        return describe_task(task, "1")[1]

    assert code(1.0) == code(1.0) != code(2.0)


def test_a_single_run_is_recorded_resumed_and_read_by_the_commands(task: fs.Quadratic, tmp_path: Path) -> None:
    parts = fs.Run(
        fs.Serial(task, LOCAL),
        fs.strategies.MIFA(),
        fs.Bernoulli(0.5),
        rounds=8,
        seed=3,
        server=fs.servers.Momentum(0.5),
    )
    folder = fs.record(parts, tmp_path / "runs", label="mine", evaluate_every=4)
    *_, last = fs.simulate(*parts[:3], rounds=8, seed=3, server=fs.servers.Momentum(0.5))
    np.testing.assert_array_equal(folder.params(), last.params)
    config = folder.config()
    assert (config["label"], config["seed"], config["engine"], config["server"]["kind"]) == (
        "mine",
        3,
        "serial",
        "momentum",
    )
    before = (folder.path / "result.json").stat().st_mtime_ns
    assert fs.record(parts, tmp_path / "runs", label="mine", evaluate_every=4) == folder
    assert (folder.path / "result.json").stat().st_mtime_ns == before
    other = fs.record(parts._replace(strategy=fs.FedAvg()), tmp_path / "runs", evaluate_every=4)
    (setting,) = query.settings([folder, other])
    assert [g.label for g in setting.groups] == ["mine", "fedavg"]
    assert fs.record(parts, tmp_path / "runs", label="mine", target=100, monitor="distance").result()["rounds"] < 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"strategy": fs.FedAvg}, "strategy must be an object such as FedAvg"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"engine": 5}, "engine must be an object such as Serial"),
    ],
    ids=str,
)
def test_a_record_of_nonsense_gets_one_sentence(
    task: fs.Quadratic, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    parts = fs.Run(fs.Serial(task, LOCAL), fs.FedAvg(), fs.Bernoulli(0.5), 2)._replace(**change)
    with pytest.raises(fs.BadInput, match=sentence):
        fs.record(parts, tmp_path / "runs")
    with pytest.raises(fs.BadInput, match=r"run must be fs\.Run\(engine, strategy, participation, rounds\), got 5"):
        fs.record(5, tmp_path / "runs")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task": 5}, "task must be an object such as Quadratic"),
        ({"algorithms": []}, "algorithms must be a list such as"),
        ({"algorithms": "fedavg"}, "algorithms must be a list such as"),
        ({"algorithms": ["fedavgg"]}, "did you mean 'fedavg'"),
        ({"algorithms": [fs.FedAvg]}, "strategy must be an object such as FedAvg"),
        ({"algorithms": [fs.FedAvg(), "fedavg"]}, "needs a label of its own"),
        ({"participation": fs.Bernoulli}, "participation must be an object such as Bernoulli"),
        ({"participation": "bernouli"}, "did you mean 'bernoulli'"),
        ({"participation": 0.5}, "participation must be an object such as Bernoulli"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number, got 2.5"),
        ({"seeds": 3}, "seeds must be a list, such as .1, 2, 3., got 3"),
        ({"seeds": (1, 1)}, "seeds must differ from each other"),
        ({"local": 0.1}, r"local must be an object such as Local\(lr=0.05\), got 0.1"),
        ({"engine": "fast"}, "engine 'fast' is unknown"),
        ({"server": fs.Sgd}, "server must be an object such as Sgd"),
        ({"estimator": 5}, "estimator must be a name or a table"),
        ({"name": "a/b"}, "name must be of letters, digits, "),
    ],
    ids=str,
)
def test_nonsense_gets_one_sentence(
    task: fs.Quadratic, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    arguments: dict[str, Any] = {"task": task, "algorithms": ["fedavg"], "participation": fs.Bernoulli(0.5)}
    arguments |= {"rounds": 2, "local": LOCAL, "out": tmp_path / "runs"} | change
    with pytest.raises(fs.BadInput, match=sentence) as caught:
        fs.compare(**arguments)
    assert "\n" not in str(caught.value)


def test_the_example_of_an_own_model_gets_all_of_the_tooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_model.py"
    lines = [line for line in example.read_text().splitlines()[1:] if line.strip()]
    assert len(lines) <= 25
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(example.read_text().replace('"rounds": 40', '"rounds": 3'))
    done = forked(tmp_path / "own_model.py")
    assert done.returncode == 0, done.stderr
    assert "own-model: Supervised, 12 clients, two-groups(p_min=0.1), 2 seeds" in done.stdout
    assert (tmp_path / "model.pt").exists()
    assert (tmp_path / "runs" / "own-model.png").exists()
    main = importlib.import_module("fedstale.cli.app").command()
    for words in ("list runs", "report runs", "compare runs:fedavg runs:auto"):
        main(words.split(), standalone_mode=False)
    printed = capsys.readouterr().out
    assert "4 runs in 1 setting" in printed
    assert "2 seeds in common" in printed
    run = next(path.name for path in (tmp_path / "runs").glob("auto-s1-*"))
    main(["show", run], standalone_mode=False)
    main(["advise", f"runs/{run}"], standalone_mode=False)
    assert "Supervised was made in Python" in capsys.readouterr().out


def test_a_comparison_and_a_recorded_run_take_a_defence_and_liars(tmp_path):
    task, lie = fs.Quadratic.random(6, 4, noise=0.1), fs.defence.Liars((0,), -15.0)
    settings = {"rounds": 6, "local": fs.Local(lr=0.05), "out": tmp_path, "liars": lie}
    found = fs.compare(task, ["fedstale"], fs.Bernoulli(1.0), **settings, defence=fs.defence.Defence())
    (run,) = found.runs
    assert sum(line["refused"] for line in run.metrics()) == 5  # the liar, from its second update on
    engine = fs.Serial(task, fs.Local(lr=0.05))
    parts = fs.Run(engine, fs.FedStale(), fs.Bernoulli(1.0), 6, 1, defence=fs.defence.Defence(loud=9.0), liars=lie)
    stored = fs.record(parts, tmp_path)
    assert stored.config()["defence"] == {"loud": 9.0}
    assert stored.config()["liars"] == {"clients": [0], "factor": -15.0}
    with pytest.raises(fs.BadInput, match=r"defence must be an object such as Defence\(\), got True"):
        fs.compare(task, ["fedavg"], fs.Bernoulli(1.0), **settings, defence=True)

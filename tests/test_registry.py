"""A name becomes a part in one place; a part of the user's own is named package.module:Name."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import registry
from fedstale.cli.app import command
from fedstale.core import BadInput, Round
from fedstale.lab.build import divide, make_task
from fedstale.lab.plan import plan
from fedstale.lab.schema import check, read

OWN = '''
import dataclasses
from typing import ClassVar
import numpy as np
import torch
import fedstale as fs
from fedstale.data import Dataset

@fs.part
class Always:
    p: float = 1.0
    def probs(self, n): return np.full(n, self.p, np.float32)
    def rows(self, n, rng):
        while True: yield np.ones(n, bool)

@dataclasses.dataclass(frozen=True)
class Halved:
    """FedAvg, half as far."""
    factor: float = 0.5
    def init(self, n, d): return None
    def aggregate(self, state, r): return np.float32(self.factor) * r.updates.mean(axis=0), None

@fs.part
class Tiny:
    width: int = 3
    def build(self, shape, classes): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, classes))

@fs.part
class Turns:
    def split(self, labels, n, rng): return [np.arange(i, len(labels), n) for i in range(n)]

@fs.part
class Coarse:
    folder: str | None = None
    dtype: ClassVar = np.float32
    scaled: ClassVar = False
    def scales(self, largest): return np.ones_like(largest), np.ones_like(largest)
    def decode(self, codes, scale): return codes
    def encode(self, values, inverse, keys, first): return np.round(values, 2)

def squares():
    x = np.zeros((40, 1, 2, 2), np.uint8)
    return Dataset("squares", x, np.arange(40) % 2, 40, 2, (0.5,), (0.5,))

class Net(torch.nn.Sequential):
    def __init__(self, width):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(4, width), torch.nn.Linear(width, 2))

def network(width=3): return Net(width)
def nothing(): return None
def train(model, data, context): return 1.0
half = 1
'''
TEXT = """
rounds = 2
algorithms = [{ kind = "MODULE:Halved", factor = 0.25 }, "fedavg"]
participation = "MODULE:Always"
data = { dataset = "MODULE:squares", clients = 4, partition = "MODULE:Turns" }
model = { kind = "MODULE:Tiny", width = 2 }
local = { lr = 0.1 }
"""


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """An experiment with parts of its own in its folder, and the name of their module."""
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    module = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(OWN)
    path = tmp_path / "own.toml"
    path.write_text(TEXT.replace("MODULE", module))
    return path, module


def test_own_parts_are_found_in_the_folder_of_the_file_and_used(own: tuple[Path, str], tmp_path: Path) -> None:
    path, module = own
    chosen = read(path)
    first = plan(chosen, tmp_path)[0]
    assert first.config["strategy"] == {"kind": f"{module}:Halved", "factor": 0.25}
    assert first.config["participation"] == {"kind": f"{module}:Always", "p": 1.0}
    assert first.algorithm.label == f"{module}:Halved factor=0.25"
    assert divide(chosen.data).train_sizes.tolist() == [8, 8, 8, 8]
    assert make_task(chosen.data, chosen.model.model_dump()).d == 4 * 2 + 2


def test_a_memory_coding_of_ones_own_is_used_also_where_the_compiled_loop_would_be(
    own: tuple[Path, str], tmp_path: Path
) -> None:
    path, module = own
    rule = f"algorithms=[{{ kind = 'mifa', memory = '{module}:Coarse' }}]"
    (first,) = plan(read(path, [rule]), tmp_path)
    assert first.config["strategy"]["memory"] == {"kind": f"{module}:Coarse", "folder": None}
    strategy: Any = first.algorithm.strategy
    for d in (3, 70_000):
        updates, ones = np.full((1, d), 0.126, np.float32), np.ones(1, np.float32)
        r = Round(1, updates[0], np.arange(1), updates, np.ones((1, 1), bool), ones, ones, ones)
        step, _ = strategy.aggregate(strategy.init(1, d), r)
        assert step == pytest.approx(0.13)
    with pytest.raises(BadInput, match="is not a memory coding: it must be a dataclass with scales and encode and"):
        plan(read(path, [rule.replace("Coarse", "Always")]), tmp_path)


def test_the_key_of_a_run_holds_the_source_of_its_own_parts(own: tuple[Path, str], tmp_path: Path) -> None:
    path, module = own
    before = plan(read(path), tmp_path)[0]
    assert {*before.config["sources"]} == {
        f"{module}:{n}" for n in ("Halved", "Always", "squares", "Turns", "Tiny")
    }
    assert "train" not in before.config["local"]
    own = [plan(read(path, [f"local.train={module}:train"]), tmp_path)[0] for _ in range(2)]
    assert own[0].config["local"]["train"] == f"{module}:train" in own[0].config["sources"]  # type: ignore[attr-defined]
    assert own[0].folder.path == own[1].folder.path != before.folder.path  # type: ignore[attr-defined]
    file = path.with_name(f"{module}.py")
    file.write_text(file.read_text() + "# changed")
    assert plan(read(path), tmp_path)[0].folder.path != before.folder.path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("participation=no_such_module:Coins", "there is no module 'no_such_module' in the folder of the file"),
        ("participation=MODULE:Alwas", "'Alwas' is unknown; did you mean 'Always'"),
        ("participation=MODULE:Halved", "is not a participation: it must be a dataclass with probs and rows"),
        ("participation=MODULE:nothing", "is not a participation"),
        ("participation.q=0.5", "setting 'q' is unknown; known: p"),
        ("participation.p=true", "p must be a number, got true"),
        ("algorithms.0.facto=1", "did you mean 'factor'"),
        ("algorithms.0.factor=much", "factor must be a number, got 'much'"),
        ("data.dataset=MODULE:half", "must be a function without arguments, got 1"),
        ("data.dataset=MODULE:square", "did you mean 'squares'"),
        ("data.partition=MODULE:Always", "is not a partition"),
        ("local.train=MODULE:trained", "did you mean 'train'"),
        ("local.train=MODULE:squares", r"train must be a function of \(model, data, context\), got squares"),
        ("algorithms.0.train=MODULE", "train must be a function or its name"),
    ],
    ids=str,
)
def test_what_is_not_a_part_is_told_in_a_sentence(
    own: tuple[Path, str], tmp_path: Path, change: str, sentence: str
) -> None:
    path, module = own
    with pytest.raises(BadInput, match=sentence) as caught:
        plan(read(path, [change.replace("MODULE", module)]), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_and_a_dataset_that_is_none_are_told(own: tuple[Path, str]) -> None:
    path, module = own
    with pytest.raises(BadInput, match=r"must return a fedstale.data.Dataset, got None"):
        divide(read(path, [f"data.dataset={module}:nothing"]).data)
    path.with_name(f"{module}_broken.py").write_text("raise KeyError(1)")
    with pytest.raises(BadInput, match=f"importing {module}_broken failed with KeyError: 1"):
        read(path, [f"data.dataset={module}_broken:x"])


@pytest.mark.parametrize("name", ["Net", "network"])
def test_a_model_is_any_class_or_function_that_makes_a_module(
    own: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, module = own
    model, out = f"model={{kind='{module}:{name}', width=5}}", str(tmp_path / "runs")
    assert make_task(read(path).data, read(path, [model]).model.model_dump()).d == 4 * 5 + 5 + 5 * 2 + 2
    for words in (
        ["run", str(path), "-c", model, "--seeds", "1,2", "-o", out],
        ["report", out, "-o", str(tmp_path / "page.html")],
        ["compare", f"{out}:fedavg", f"{out}:{module}:Halved"],
    ):
        command().main(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert "4 runs in 1 setting" in printed
    assert "2 seeds in common" in printed


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("kind='MODULE:Net', q=1", "cannot be made with {'q': 1}: TypeError"),
        ("kind='MODULE:half'", "cannot be made with {}: TypeError"),
        ("kind='MODULE:nothing'", "must make an nn.Module, got None"),
        ("kind='MODULE:Nett'", "did you mean 'Net'"),
    ],
)
def test_a_model_that_cannot_be_made_is_told_in_a_sentence(
    own: tuple[Path, str], settings: str, sentence: str
) -> None:
    path, module = own
    chosen = read(path, ["model={" + settings.replace("MODULE", module) + "}"])
    with pytest.raises(BadInput, match=sentence):
        make_task(chosen.data, chosen.model.model_dump())


def test_every_name_of_every_table_is_found_and_listed() -> None:
    for kind, names in registry.TABLES.items():
        for name, settings, about in names.rows():
            assert names.find(name, kind) is not None
            assert isinstance(settings, str)
            assert about, f"{kind} {name} has no line about it"


def test_a_recipe_is_listed_in_the_words_of_a_file() -> None:
    told = {name: settings for name, settings, _ in registry.RECIPES.rows()}
    assert told["fedstale"] == "fedstale (beta = 0.5)"
    assert told["fedau"] == "unbiased with intervals"
    assert told["debiased"] == "unbiased with beta-bernoulli (n0 = 1.0, m0 = 0.0)"


def test_the_name_of_a_part_finds_its_class_again() -> None:
    part = registry.PARTICIPATION["exits"](exits=[1, 2])
    assert registry.PARTICIPATION.name_of(part) == "exits"
    assert registry.SERVERS.name_of(registry.SERVERS["adam"]()) == "adam"


def test_a_kind_that_is_a_table_has_no_sources(tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("1")
    assert registry.sources({"kind": {"kind": "sgd"}, "file": str(tmp_path / "weights.csv")}) == {}


def test_an_unknown_name_is_answered_with_the_nearest_of_all_algorithms() -> None:
    raw: dict[str, Any] = {"name": "x", "rounds": 1, "data": {"dataset": "quadratic"}, "local": {"lr": 0.1}}
    raw |= {"participation": {"kind": "two-groups", "p_min": np.float64(0.5)}, "algorithms": ["wiat"]}
    with pytest.raises(BadInput, match="did you mean 'wait'"):
        plan(check(raw), Path("nowhere"))


def test_algorithms_have_the_names_of_their_papers() -> None:
    assert {*registry.RECIPES} >= {
        "fedavg",
        "fedstale",
        "fedvarp",
        "mifa",
        "fedau",
        "ca-fed",
        "f3ast",
        "scaffold",
        "auto",
    }
    assert registry.recipe("fedvarp").strategy == fs.FedStale(1.0)
    assert registry.recipe("fedau").estimator == fs.Intervals()


def test_debiased_divides_by_the_share_of_rounds_with_the_client_this_one_included() -> None:
    made = registry.recipe("debiased")
    assert made.estimator is not None
    belief = made.estimator.init(2)
    for heard in ([True, True], [False, True], [False, True]):
        belief = made.estimator.observe(belief, np.array(heard))
    np.testing.assert_allclose(
        made.estimator.probs(belief), [2 / 4, 4 / 4]
    )  # if both are heard in the fourth round


@pytest.mark.parametrize("table", ["models", "exit-models"])
def test_what_is_not_imported_yet_is_described_as_if_it_were(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = registry.TABLES[table]
    modules = {part.__module__ for part in names.values()}
    imported = names.rows()
    for module in modules:
        monkeypatch.delitem(sys.modules, module)
    assert names.rows() == imported
    assert not modules & {*sys.modules}


class Package:
    """An installed package, as an entry point tells it."""

    name, version = "my-parts", "0.1"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parts that installed packages offer."""
    (tmp_path / "offered.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    class Entry:
        def __init__(self, name: str, value: str) -> None:
            self.name, self.value, self.dist = name, value, Package

    def offer(**parts: str) -> None:
        found = [Entry(name.replace("__", "."), value) for name, value in parts.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: found)
        registry.packaged_parts.cache_clear()

    yield offer
    registry.packaged_parts.cache_clear()
    sys.modules.pop("offered", None)


def test_parts_of_installed_packages_have_names_and_say_whose_they_are(packages: Any) -> None:
    always = "offered:Always"
    packages(participation__always=always, participation__bernoulli=always, strategies__no="offered:No")
    assert registry.PARTICIPATION["always"].__name__ == "Always"
    assert registry.PARTICIPATION["bernoulli"] is fs.Bernoulli  # a name of ours stays ours
    rows = {name: (settings, about) for name, settings, about in registry.PARTICIPATION.rows()}
    assert rows["always"][0] == "p = 1.0"
    assert rows["always"][1].endswith("(from my-parts 0.1)")
    assert registry.PARTICIPATION.name_of(registry.PARTICIPATION["always"]()) == "offered:Always"  # in a run's key
    broken = {name: about for name, _, about in registry.STRATEGIES.rows()}["no"]
    assert broken.startswith("cannot be used: strategy: in module offered the name 'No' is unknown")


def test_an_entry_point_of_no_list_is_named(packages: Any) -> None:
    packages(strategy__half="offered:Half")
    with pytest.warns(UserWarning, match=r"my-parts 0.1: fedstale.parts 'strategy.half' must be LIST.NAME"):
        assert "half" not in registry.STRATEGIES

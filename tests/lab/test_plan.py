"""The plan of an experiment: where its file is found, and what is refused before anything is computed."""

from pathlib import Path
from typing import Any

import pytest

import fedstale as fs
from fedstale.core import BadInput
from fedstale.lab import schema
from fedstale.lab.build import find, make_task, packaged
from fedstale.lab.plan import by_label, digest, plan

RAW: dict[str, Any] = {
    "name": "try",
    "rounds": 3,
    "seeds": [1, 2],
    "algorithms": ["fedavg", {"kind": "fedstale", "beta": 0.8}],
    "data": {"dataset": "quadratic", "clients": 4, "dimension": 3},
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.5},
}


def test_an_experiment_is_found_by_path_or_by_the_name_of_a_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find("demo").read_text() == packaged()["demo"].read_text()
    assert find("some/where.toml") == Path("some/where.toml")
    with pytest.raises(BadInput, match="experiment 'deno' is unknown; did you mean 'demo'"):
        find("deno")
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("rounds = 3")
    assert find("demo") == Path("demo"), "a file of the user's own comes first"


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_experiment_can_be_planned(name: str, tmp_path: Path) -> None:
    assert plan(schema.read(find(name)), tmp_path)


@pytest.mark.parametrize(
    ("change", "what"),
    [({"name": "é" * 101}, "name"), ({"algorithms": [{"kind": "fedavg", "label": "x" * 201}]}, "label")],
)
def test_names_that_no_file_can_have_are_refused(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{what} must be at most 200 bytes long, got 20[12]"):
        plan(schema.check(RAW | change), tmp_path)


def test_runs_are_grouped_by_label_and_an_overridden_experiment_has_another_digest(tmp_path: Path) -> None:
    planned = plan(schema.check(RAW), tmp_path)
    groups = by_label(planned)
    assert {label: [p.seed for p in runs] for label, runs in groups.items()} == {
        "fedavg": [1, 2],
        "fedstale beta=0.8": [1, 2],
    }
    assert digest(planned) == digest(plan(schema.check(RAW), tmp_path / "elsewhere"))
    assert digest(planned) != digest(plan(schema.check(RAW | {"rounds": 4}), tmp_path))


@pytest.mark.parametrize("key", ["clients", "dimension"])
@pytest.mark.parametrize("number", [2**63, 2**64 + 1, 10**11])
def test_numbers_that_no_memory_holds_are_refused_at_once(key: str, number: int) -> None:
    for dataset in ("quadratic", "synthetic", "digits") if key == "clients" else ("quadratic",):
        with pytest.raises(BadInput, match=rf"data\.{key} must be at most 10000000, got"):
            schema.check(RAW | {"data": {"dataset": dataset, key: number}})
    with pytest.raises(BadInput, match="must be at most 1e9 numbers"):
        make_task(
            schema.check(RAW | {"data": {"dataset": "quadratic", "clients": 10**7, "dimension": 10**7}}).data, {}
        )
    with pytest.raises(BadInput, match=r"model\.ridge must be at most 1e\+38"):
        schema.check(RAW | {"model": {"ridge": 1e39}})
    with pytest.raises(BadInput, match="groups must be from 1 to 10000000, got"):
        fs.participation.Cyclic(groups=min(number, 2**63 - 1))
    with pytest.raises(BadInput, match="clusters must be from 1 to 10000000, got"):
        fs.participation.ClusteredMarkov(clusters=10**11, availability=0.5, eigenvalue=0.5)


def test_a_warm_up_has_a_seed_of_its_own_and_is_shared_by_the_algorithms(tmp_path: Path) -> None:
    planned = plan(schema.check(RAW | {"warmup": {"rounds": 3, "lr": 0.1}}), tmp_path)
    pairs = {(p.seed, p.warmup.seed) for p in planned if p.warmup}
    assert len(planned) == 4
    assert len(pairs) == 2
    assert len({seed for pair in pairs for seed in pair}) == 4  # no draw is used twice


def test_a_table_is_known_by_its_name_and_content_wherever_it_is(tmp_path: Path) -> None:
    def names(folder: str, last: int, **more: object) -> list[str]:
        path = tmp_path / folder / "patients.csv"
        path.parent.mkdir()
        rows = [f"{site},{age},{age % 2}" for site in ("a", "b") for age in (40, 51, 62, 73, last)]
        path.write_text("\n".join(["site,age,ill", *rows]) + "\n")
        data = {"csv": str(path), "client": "site", "label": "ill", **more}
        return [p.folder.path.name for p in plan(schema.check(RAW | {"data": data}), tmp_path / "runs")]

    here = names("here", 80)
    assert here == names("there", 80)
    assert here == names("explicit", 80, held_out=0.0, validation=0.0, leave_out=[])  # which are the defaults
    assert not {*here} & {*names("other", 81)}

"""Old names of modules that have moved."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest

import fedstale as fs
from fedstale.core.moved import MOVED


def test_an_old_name_is_the_moved_module_and_the_warning_names_its_new_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("fedstale.experiments", "fedstale.experiments.schema"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = importlib.import_module("fedstale.experiments.schema")
    assert "fedstale.experiments.schema has moved to fedstale.lab.schema" in str(caught[-1].message)
    assert old is importlib.import_module("fedstale.lab.schema")
    assert old.__spec__ is not None
    assert old.__spec__.name == old.__name__ == "fedstale.lab.schema"


def test_every_moved_name_leads_somewhere() -> None:
    for new in MOVED.values():
        assert importlib.util.find_spec(new) is not None


def test_a_name_that_never_was_is_still_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="experience"):
        importlib.import_module("fedstale.experience")


def test_functions_hide_no_package() -> None:
    import fedstale.lab.runs.statistics as statistics

    assert callable(fs.runs)
    assert callable(statistics.spread)


def test_an_old_package_leaves_the_function_of_its_name_callable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fedstale.runs", "fedstale.runs.statistics"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(fs, "runs", fs.runs)  # importing the package sets it
    with pytest.warns(FutureWarning, match=r"has moved to fedstale\.lab\.runs"):
        importlib.import_module("fedstale.runs.statistics")
    with pytest.raises(fs.BadInput, match="but it is not there"):
        fs.runs(tmp_path / "none")

"""The public names: all there, seen by type checkers, and loaded no sooner than they are used."""

import ast
import re
import tomllib
import types
from pathlib import Path

import pytest

import fedstale as fs
from fedstale.core import moved

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


def test_every_public_name_can_be_used_and_is_listed() -> None:
    for name in fs.__all__:
        assert getattr(fs, name) is not None, name
        assert name in dir(fs)


def test_the_version_stands_in_one_place_and_the_citation_agrees() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedstale.__version__"}
    assert f"version: {fs.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {fs.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_name_is_listed_once() -> None:
    assert len({*fs.__all__}) == len(fs.__all__)


def test_type_checkers_see_every_name_that_is_loaded_on_first_use() -> None:
    tree = ast.parse(Path(fs.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {
        (alias.asname or alias.name): {f"{node.module}:{alias.name}", f"{node.module}.{alias.name}"}
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen.keys() == fs.ON_FIRST_USE.keys() <= {*fs.__all__}
    assert [name for name, home in fs.ON_FIRST_USE.items() if home not in seen[name]] == []


def test_a_short_script_needs_about_forty_names_and_completion_shows_the_rooms() -> None:
    short = [name for name in fs.__all__ if not isinstance(getattr(fs, name), types.ModuleType)]
    assert len(short) <= 40
    assert {"strategies", "participation", "estimators", "core", "theory"} <= {*dir(fs)}


@pytest.mark.parametrize(
    "name", ["strategies.MIFA", "core.Round", "servers.Adam", "fed_cis.ExitCNN", "lab.RunFolder"]
)
def test_an_old_flat_name_is_what_its_room_has_and_the_warning_says_so(name: str) -> None:
    room, _, last = name.partition(".")
    with pytest.warns(
        FutureWarning, match=rf"fs\.{last} is now fs\.{name}; the old name goes with the next release"
    ):
        found = getattr(fs, last)
    assert found is getattr(getattr(fs, room), last)


def test_every_name_of_a_room_can_be_used() -> None:
    for room in moved.ROOMS:
        module = getattr(fs, room)
        assert [name for name in module.__all__ if getattr(module, name, None) is None] == [], room


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fedstale' has no attribute 'FedStall'"):
        fs.FedStall  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_import_from_the_top_only(page: Path) -> None:
    deep = re.findall(
        r"^(?:from fedstale\.(?!flower)\S+|import fedstale\.\S+)", page.read_text(encoding="utf-8"), re.M
    )
    assert deep == []

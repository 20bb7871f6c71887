"""The public names: all there, seen by type checkers, and loaded no sooner than they are used."""

import ast
import re
from pathlib import Path

import pytest

import fedstale as fs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("name", fs.__all__)
def test_every_public_name_can_be_used_and_is_listed(name: str) -> None:
    assert getattr(fs, name) is not None
    assert name in dir(fs)


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


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fedstale' has no attribute 'FedStall'"):
        fs.FedStall  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_import_from_the_top_only(page: Path) -> None:
    deep = re.findall(
        r"^(?:from fedstale\.(?!flower)\S+|import fedstale\.\S+)", page.read_text(encoding="utf-8"), re.M
    )
    assert deep == []

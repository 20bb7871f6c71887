"""The documentation is true: its examples run, its tables are complete, its links lead somewhere."""

import dataclasses
import importlib.util
import json
import re
import runpy
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import fedstale as fs
from fedstale import registry as recipes
from fedstale import theory
from fedstale.cli.app import command as command_line
from fedstale.lab import plan as sweep
from fedstale.lab import schema
from fedstale.lab.advise import lessons
from fedstale.lab.advise.rules import RULES
from fedstale.lab.advise.text import held_out_lines
from fedstale.lab.plan import plan
from fedstale.registry import DATASETS, ENGINES, MODELS, PARTITIONS, SWAPS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
GUIDES = [page for page in PAGES if page.parent.name in ("tutorials", "guides")]
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
SECTIONS = {  # the parts that have a section of their own, and on which page
    "strategies": recipes.STRATEGIES,
    "participation": recipes.PARTICIPATION,
    "estimators": recipes.ESTIMATORS,
    "channels": recipes.CHANNELS,
    "servers": recipes.SERVERS,
}
ROWS = {  # the names that have a row in some table of a page
    "strategies": recipes.RECIPES,
    "experiments": {**PARTITIONS, **SWAPS, **MODELS, **DATASETS, **ENGINES},
}
REST: dict[str, Any] = {  # what an example leaves out
    "name": "docs",
    "rounds": 3,
    "algorithms": ["fedavg"],
    "data": {"dataset": "quadratic", "clients": 12, "dimension": 3},
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.5},
}
SIMPLE = (bool, int, float, str, type(None))
LONG = [pytest.param(page, marks=pytest.mark.slow) if page in GUIDES else page for page in PAGES]  # they train
pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
parts = pytest.mark.parametrize(("page", "name"), [(page, name) for page in SECTIONS for name in SECTIONS[page]])


class Block(NamedTuple):
    language: str
    line: int  # of the file, where its text begins
    text: str
    note: str  # of the comment before it: "not run", or "file: NAME" for a text that later commands read


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"(?:<!-- (.*?) -->\s*\n)?^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        yield Block(found[2], text[: found.start(3)].count("\n") + 1, found[3], found[1] or "")


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of the lines `$ fedstale …` of a block, without comments."""
    for line in block.text.splitlines():
        if line.startswith("$ fedstale "):
            yield shlex.split(line.removeprefix("$ fedstale "), comments=True)


def read(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """From a heading to the next."""
    found = re.search(rf"^#+ {re.escape(heading)}.*?\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert found, f"there is no heading {heading!r}"
    return re.sub(r"^```.*?^```$", "", found[1], flags=re.M | re.S)


def rows(text: str) -> dict[str, str]:
    """`name` → second cell, of all table rows that begin with a name."""
    return {m[1]: m[2].strip() for m in re.finditer(r"^\| `([^`|]+)` \|([^|\n]*)\|", text, re.M)}


def settings(text: str, head: str) -> dict[str, str]:
    """The rows of the table whose first heading is `head`."""
    found = re.search(rf"^\| {head} \| default \|.*?\n((?:\|.*\n)+)", text, re.M)
    return rows(found[1]) if found else {}


def written(default: Any) -> str:
    """As tables write it: the TOML form, or a dash where it is left out."""
    if isinstance(default, str):
        return f'"{default}"'
    return "—" if default is None else str(default).lower()


@pytest.mark.parametrize("page", LONG, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order, in one namespace; then its TOML blocks, which may name files they wrote."""
    namespace = _namespace(tmp_path, monkeypatch)
    for block in blocks(page):
        if block.note == "not run":
            continue
        if block.note.startswith("file: "):
            Path(block.note.removeprefix("file: ")).write_text(block.text)
        elif block.language == "python":
            _execute(block.text, page, namespace, block.line)
        elif block.language == "console" and page in GUIDES:
            for arguments in commands(block):
                _run(arguments)
    for block in blocks(page):
        if block.language == "toml" and block.note != "not run":
            _check_toml(block, tmp_path)


def _namespace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The namespace of a module that can be imported, because some checks pickle classes of an example."""
    monkeypatch.chdir(folder)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    return vars(module)


def _execute(text: str, page: Path, namespace: dict[str, Any], line: int = 1) -> None:
    exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)


def _run(arguments: list[str]) -> None:
    """A command of a guide; of training, a few rounds are enough to see that the lines fit together."""
    short = ["-c", "rounds=3", "--seeds", "1,2"] if arguments[0] == "run" else []
    command_line()([*arguments, *short], standalone_mode=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells in order, as plain Python: without magics no kernel is needed, which would be ten more packages.

    They print what is stored beside them, but for the last number of a line, which may be a speed.
    """
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace = _namespace(tmp_path, monkeypatch)
    cells = [cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        _execute("".join(cell["source"]), page, namespace)
        stored = "".join("".join(output.get("text", ())) for output in cell["outputs"])
        assert re.sub(r" +[\d.]+ *$", "", capsys.readouterr().out, flags=re.M) == re.sub(
            r" +[\d.]+ *$", "", stored, flags=re.M
        )
    namespace["plt"].close("all")


def test_the_example_of_an_own_strategy_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The other example, Fed-CIS, trains for half a minute; docs/fed-cis.md executes what it uses."""
    runpy.run_path(str(ROOT / "examples" / "own_strategy.py"), run_name="__main__")
    assert "Median() " in capsys.readouterr().out


@pages
def test_commands_exist(page: Path) -> None:
    """Every `$ fedstale …` line names a command and options that there are."""
    for block in blocks(page):
        for arguments in commands(block):
            _parse(command_line(), [*arguments])


def _parse(command: click.Command, arguments: list[str]) -> None:
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    command.make_parser(click.Context(command)).parse_args(arguments)


def _check_toml(block: Block, folder: Path) -> None:
    """Every part of the example can be built, with the rest of an experiment where it has none."""
    given = tomllib.loads(block.text)
    rest = REST | ({"data": {"dataset": "digits", "clients": 12}} if "model" in given else {})
    chosen = sweep.cells(rest | given)[0].experiment
    planned = plan(chosen, folder)
    planned[0].participation.probs(chosen.data["clients"])


@parts
def test_a_part_has_a_section_with_formula_examples_and_settings(page: str, name: str) -> None:
    cls = SECTIONS[page][name]
    heading = f"`{name}`: {cls.__name__}"
    text = read(page)
    assert f"## {heading}\n" in text, f"docs/{page}.md has no section {heading}"
    body = text[text.index(f"## {heading}\n") :].split("\n## ")[0]
    assert {"```python", "```toml"} <= {*body.split("\n")}
    assert {"```math", "```text"} & {*body.split("\n")}  # a formula, or what a part without one prints
    fields = [f for f in dataclasses.fields(cls) if f.init]
    told = settings(section(text, heading), "setting")
    assert list(told) == [f.name for f in fields]
    for field in fields:
        if field.default is dataclasses.MISSING:
            assert told[field.name] == "required"
        elif isinstance(field.default, SIMPLE):
            assert told[field.name] == written(field.default), field.name


@pages
def test_formulas_are_set_as_formulas(page: Path) -> None:
    for block in blocks(page):
        count = lambda pattern, text=block.text: len(re.findall(pattern, text))  # noqa: E731
        if block.language == "text":
            assert not count(r"Σ_|Σ a_i|[_a-z] ← "), f"line {block.line}"
        elif block.language == "math":
            pairs = [
                (r"\\begin\{", r"\\end\{"),
                (r"(?<!\\)\{", r"(?<!\\)\}"),
                (r"\\left(?!arrow)", r"\\right(?!arrow)"),
            ]
            assert all(count(opened) == count(closed) for opened, closed in pairs), f"line {block.line}"


@pytest.mark.parametrize(("page", "name"), [(page, name) for page in ROWS for name in ROWS[page]])
def test_a_name_has_a_row(page: str, name: str) -> None:
    assert name in rows(read(page)), f"docs/{page}.md has no row for {name}"


def test_the_generated_pages_are_complete() -> None:
    """Every public name, key and command is on its page; a key without a comment beside it is a KeyError."""
    site = _site()
    written = site.api()
    public = [name for name in fs.__all__ if not isinstance(getattr(fs, name), types.ModuleType)]
    assert [name for name in public if not re.search(rf"(:: |fedstale\.|fs\.){name}\b", written)] == []
    assert {*schema.Experiment.model_fields} <= {*rows(site.keys())}
    for name in command_line().commands:
        assert f"## `fedstale {name}`" in site.commands()
    assert {*recipes.RECIPES} <= {*rows(site.names())}


def test_a_docstring_becomes_what_sphinx_reads() -> None:
    lines = ["step = Σ_S a_i* of `x` and |S|.", "", "    a = b_", "", "end"]
    _site().to_rst(None, "class", "", None, None, lines)
    assert lines == ["step = Σ\\_S a\\_i\\* of ``x`` and \\|S\\|.", "", "::", "", "    a = b_", "", "end"]


def _site() -> Any:
    """The extension that writes the generated pages; it needs no Sphinx."""
    spec = importlib.util.spec_from_file_location("site_extension", DOCS / "site_extension.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_which_one_is_what_advise_says() -> None:
    """One answer: the rules of `advise`, in their order, on both pages."""
    advised = [rule.use for rule in RULES]
    short = re.findall(r"\| `([\w-]+)` \|$", section(read("strategies"), "Which one?"), re.M)
    assert short == advised
    cells = [line.split("|")[2] for line in section(read("advise"), "The rules").splitlines() if line[:2] == "| "]
    assert [re.findall(r"`([\w-]+)`", cell)[0] for cell in cells if "`" in cell] == advised


def test_the_test_of_the_advice_is_that_of_the_packaged_table() -> None:
    """Written by `fedstale advise --held-out > docs/held_out.md`."""
    assert (DOCS / "held_out.md").read_text(encoding="utf-8").splitlines() == [*held_out_lines(lessons.read())]


def test_the_house_is_described_room_by_room() -> None:
    told = section((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "Where things are")
    source = ROOT / "src" / "fedstale"
    rooms = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert {name for name in re.findall(r"`([\w.]+/?)`", told) if name in rooms | modules} == rooms | modules


def test_the_functions_of_the_theory_are_all_there() -> None:
    own = [
        name
        for name, value in vars(theory).items()
        if callable(value)
        and value.__module__.startswith(theory.__name__)
        and name.islower()
        and not name.startswith("_")
    ]
    headings = " ".join(re.findall(r"^## (.*)$", read("theory"), re.M))
    assert len(own) > 10
    assert [name for name in own if not re.search(rf"\b{name}\b", headings)] == []


def test_the_formulas_of_the_papers_have_names_that_exist() -> None:
    told = read("reference/papers")
    functions = {name for name in theory.__all__ if name.islower()}
    aids = {"normalised", "spread", "stationary", "summary", "two_state"}  # numbers of the papers, not results
    assert {*re.findall(r"`fs\.theory\.(\w+)`", told)} == functions - aids
    names = {name for table in recipes.TABLES.values() for name in table}
    settings = {"algorithms", "beta", "visits"}
    assert {*re.findall(r"`([a-z][a-z0-9-]+)`", told)} - names == settings


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}; there is {sorted(anchors(file))}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 125

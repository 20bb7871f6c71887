"""The command line as a whole: its commands, options, version and completion."""

import importlib.metadata
import subprocess
import sys

import pytest

from fedstale.cli.app import Commands, summary
from tests.cli.commands import fedstale, process


def test_the_version_is_that_of_the_package() -> None:
    assert process("--version").stdout == f"fedstale {importlib.metadata.version('fedstale')}\n"


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    done = fedstale("rnu")
    assert done.returncode == 2
    assert "Did you mean 'run'?" in done.stderr


def test_every_command_explains_itself() -> None:
    text = fedstale("--help").stdout
    for name, command in Commands().items():
        assert name in text
        assert command.help == summary(name) != "", name


@pytest.mark.parametrize("words", [[], ["run"], ["arena", "run"], ["report"], ["ui"]], ids=" ".join)
def test_help_names_no_types_of_flags(words: list[str]) -> None:
    text = fedstale(*words, "--help").stdout
    assert "--help" in text
    assert "<bool>" not in text
    assert "list[" not in text


def test_options_are_spelled_alike() -> None:
    spelled: dict[str, set[tuple[str, ...]]] = {}
    for command in Commands().values():
        for option in command.params:
            if option.opts[0].startswith("-"):
                for name in option.opts:
                    spelled.setdefault(name, set()).add(tuple(sorted(option.opts)))
    assert spelled["-c"] == {("--config", "-c")}
    assert spelled["-o"] == spelled["--out"] == {("--out", "-o")}


def test_commands_that_only_read_load_nothing_heavy() -> None:
    code = """
import sys
import typer
bare = typer.Typer()
bare.command()(lambda word=typer.Argument(None): None)
bare([], standalone_mode=False)
its_own = {*sys.modules}  # newer versions of typer check values with pydantic
from fedstale.cli.app import command
for words in (["list"], ["--help"], ["list", "--help"], ["show", "--help"], ["inspect", "--help"]):
    command()(words, standalone_mode=False)
light = {"torch", "numba", "matplotlib", "scipy", "pydantic", "http.client"} & ({*sys.modules} - its_own)
import fedstale.cli.run
print(*sorted(light), *sorted({"torch", "numba", "matplotlib", "scipy"} & {*sys.modules}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"bash": {"COMP_WORDS": "fedstale re", "COMP_CWORD": "1"}}
    other = {"_TYPER_COMPLETE_ARGS": "fedstale re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in {"_FEDSTALE_COMPLETE": f"complete_{shell}", **asked.get(shell, other)}.items():
        monkeypatch.setenv(name, value)
    done = fedstale()
    assert [name for name in ("report", "reproduce") if name not in done.stdout] == []
    assert "inspect" not in done.stdout

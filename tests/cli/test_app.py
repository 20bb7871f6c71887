"""The command line as a whole: its commands, options, version and completion."""

import importlib.metadata

import pytest

from fedstale.cli.app import Commands
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
        assert command.help, name


def test_options_are_spelled_alike() -> None:
    spelled: dict[str, set[tuple[str, ...]]] = {}
    for command in Commands().values():
        for option in command.params:
            if option.opts[0].startswith("-"):
                for name in option.opts:
                    spelled.setdefault(name, set()).add(tuple(sorted(option.opts)))
    assert spelled["-c"] == {("--config", "-c")}
    assert spelled["-o"] == spelled["--out"] == {("--out", "-o")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"bash": {"COMP_WORDS": "fedstale re", "COMP_CWORD": "1"}}
    other = {"_TYPER_COMPLETE_ARGS": "fedstale re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in {"_FEDSTALE_COMPLETE": f"complete_{shell}", **asked.get(shell, other)}.items():
        monkeypatch.setenv(name, value)
    done = fedstale()
    assert [name for name in ("report", "reproduce") if name not in done.stdout] == []
    assert "inspect" not in done.stdout

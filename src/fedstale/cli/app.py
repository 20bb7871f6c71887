"""The command `fedstale`: its subcommands, one file each in this folder, and its exit codes.

0    done
2    an argument, a setting or a file cannot be used
3    a run diverged; the other runs are finished
4    the disk or a file failed
5    a federation has trained, but its last rounds heard too little of the objective's weight
130  interrupted; the same command with --resume continues
"""

import ast
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import typer
import typer.core

from fedstale.core import BadInput
from fedstale.core.parts import NO_OWN_PARTS
from fedstale.simulate import Diverged, Interrupted
from fedstale.view.terminal.console import say

COMMANDS = {  # name → module in this folder and its function, or its Typer app
    "new": "new:new",
    "run": "run:run",
    "list": "list:list_names",
    "show": "show:show",
    "compare": "compare:compare",
    "report": "report:report",
    "ui": "ui:ui",
    "watch": "watch:watch",
    "export": "export:export",
    "inspect": "inspect:inspect",
    "advise": "advise:advise",
    "privacy": "privacy:privacy",
    "diagnose": "diagnose:diagnose",
    "reproduce": "reproduce:reproduce",
    "arena": "arena:app",
    "federation": "federation:app",
    "bench": "bench:bench",
}
NO_TORCH = "this needs PyTorch, which is not installed; `pip install torch` installs it"


class Group(typer.core.TyperGroup):
    """The command line, whose help names its subcommands without loading them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.commands: Any = {name: typer.core.TyperCommand(name, help=summary(name)) for name in COMMANDS}
        super().format_help(ctx, formatter)


def summary(name: str) -> str:
    """The help of a subcommand as its source has it: loading all of them would take a second."""
    module, _, attribute = COMMANDS[name].partition(":")
    for node in ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute:
            (text,) = (word.value for word in cast(ast.Call, node.value).keywords if word.arg == "help")
            return str(ast.literal_eval(text))
    return ""


app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedstale {importlib.import_module('fedstale').__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    no_own_parts: Annotated[
        bool,
        typer.Option("--no-own-parts", help='Refuse files that name code, "module:Name": run, resume, ui, all.'),
    ] = False,
) -> None:
    """Federated learning for clients that come and go."""
    if no_own_parts:
        os.environ[NO_OWN_PARTS] = "1"  # of the processes that compute as well


class Commands(Mapping[str, Any]):
    """The subcommands by name; each is imported when it is looked up, so that none loads another's modules."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(importlib.import_module(f"fedstale.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(name)(function)
        command: Any = typer.main.get_command(found)
        command.name = name
        _plain_flags(command)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _plain_flags(command: Any) -> None:
    """Leave out types that newer versions of typer print: `<bool>` of a flag, `<list[Path]>` of several paths."""
    for param in command.get_params(typer.Context(command)):  # with --help, which is none of `params`
        if isinstance(param, typer.core.TyperOption) and param.is_flag:
            param.metavar = ""
        elif param.nargs == -1:
            param.display_type_rich = lambda **_: None
    for inner in command.commands.values() if isinstance(command, typer.core.TyperGroup) else ():
        _plain_flags(inner)


def command() -> Any:
    """The whole command line as a click command."""
    group: Any = typer.main.get_command(app)
    _plain_flags(group)
    group.commands = Commands()
    return group


def main() -> None:
    """Run the command line; an expected failure ends it with one sentence and an exit code."""
    warn = cache(lambda text: say(f"warning: {text}", style="yellow"))  # the same sentence once
    warnings.showwarning = lambda message, *_, **__: warn(str(message))
    try:
        command()(prog_name="fedstale")
    except BadInput as error:
        _fail(str(error), 2)
    except Diverged as error:
        _fail(str(error), 3)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        _fail(NO_TORCH, 2)
    except OSError as error:
        full = "; free some space, then the same command with --resume goes on" * (error.errno == errno.ENOSPC)
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}{full}", 4)
    except (Interrupted, KeyboardInterrupt):
        _fail("interrupted; the same command with --resume goes on from here", 130)


def _fail(sentence: str, code: int) -> None:
    say(f"fedstale: {sentence}")
    sys.exit(code)

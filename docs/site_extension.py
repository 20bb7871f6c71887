"""The generated part of the site: command line, TOML keys, names of parts, API, and notebooks as pages.

A page asks for generated text by a line `<!-- generated: NAME -->`; NAME is a function below that returns
Markdown. Docstrings are plain text with `code` and indented formulas, not reStructuredText, so they are
converted before autodoc parses them.
"""

import ast
import dataclasses
import importlib.util
import inspect
import json
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import fedstale
from fedstale.cli.app import command as command_line
from fedstale.core import Local
from fedstale.flower import HOMES
from fedstale.lab import schema
from fedstale.registry import TABLES

ROOMS = {  # public submodule → its heading on the API page; its names are those of its __all__
    "strategies": "server rules",
    "participation": "who is available",
    "estimators": "how p is learned",
    "channels": "what is lost on the way",
    "servers": "what is done with a step",
    "schedules": "learning rates and amounts of work",
    "memory": "the last update of every client",
    "defence": "clients that lie",
    "engines": "how local training runs",
    "tasks": "samples that are not copied",
    "lab": "the folder of a run",
    "core": "records, protocols and hooks",
}
SPEC = "name, or table with `kind`"
LISTED = {"number": "numbers", "whole number": "whole numbers", SPEC: "names or tables"}
MODULES = ("data", "models", "clock", "fed_cis", "theory", "testing")  # public modules with names of their own


def setup(app: Any) -> dict[str, bool]:
    rooms = {name: getattr(fedstale, name) for name in ROOMS}  # autodoc imports them by the names that users write
    sys.modules.update({f"fedstale.{name}": room for name, room in rooms.items()})
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}


def fill(app: Any, docname: str, source: list[str]) -> None:
    """Turn a notebook into Markdown and put generated text in its places."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = notebook(json.loads(source[0]))
    source[0] = re.sub(r"^<!-- generated: (\w+) -->$", lambda m: GENERATED[m[1]](), source[0], flags=re.M)


def notebook(content: dict[str, Any]) -> str:
    """The cells of a notebook as Markdown, with the texts and pictures that it has stored."""
    cells = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        cells.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            printed, png = "".join(output.get("text", ())), output.get("data", {}).get("image/png", "").strip()
            cells += [f"```text\n{printed}```"] if printed else []
            cells += [f"![What the cell draws](data:image/png;base64,{png})"] if png else []
    return "\n\n".join(cells) + "\n"


def to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """A docstring in plain text as reStructuredText: `x` becomes code, an indented block a literal block."""
    out: list[str] = []
    block = False
    for line in lines:
        if line.startswith("  ") and line.strip() and (block or not out or not out[-1].strip()):
            if not block:
                out += ["::", ""]
            block = True
        elif line.strip():
            block = False
        out.append(line if block else _inline(line))
    lines[:] = out


def _inline(line: str) -> str:
    code = re.split(r"(`+[^`]+`+)", line)
    plain = [re.sub(r"([*|_\\])", r"\\\1", text) for text in code[::2]]
    marked = ["``" + text.strip("`") + "``" for text in code[1::2]]
    joined = plain[0]
    for mark, text in zip(marked, plain[1:], strict=True):
        joined += ("\\ " if joined[-1:].isalnum() else "") + mark + ("\\ " if text[:1].isalnum() else "") + text
    return joined


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out the fields that a NamedTuple documents as `Alias for field number 0`."""
    return True if (inspect.getdoc(obj) or "").startswith("Alias for field number") else None


def commands() -> str:
    """Every command with its arguments and options, from the typer application."""
    return "\n".join(_command(command_line(), "fedstale", 2))


def _command(command: click.Command, name: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    inner = getattr(command, "commands", {})
    if level > 2 or not inner:
        yield f"{'#' * min(level - 1, 3)} `{name}`\n"
    yield f"{command.help or ''}\n"
    if not inner:
        yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = [_parameter(p) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        yield _table(("argument or option", "default", "meaning"), rows)
    for key, child in inner.items():
        if not child.hidden:
            yield from _command(child, f"{name} {key}", level + 1)


def _parameter(p: click.Parameter) -> tuple[str, str, str]:
    names = ", ".join(f"`{n}`" for n in [*p.opts, *p.secondary_opts]) if isinstance(p, click.Option) else ""
    shown = names or f"`{p.human_readable_name}`"
    missing = p.default is None or callable(p.default) or str(p.default) == "Sentinel.UNSET"
    default = "required" if p.required else "" if missing or p.default is False else f"`{_default(p.default)}`"
    return shown, default, getattr(p, "help", None) or ""


def _default(value: Any) -> str:
    return str(getattr(value, "value", value))


def keys() -> str:
    """Every key of an experiment, section by section, from the pydantic models."""
    out = ["## Top level\n", _fields(schema.Experiment)]
    for name, field in schema.Experiment.model_fields.items():
        for model in _models(field.annotation):
            out += [f"## `[{name}]`\n", _about(model), _fields(model)]
    for model in dict.fromkeys(schema.DATA.values()):
        names = [f"`{key}`" for key, value in schema.DATA.items() if value is model]
        out += [f"## `[data]` with dataset {', '.join(names)}\n", _about(model), _fields(model)]
        for key, field in model.model_fields.items():
            for inner in _models(field.annotation):
                out += [f"### `[data.{key}]`\n", _about(inner), _fields(inner)]
    return "\n".join(out)


def _models(annotation: Any) -> list[type[BaseModel]]:
    found = [annotation, *typing.get_args(annotation)]
    return [m for m in found if isinstance(m, type) and issubclass(m, BaseModel)]


def _about(model: type[BaseModel]) -> str:
    own = model.__doc__ if model.__doc__ is not model.__mro__[1].__doc__ else None
    return f"{inspect.cleandoc(own)}\n" if own else ""


def _fields(model: type[BaseModel]) -> str:
    rows = []
    comments = _comments(model)
    for name, field in model.model_fields.items():
        filled_in = "if left out" in comments[name]  # such as the name, which is the file's
        default = "required" if field.default is PydanticUndefined and not filled_in else ""
        if isinstance(field.default, bool | int | float | str | list):
            default = f"`{json.dumps(field.default)}`"
        allowed = ", ".join(filter(None, [_type(field.annotation), *map(_limit, field.metadata)]))
        rows.append((f"`{name}`", comments[name], allowed, default))
    rows += _settings(Local, {*model.model_fields}) if issubclass(model, schema.Training) else []
    return _table(("key", "meaning", "allowed", "default"), rows)


def _settings(part: type, known: set[str]) -> list[tuple[str, str, str, str]]:
    """The rows of a part's settings, without those that are known already."""
    comments, hints = _comments(part), typing.get_type_hints(part)
    fields = [f for f in dataclasses.fields(part) if f.name not in known]  # type: ignore[arg-type]
    defaults = {f.name: "" if f.default is None else f"`{json.dumps(f.default)}`" for f in fields}
    allowed = {name: SPEC if "Callable" in str(hint) else _type(hint) for name, hint in hints.items()}
    return [(f"`{name}`", comments[name], allowed[name], default) for name, default in defaults.items()]


def _comments(model: type) -> dict[str, str]:
    """The comment beside each field of a section, which is what the key means."""
    text = "".join(inspect.getsource(cls) for cls in model.__mro__ if cls.__module__ == model.__module__)
    return {m[1]: m[2] for m in re.finditer(r"^    (\w+): [^\n#]*# (.*)$", text, re.M)}


def _limit(constraint: Any) -> str:
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = [f"{word} {getattr(constraint, key)}" for key, word in signs.items() if hasattr(constraint, key)]
    return " ".join(found)


def _type(annotation: Any) -> str:
    """The TOML word for a Python type."""
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
    inner = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if annotation in names:
        return names[annotation]
    if _models(annotation) or annotation == schema.Table:
        return "section"
    if annotation == schema.Spec:
        return SPEC
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in inner)
    if origin is list:
        return f"list of {LISTED.get(_type(inner[0]), _type(inner[0]))}"
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(_type, inner))))
    return "any"


def names() -> str:
    """Every name that an experiment may use, with its settings: what `fedstale list` prints."""
    out = []
    for title, names_of_kind in TABLES.items():
        cells = [
            (f"`{name}`", about, f"`{settings}`" if settings else "")
            for name, settings, about in names_of_kind.rows()
        ]
        out += [
            f"## {title[0].upper()}{title[1:].replace('-', ' ')}\n",
            _table(("name", "what it is", "settings"), cells),
        ]
    return "\n".join(out)


def api() -> str:
    """The public names of fedstale: those of short scripts, then room by room."""
    short = [name for name in fedstale.__all__ if not isinstance(getattr(fedstale, name), types.ModuleType)]
    out = ["## What a short script writes\n", *(_entry(name) for name in sorted(short, key=str.lower))]
    for room, title in ROOMS.items():
        module = getattr(fedstale, room)
        names = [name for name in sorted(module.__all__, key=str.lower) if _public(room, getattr(module, name))]
        out += [f"## fs.{room}: {title}\n", *(_entry(f"{room}.{name}") for name in names if name not in short)]
    for module in MODULES:
        imported = "\n   :imported-members:" if hasattr(getattr(fedstale, module), "__all__") else ""
        name, seen = getattr(fedstale, module).__name__, ", ".join(short)
        out += [
            f"## fedstale.{module}\n",
            _rst(f".. automodule:: {name}\n   :members:{imported}\n   :exclude-members: {seen}"),
        ]
    out += ["## fedstale.flower\n", *(_unloaded(name, home) for name, home in sorted(HOMES.items()))]
    return "\n".join(out)


def _unloaded(name: str, home: str) -> str:
    """A function or class read from its source file, because its module needs flwr."""
    spec = importlib.util.find_spec(home)
    assert spec
    assert spec.origin
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)
    lines = (ast.get_docstring(node) or "").splitlines()
    to_rst(None, "", name, None, None, lines)
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    arguments = "" if isinstance(node, ast.ClassDef) else f"({', '.join(a.arg for a in node.args.args)})"
    text = "\n".join(f"   {line}" for line in lines)
    return _rst(f".. py:currentmodule:: fedstale.flower\n\n.. py:{kind}:: {name}{arguments}\n\n{text}")


def _public(room: str, thing: Any) -> bool:
    """Whether a name of a room is for users: of `core` the records, protocols and arrays, and `hooks_of`."""
    kind = isinstance(thing, type) or typing.get_origin(thing) is np.ndarray or thing is fedstale.core.hooks_of
    return kind or (room != "core" and inspect.isfunction(thing))


def _entry(name: str) -> str:
    thing = operator.attrgetter(name)(fedstale)
    if typing.get_origin(thing) is np.ndarray:
        return f"**`fs.{name}`** is a numpy array of {typing.get_args(typing.get_args(thing)[1])[0].__name__}.\n"
    if not isinstance(thing, type):
        return _rst(f".. autofunction:: fedstale.{name}")
    if not (issubclass(thing, tuple) or getattr(thing, "_is_protocol", False)):
        return _rst(f".. autoclass:: fedstale.{name}\n   :members:")
    source = inspect.getsource(thing)  # of records and protocols: comments and signatures document them best
    return _rst(f".. py:currentmodule:: fedstale\n\n.. py:class:: {name}") + f"\n```python\n{source}```\n"


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


GENERATED: dict[str, Callable[[], str]] = {"commands": commands, "keys": keys, "names": names, "api": api}

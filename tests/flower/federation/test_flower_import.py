"""`fedstale.flower`: the only import that an app, a template or the docs of a federation need."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedstale.flower
from fedstale.cli.new import template

ROOT = Path(__file__).parents[3]
OURS = [template("federation-app") / "learning" / f"{name}.py.txt" for name in ("client", "server")]
APPS = [p.read_text() for p in (*OURS, *ROOT.glob("examples/federation/app/*/*.py"))]


def test_type_checkers_see_the_names_that_are_loaded_on_first_use():
    tree = ast.parse(Path(fedstale.flower.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    named = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in named for alias in node.names} == fedstale.flower.HOMES
    assert sorted(fedstale.flower.HOMES) == fedstale.flower.__all__


@pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed here")
@pytest.mark.parametrize("name", fedstale.flower.__all__)
def test_a_public_name_is_that_of_its_module(name):
    assert getattr(fedstale.flower, name).__module__ == fedstale.flower.HOMES[name]


def test_a_name_that_is_gone_names_its_successor():
    with pytest.raises(ImportError, match=r"is gone: server_app\(start\).*FedStale\(rule\)"):
        from fedstale.flower import FedstaleStrategy  # noqa: F401


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'servers_app'"):
        _ = fedstale.flower.servers_app


@pytest.mark.parametrize("text", [*APPS, (ROOT / "docs" / "deployment.md").read_text()])
def test_apps_and_docs_import_from_the_public_place_only(text):
    assert "fedstale.flower.federation." not in text.replace("tests.flower.federation.", "")

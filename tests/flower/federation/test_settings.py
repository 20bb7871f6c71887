"""federation.toml and the files that `init` writes; no processes."""

import ast
import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedstale.cli import federation as cli
from fedstale.cli.new import template
from fedstale.core import BadInput
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import control, runner
from fedstale.flower.federation.ops.keys import public_hash
from fedstale.flower.federation.state import roster
from fedstale.flower.federation.state.manifest import committed_round, write_manifest
from fedstale.participation.estimators import BetaBernoulli, Intervals
from fedstale.registry import RECIPES, recipe
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, N, played, server

RAW = {"name": "x", "rounds": 3, "local": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"round": {"dedline": 3.0}}, "did you mean 'deadline'"),
        ({"strategy": "fedstal"}, "did you mean 'fedstale'"),
        ({"strategy": "feadu"}, "did you mean 'fedau'"),
        ({"round": {"target": 2, "quorum": 3}}, "round.target must be 0 or at least the quorum, 3, got 2"),
        ({"round": {"target": 2}, "strategy": "f3ast"}, "which selects the clients itself, got 2"),
        ({"round": {"ask": 1.3}}, "round.ask is a multiple of round.target, which must be above 0, got ask = 1.3"),
        ({"strategy": "fedou"}, "did you mean 'fedau'"),
        ({"strategy": {"kind": "auto", "channel": "loss"}}, "setting 'channel' is unknown"),
        ({"strategy": {"kind": "fedstale", "beta": 2.0}}, r"beta must be in \[0, 1\]"),
        ({"round": {"deadline": 0.0}}, "round.deadline"),
        ({"link": {"port": 0}}, "link.port"),
        ({"estimator": "known"}, "needs p"),
        ({"local": {}}, "local.lr is missing"),
        ({"local": {"lr": 0.1, "train": "os.path:join"}}, "real clients bring their training loop in their app"),
        ({"seed": -1}, "seed"),
    ],
    ids=str,
)
def test_a_mistake_is_told_in_a_sentence(tmp_path, change, sentence):
    settings.check(tmp_path, RAW)
    with pytest.raises(BadInput, match=sentence):
        settings.check(tmp_path, RAW | change)


SIMULATED = ("fedawe", "fedpbc", "focus")  # what clients would have to do is not in a federation's orders


@pytest.mark.parametrize("name", SIMULATED)
def test_rules_for_simulations_are_refused(tmp_path, name):
    with pytest.raises(BadInput, match=f"{name} is for simulations"):
        settings.check(tmp_path, RAW | {"strategy": name})


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in SIMULATED])
def test_a_federation_knows_the_names_of_an_experiment(tmp_path, name):
    rules = settings.check(tmp_path, RAW | {"strategy": name}).rules
    assert rules.strategy == recipe(name).strategy
    assert rules.estimator == (recipe(name).estimator or Intervals())


def test_the_estimator_of_the_file_wins_over_that_of_the_recipe(tmp_path):
    raw = RAW | {"strategy": "ca-fed", "estimator": "intervals"}
    assert settings.check(tmp_path, raw).rules.estimator == Intervals()


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in SIMULATED])
def test_a_federation_knows_every_recipe_with_its_own_estimator(tmp_path, name):
    rules = settings.check(tmp_path, RAW | {"strategy": name}).rules
    assert rules.strategy == RECIPES[name].strategy
    assert rules.estimator == (RECIPES[name].estimator or Intervals())


def test_settings_stand_beside_a_name_and_the_estimator_of_the_file_wins(tmp_path):
    spec = {"kind": "auto", "gain": 0.5}
    rules = settings.check(tmp_path, RAW | {"strategy": spec, "estimator": "beta-bernoulli"}).rules
    assert rules.strategy == dataclasses.replace(RECIPES["auto"].strategy, gain=0.5)
    assert rules.estimator == BetaBernoulli()
    with pytest.raises(BadInput, match="strategy setting 'channel' is unknown"):
        settings.check(tmp_path, RAW | {"strategy": {"kind": "auto", "channel": "loss"}})


def test_a_strategy_of_your_own_is_named_by_its_module_and_is_in_the_digest(tmp_path):
    module, text = (
        tmp_path / "own_rule.py",
        'name = "f"\nrounds = 1\nstrategy = "own_rule:Mine"\n[local]\nlr = 0.1\n',
    )
    module.write_text("from fedstale import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    s = settings.parse(tmp_path, text)
    assert type(s.rules.strategy).__name__ == "Mine"
    run = s.run
    module.write_text(module.read_text() + "# another version\n")
    assert settings.parse(tmp_path, text).run != run


def test_the_digest_is_of_what_the_state_depends_on(tmp_path):
    run = settings.check(tmp_path, RAW).run
    assert settings.check(tmp_path, RAW | {"rounds": 9, "round": {"deadline": 1.0}, "link": {"port": 1}}).run == run
    for change in (
        {"seed": 7},
        {"strategy": "mifa"},
        {"estimator": {"kind": "intervals", "cutoff": 9}},
        {"server": "adam"},
    ):
        assert settings.check(tmp_path, RAW | change).run != run


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)


def test_init_without_tls_writes_a_federation_that_can_be_read(tmp_path):
    told = invoke("init", tmp_path / "f", "--clients", 3, "--rounds", 4, "--insecure")
    assert told.exit_code == 0
    s = settings.read(tmp_path / "f")
    assert (s.file.rounds, s.file.strategy, s.file.link.tls, s.app.name) == (4, "auto", False, "app")
    assert roster.read(s.roster).ids.tolist() == [0, 1, 2]
    with pytest.raises(BadInput, match="is a federation already"):
        invoke("init", tmp_path / "f")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--strategy", "fedstal", "did you mean 'fedstale'"),
        ("--strategy", '{ kind = "fedstale", ', "not a TOML file"),
        ("--deadline", 0, "round.deadline"),
        ("--host", "", "link.host"),
        ("--host", 'a b\n"c', "link.host"),
        ("--names", "a.org, b c", "--names must be names of hosts, got 'b c'"),
        ("--names", "ä.org", "--names must be names of hosts, got 'ä.org'"),
        ("--names", 254 * "x", "--names must be names of hosts"),
        ("--app", "nowhere", "--app must be the folder of a Flower app, with a pyproject.toml, got nowhere"),
    ],
)
def test_a_mistake_in_init_is_an_error_before_anything_is_written(tmp_path, option, value, sentence):
    with pytest.raises(BadInput, match=sentence):
        invoke("init", tmp_path / "f", "--insecure", option, value)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("folder", "called"),
    [("my_federation.2", "my-federation-2"), ("2026", "app-2026"), ("__", "app"), ("a" * 40, "a" * 32)],
)
def test_the_app_of_any_folder_has_a_name_that_flower_packs(folder, called):
    assert cli.app_name(folder) == called


def test_init_takes_a_strategy_and_any_folder_name(tmp_path):
    table = '{ kind = "fedstale", beta = 0.25 }'
    invoke("init", tmp_path / "my first", "--insecure", "--strategy", table, "--host", "a.org")
    s = settings.read(tmp_path / "my first")
    assert (s.rules.strategy.beta, s.file.name, s.file.link.host) == (0.25, "my-first", "a.org")  # type: ignore[attr-defined]


def test_without_flower_the_commands_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install 'fedstale\\[flower\\]'"):
        invoke("init", tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_adding_and_removing_clients_makes_new_versions(tmp_path):
    invoke("init", tmp_path / "f", "--clients", 2, "--insecure")
    invoke("add", tmp_path / "f", "late", "--weight", 2.0)
    invoke("remove", tmp_path / "f", 0)
    now = roster.read(tmp_path / "f" / "roster.json")
    assert now.ids.tolist() == [1, 2]
    assert now.version == 4
    assert now.members[1].key == public_hash(tmp_path / "f" / "keys" / "client-2.pub")


def test_status_before_the_first_round(tmp_path):
    invoke("init", tmp_path / "f", "--insecure")
    told = json.loads(invoke("status", tmp_path / "f", "--format", "json").output)
    known = {"round": 0, "clients": [], "processes": {}, "server": False, "mute": []}
    assert told == known | {"expires": {}, "kept": True}


def test_the_template_app_is_python_and_names_what_is_there():
    app = template("federation-app")
    for file in (app / "learning").iterdir():
        ast.parse(file.read_text())
    assert "learning.server:app" in (app / "pyproject.toml.txt").read_text()
    assert "app = server_app" in (app / "learning" / "server.py.txt").read_text()


def test_a_folder_without_a_federation_is_told_how_to_make_one(tmp_path):
    with pytest.raises(BadInput, match="fedstale federation init"):
        settings.read(tmp_path)


def test_the_life_of_a_server_is_its_lock(tmp_path):
    from fedstale.lab.runs.store import RunFolder

    s = settings.check(tmp_path, RAW)
    assert not runner.alive(s)
    with RunFolder(s.state).locked():
        assert runner.alive(s)
    assert not runner.alive(s)
    assert committed_round(s.state) == 0


class Fake:
    """Runs that are played by a script: each is the round that it commits before it dies."""

    def __init__(self, s, script, monkeypatch):
        self.s, self.script, self.pauses, self.submitted = s, list(script), [], 0
        monkeypatch.setattr(control, "wait_until_ready", lambda s: None)
        monkeypatch.setattr(control, "submit", self.submit)
        monkeypatch.setattr(control, "run_state", lambda s, run: ("finished", "failed"))
        monkeypatch.setattr(control, "halt", lambda s, run: None)
        monkeypatch.setattr(runner, "STARTUP", 0.0)
        monkeypatch.setattr(runner.time, "sleep", self.pauses.append)

    def submit(self, s):
        self.submitted += 1
        to = self.script.pop(0)
        if to is None:
            raise control.Refused("the link said no")
        s.state.mkdir(exist_ok=True)
        write_manifest(s.state, {"t": to, "run": f"{s.run}-40"})
        return self.submitted


def test_a_crashed_server_is_submitted_again_with_growing_pauses(tmp_path, monkeypatch):
    s = settings.check(tmp_path, RAW)
    fake = Fake(s, [0, None, 0, 2, 2, 3], monkeypatch)
    events = list(runner.run(s))
    assert events[-1] == ("done", 3, "")
    assert fake.submitted == 6
    assert max(fake.pauses) == 4.0  # three in a row without a round: 1, 2, 4; then from 1 again


def test_a_state_of_another_configuration_is_refused_before_anything_is_started(tmp_path, monkeypatch):
    s = settings.check(tmp_path, RAW)
    fake = Fake(s, [], monkeypatch)
    s.state.mkdir()
    write_manifest(s.state, {"t": 1, "run": "another-40"})
    with pytest.raises(BadInput, match="another configuration"):
        list(runner.run(s))
    assert fake.submitted == 0


def test_a_server_that_never_gets_anywhere_is_given_up(tmp_path, monkeypatch):
    s = settings.check(tmp_path, RAW)
    Fake(s, [0] * 9, monkeypatch)
    with pytest.raises(BadInput, match="round 1 failed 3 times in a row"):
        list(runner.run(s, tries=3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "192.0.2.1"], "commands need keys/control.token"),
        (["--host", "0.0.0.0", "--insecure"], "join as any client"),
        ([], ""),
        (["--host", "localhost", "--insecure"], ""),
    ],
)
def test_init_warns_of_an_address_for_other_machines(tmp_path, arguments, words, monkeypatch):
    said = []
    monkeypatch.setattr(cli, "need_flower", lambda: None)
    monkeypatch.setattr(cli, "_write_roster", lambda *_: None)
    monkeypatch.setattr(cli, "say", lambda sentence, style: said.append(sentence))
    invoke("init", tmp_path / "f", *arguments)
    assert len(said) == bool(words)
    assert words in "".join(said)


@pytest.mark.parametrize(("enough", "code"), [(0.0, 0), (0.4, 0), (0.6, 5)])
def test_run_says_what_was_heard_and_fails_if_it_was_too_little(tmp_path, enough, code, monkeypatch):
    link, folder = InProcess(TASK, range(N)), tmp_path / "f"
    invoke("init", folder, "--insecure", "--clients", N)
    text = (folder / "federation.toml").read_text()
    (folder / "federation.toml").write_text(text.replace("\n[round]\n", f"\n[round]\nenough_weight = {enough}\n"))
    rows = np.tile(np.arange(N) % 2 == 0, (3, 1))
    played(server(folder, link), link, rows)
    monkeypatch.setattr(cli.runner, "run", lambda s: [cli.runner.Event("round", t) for t in (1, 2, 3)])
    told = CliRunner().invoke(cli.app, ["run", str(folder)])
    assert told.exit_code == code
    assert "round 3/100 heard 3 of 6 clients, 50 % of the weight; missing: 1, 3, 5\n" in told.stdout
    assert "round 3 heard 3 of 6 clients" in invoke("status", folder).stdout

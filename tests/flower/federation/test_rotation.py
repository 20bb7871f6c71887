"""Keys have a life: a client brings its own public key, keys are replaced, certificates end, and all is noted."""

import asyncio
import datetime
import json
import os
import signal
from base64 import b64encode

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography", reason="cryptography comes with flwr, which is not installed")

from cryptography import x509

from fedstale.cli import federation as cli
from fedstale.core import BadInput
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import keys, launcher, processes
from fedstale.flower.federation.ops.gate import Gate, control_token
from fedstale.flower.federation.state import audit, roster
from tests.flower.federation.inprocess import roster_of


def done(*command):
    return CliRunner().invoke(cli.app, [str(word) for word in command], catch_exceptions=False).output


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "federation"
    done("init", made, "--clients", 2)
    return made


def test_the_private_key_of_a_client_may_stay_with_it(folder, tmp_path):
    known = keys.make_node_key(tmp_path / "mine")
    assert "client 2 (roster 3)" in done("add", folder, "--public", tmp_path / "mine.pub")
    assert roster.read(folder / "roster.json").by_key()[known] == 2
    assert (folder / "keys" / "client-2.pub").read_bytes() == (tmp_path / "mine.pub").read_bytes()
    assert not (folder / "keys" / "client-2").exists()
    for command in (("add", folder), ("rotate", folder, "--client", 0)):
        with pytest.raises(BadInput, match="is the key of a client of the roster already"):
            done(*command, "--public", tmp_path / "mine.pub")


def test_a_client_gets_another_key_and_keeps_its_number(folder, tmp_path):
    before = roster.read(folder / "roster.json")
    done("rotate", folder, "--client", 1)
    after = roster.read(folder / "roster.json")
    assert after.version == before.version + 1
    assert (after.ids.tolist(), after.next) == (before.ids.tolist(), before.next)
    assert after.members[0] == before.members[0]
    assert after.members[1].key == keys.public_hash(folder / "keys" / "client-1.pub") != before.members[1].key
    known = keys.make_node_key(tmp_path / "mine")
    done("rotate", folder, "--client", 1, "--public", tmp_path / "mine.pub")
    assert roster.read(folder / "roster.json").members[1].key == known
    assert not (folder / "keys" / "client-1").exists()
    with pytest.raises(BadInput, match="there is no client 7 in the roster"):
        done("rotate", folder, "--client", 7)
    with pytest.raises(BadInput, match="rotate needs --client N, --token or --certificate"):
        done("rotate", folder)


def test_a_server_certificate_is_issued_again_for_the_same_hosts(folder):
    place = folder / "keys"
    before = x509.load_pem_x509_certificate((place / "server.pem").read_bytes())
    assert "another server certificate, until" in done("rotate", folder, "--certificate")
    after = x509.load_pem_x509_certificate((place / "server.pem").read_bytes())
    assert after.serial_number != before.serial_number
    names = [c.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for c in (before, after)]
    assert names[0] == names[1]
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((place / "ca.pem").read_bytes()))
    (place / "ca.key").unlink()
    with pytest.raises(BadInput, match=r"there is no .*ca.key: put it back"):
        done("rotate", folder, "--certificate")


def test_status_says_when_certificates_end(folder):
    due = f"{keys.expiry(folder / 'keys' / 'server.pem'):%Y-%m-%d}"
    assert keys.expiry(folder / "keys" / "server.pem") > datetime.datetime.now(datetime.UTC)
    assert f"keys/server.pem is valid until {due}" in done("status", folder)
    assert json.loads(done("status", folder, "--format", "json"))["expires"]["keys/ca.pem"] == due


def answered(gate, path, headers=(), client=("192.0.2.7", 1)):
    sent = []

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "path": path, "client": client, "server": ("127.0.0.1", 1), "headers": [*headers]}
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"]


def test_a_token_that_was_replaced_is_worth_nothing_at_once(folder):
    async def link(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    old, gate = control_token(folder), Gate(link, lambda: control_token(folder))
    given = [(b"authorization", f"Bearer {old}".encode())]
    assert answered(gate, "/v1/control/list-runs", given, ("127.0.0.1", 1)) == 200
    done("rotate", folder, "--token")
    assert control_token(folder) != old
    assert answered(gate, "/v1/control/list-runs", given, ("127.0.0.1", 1)) == 403


def test_who_joined_was_removed_refused_and_signed_in_is_noted(folder):
    async def link(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    done("add", folder)
    done("rotate", folder, "--client", 0, "--token")
    done("remove", folder, 1)
    assert not (folder / "keys" / "client-1").exists()
    gate = Gate(link, lambda: "secret", member=lambda key: key == b"known", note=audit.Once(folder))
    for key in (b"known", b"stranger", b"stranger"):
        fields = [(b"flwr-public-key", b64encode(key)), (b"content-length", b"9")]
        answered(gate, "/v1/fleet/activate-node", fields)
    lines = audit.read(folder)
    assert [line["event"] for line in lines] == [
        "added", "rotated a key", "rotated the token", "removed", "signed in", "refused",
    ]  # fmt: skip
    assert lines[-1]["why"] == "this key is not in the roster of the federation"
    assert lines[-1]["from"] == "192.0.2.7"
    assert lines[0]["client"] == 2
    assert (folder / "logs" / audit.FILE).stat().st_mode & 0o777 == 0o600


def test_a_removed_client_gets_no_second_budget_of_privacy(folder, tmp_path):
    known = keys.make_node_key(tmp_path / "mine")
    done("add", folder, "north", "--public", tmp_path / "mine.pub")
    done("remove", folder, 2)
    done("add", folder, "north")  # without privacy nothing is counted
    done("remove", folder, 3)
    file = folder / "federation.toml"
    rule = 'strategy = { kind = "private-fedavg", clip = 1.0 }\nprivacy = { noise = 0.5 }\ndefence = false\n'
    rest = [x for x in file.read_text().splitlines() if not x.startswith(("strategy", "estimator", "defence"))]
    file.write_text(rule + "\n".join(rest))
    with pytest.raises(BadInput, match="the client with the name north was removed from this federation"):
        done("add", folder, "north")
    with pytest.raises(BadInput, match=f"the client with the key {known} was removed"):
        done("add", folder, "south", "--public", tmp_path / "mine.pub")
    assert "client 4" in done("add", folder, "south")


def test_a_flood_of_refusals_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MOST", 3)
    once = audit.Once(tmp_path)
    for k in range(9):
        once("refused", {"from": str(k)})
    assert len(audit.read(tmp_path)) == 3


def test_without_tls_a_client_has_a_key_and_flowers_own_supernode_is_refused(tmp_path):
    done("init", tmp_path / "f", "--insecure")
    s = settings.read(tmp_path / "f")
    before = roster.read(s.roster).members[1].key
    assert before == keys.public_hash(s.folder / "keys" / "client-1.pub")
    done("rotate", s.folder, "--client", 1)
    assert roster.read(s.roster).members[1].key != before
    with pytest.raises(BadInput, match="--isolated needs TLS"):
        done("join", s.folder, 1, "--isolated")
    assert processes.names(s.folder) == []


def test_a_second_start_leaves_the_secret_between_the_link_and_its_executor(folder, monkeypatch):
    s = settings.read(folder)
    commands = []
    monkeypatch.setattr(processes, "spawn", lambda folder, name, command: commands.append(command) or 1)
    monkeypatch.setattr(launcher, "ensure", lambda folder: None)
    launcher.start_link(s)
    file = commands[0][commands[0].index("--superexec-auth-secret-file") + 1]
    before = file.read_bytes()
    assert (len(before), file.stat().st_mode & 0o777) == (32, 0o600)
    launcher.start_link(s)
    assert file.read_bytes() == before


def test_up_starts_what_has_ended_and_status_says_that_nobody_keeps_it(tmp_path, monkeypatch):
    folder, asked = tmp_path / "federation", []
    done("init", folder, "--insecure")
    s = settings.read(folder)
    monkeypatch.setattr(launcher, "ensure", asked.append)
    pid = processes.spawn(s.folder, "client-0", ["sleep", "60"])
    try:
        assert launcher.revive_all(s) == []
        assert "no keeper is running, so that nothing is started again" in done("status", folder)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert "client-0 has ended" in done("status", folder)
        known = json.loads((s.folder / "pids" / "client-0").read_text())
        (s.folder / "pids" / "client-0").write_text(json.dumps(known | {"deaths": 5}))
        assert not processes.revive(s.folder, "client-0")  # the keeper lets a process pause that dies often
        assert launcher.revive_all(s) == ["client-0"]
        assert processes.pid_of(s.folder, "client-0") not in (None, pid)
        assert len(asked) == 2
    finally:
        processes.stop(s.folder, "client-0", hard=True)


def test_a_rekeyed_roster_names_the_client_by_its_new_key():
    old = roster_of(range(3))
    new = old.rekeyed(1, "a" * 64)
    assert new.by_key()["a" * 64] == 1
    assert old.members[1].key not in new.by_key()

"""Who is kept out by the link of a federation. One SuperLink, on the loopback, for all of these."""

import datetime
import json
import socket
import ssl
import subprocess
import typing
from base64 import b64encode
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedstale.cli import federation as cli
from fedstale.cli.new import copy, template
from fedstale.flower.federation import settings
from fedstale.flower.federation.client.fleet import Fleet, Refused
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.ops import control, keys, launcher, processes, superlink
from fedstale.flower.federation.state import roster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure") / "federation"
    port = launcher.free_port()
    cli.init(folder, clients=2, rounds=1, deadline=5.0, port=port)
    s = settings.read(folder)
    try:
        launcher.start_link(s)
        control.wait_until_ready(s)
        assert control.register(s) == 2
        yield s
    finally:
        processes.stop(s.folder, "link", patience=3.0)


class Signed:
    """Headers as a client makes them, with whatever is to be wrong with them."""

    def __init__(self, private, public, age=0.0):
        self.private, self.public, self.age = private, public_key_to_bytes(public), age

    def intercept(self, context, call_next):
        signed = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=self.age)).isoformat()
        signature = sign_message(self.private, signed.encode("ascii"))
        context.request.headers["flwr-public-key"] = b64encode(self.public).decode("ascii")
        context.request.headers["flwr-timestamp"] = signed
        context.request.headers["flwr-signature"] = b64encode(signature).decode("ascii")
        return call_next(context)


def key_pair(s, client):
    private = load_ssh_private_key((s.folder / "keys" / f"client-{client}").read_bytes(), None)
    return private, private.public_key()


@pytest.fixture
def connect():
    """Connections that are closed after the test."""
    with ExitStack() as stack:
        yield lambda *given, **settings: stack.enter_context(connection(*given, **settings))


def connection(s, private, public, *, ca=None, insecure=False, age=0.0):
    trusted = None if insecure else (ca or s.folder / "keys" / "ca.pem").read_bytes()
    return FleetHttpClient.from_server_address(
        f"127.0.0.1:{s.file.link.port}", insecure, trusted,
        [RuntimeVersionHttpInterceptor(component_name="SuperNode"), Signed(private, public, age)],
    )  # fmt: skip


def activate(client, public):
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)
    return client.ActivateNode(request).node_id


def refused(call, *codes):
    with pytest.raises(httpx.HTTPStatusError) as error:
        call()
    assert error.value.response.status_code in codes, error.value.response.text


@pytest.fixture(scope="module")
def victim(federation):
    """The node number of client 0, which is online."""
    private, public = key_pair(federation, 0)
    with connection(federation, private, public) as client:
        return activate(client, public)


def test_a_client_of_the_roster_gets_in(federation, victim, connect):
    assert victim > 0
    private, public = key_pair(federation, 0)
    connect(federation, private, public).PullMessages(PullMessagesRequest(node=Node(node_id=victim)))
    assert keys.public_hash(federation.folder / "keys" / "client-0.pub") == roster.key_hash(
        public_key_to_bytes(public)
    )


def test_a_wrong_authority_is_refused(federation, tmp_path, connect):
    keys.make_authority(tmp_path, ["127.0.0.1"])
    private, public = key_pair(federation, 0)
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        activate(connect(federation, private, public, ca=tmp_path / "ca.pem"), public)


def test_an_unknown_key_is_refused(federation, connect):
    """412: the operator must register it first."""
    private, public = generate_key_pairs()
    client = connect(federation, private, public)
    refused(lambda: activate(client, public), 412)
    refused(lambda: client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(public))), 412)


def test_a_client_that_was_removed_is_shut_out_at_once_and_comes_back_with_the_roster(federation, connect):
    before, (private, public) = roster.read(federation.roster), key_pair(federation, 1)
    client = connect(federation, private, public)
    node = Node(node_id=activate(client, public))
    try:
        roster.save(federation.roster, before.left(1))
        refused(lambda: client.PullMessages(PullMessagesRequest(node=node)), 412)
        refused(lambda: client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)), 412)
        refused(lambda: activate(client, public), 412)
        refused(lambda: client.GetRun(GetRunRequest(node=node, run_id=1)), 412)
    finally:
        roster.save(federation.roster, before)
    client.PullMessages(PullMessagesRequest(node=node))
    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def test_nobody_is_a_member_while_the_roster_cannot_be_read(tmp_path):
    members, path = superlink.Members(tmp_path / "roster.json"), tmp_path / "roster.json"
    assert not members(b"key")
    one = roster.Roster(1, 1, (roster.Member(0, roster.key_hash(b"key")),))
    roster.save(path, one)
    assert members(b"key")
    assert not members(b"other")
    path.write_text("damaged")
    assert not members(b"key")
    roster.save(path, one.left(0))
    assert not members(b"key")


@pytest.mark.parametrize("call", ["GetNodes", "AcquireTask", "PullMessages", "PushMessages", "PushTaskOutput"])
def test_other_users_of_the_machine_get_nothing_from_the_runtime_without_a_token(federation, call):
    from flwr.supercore.runtime import RuntimeHttpClient

    trusted = (federation.folder / "keys" / "ca.pem").read_bytes()
    marks = [RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")]
    address = f"127.0.0.1:{federation.file.link.port}"
    with RuntimeHttpClient.from_server_address(address, False, trusted, marks) as client:
        request = typing.get_type_hints(getattr(RuntimeHttpClient, call))["request"]()
        refused(lambda: getattr(client, call)(request), 401, 403)


def test_a_stolen_number_is_refused(federation, victim, connect):
    thief = connect(federation, *key_pair(federation, 1))
    refused(lambda: thief.PullMessages(PullMessagesRequest(node=Node(node_id=victim))), 401)


def test_a_stolen_public_key_is_worth_nothing_without_the_private_one(federation, connect):
    _, public = key_pair(federation, 0)
    private, _ = key_pair(federation, 1)
    refused(lambda: activate(connect(federation, private, public), public), 401)


def test_a_replayed_request_is_refused(federation, connect):
    private, public = key_pair(federation, 0)
    refused(lambda: activate(connect(federation, private, public, age=3600.0), public), 401)


def test_plaintext_is_refused(federation, connect):
    private, public = key_pair(federation, 0)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError)):
        activate(connect(federation, private, public, insecure=True), public)


def test_old_tls_is_refused(federation):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(federation.folder / "keys" / "ca.pem")
    context.check_hostname = False
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://127.0.0.1:{federation.file.link.port}/", verify=context)


def test_commands_without_the_token_are_refused(federation, tmp_path):
    """Somebody who has the certificate and reaches the port, as every client does."""
    stranger = federation._replace(folder=tmp_path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ca.pem").write_bytes((federation.folder / "keys" / "ca.pem").read_bytes())
    copy(template("federation-app"), tmp_path / "app", "theirs")
    with pytest.raises(control.Refused, match="commands need the token"):
        control.submit(stranger)
    with pytest.raises(control.Refused, match="commands need the token"):
        control.run_state(stranger, 1)
    assert control.run_state(federation, 1) == ("finished", "unknown")


def test_flowers_own_program_finds_the_link_and_the_token(federation):
    control.configure_flwr(federation)
    command = [processes.BIN / "flwr", "list", control.NAME, "--format", "json"]
    home = processes.environment(federation.folder / "flwr")
    assert json.loads(subprocess.run(command, capture_output=True, env=home, check=True).stdout)["runs"] == []


def test_a_large_request_is_not_kept(federation):
    context = ssl.create_default_context(cafile=federation.folder / "keys" / "ca.pem")
    url, headers = (
        f"https://127.0.0.1:{federation.file.link.port}/v1/fleet/push-object",
        {"content-length": f"{300 << 20}"},
    )
    before = largest(federation)
    with suppress(httpx.WriteError, httpx.ReadError):
        pieces = (bytes(1 << 20) for _ in range(300))
        assert httpx.post(url, content=pieces, headers=headers, verify=context).status_code == 413
    assert largest(federation) < before + 50


def test_many_unfinished_requests_of_strangers_are_not_kept(federation):
    context = ssl.create_default_context(cafile=federation.folder / "keys" / "ca.pem")
    head = (
        b"POST /v1/fleet/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\nContent-Length: %d\r\n\r\n"
    )
    before = largest(federation)
    with ExitStack() as stack:
        for path, size in 15 * [
            (b"push-messages", 16 << 20),
            (b"push-messages", 1 << 20),
            (b"push-object", 2 << 20),
        ]:
            plain = socket.create_connection(("127.0.0.1", federation.file.link.port), timeout=600)
            connected = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            with suppress(OSError):  # it was closed already
                connected.sendall(head % (path, size) + bytes(size - 1))
        assert largest(federation) < before + 50


def largest(s):
    """The most memory that the link has used so far, in MB."""
    text = Path(f"/proc/{processes.pid_of(s.folder, 'link')}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def test_private_keys_are_for_their_owner_only(federation):
    for name in ("ca.key", "server.key", "client-0", "client-1", "control.token"):
        assert (federation.folder / "keys" / name).stat().st_mode & 0o077 == 0


def test_what_the_link_writes_is_for_its_owner_only(federation):
    """The database holds clients' updates while they are on their way, and logs name the clients."""
    control.configure_flwr(federation)
    secrets = ("homes/link", "homes/link/secret", "flwr", "flwr/credentials.yaml")
    for name in ("link.sqlite", "link.sqlite-wal", "logs", "logs/link.log", *secrets):
        assert (federation.folder / name).stat().st_mode & 0o077 == 0, name


def test_the_log_does_not_grow_with_every_request(federation, victim, connect):
    connect(federation, *key_pair(federation, 0)).PullMessages(PullMessagesRequest(node=Node(node_id=victim)))
    text = (federation.folder / "logs" / "link.log").read_text()
    assert "Fleet HTTP API" in text
    assert "POST /v1/fleet/" not in text


def client(s, tmp_path, key, ca=None):
    """A client as `join` makes one."""
    return Fleet(
        f"127.0.0.1:{s.file.link.port}", ca or s.folder / "keys" / "ca.pem", key, Notes(tmp_path / "notes")
    )


def test_a_client_is_told_of_a_wrong_authority(federation, tmp_path, monkeypatch):
    keys.make_authority(tmp_path, ["127.0.0.1"])
    joining = client(federation, tmp_path, federation.folder / "keys" / "client-1", tmp_path / "ca.pem")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it tries again"))
    with pytest.raises(pytest.fail.Exception, match="it tries again"):
        joining.sign_in()
    assert "keys/ca.pem has not certified the link" in joining.notes.state


def test_a_client_is_told_of_a_key_that_is_not_registered(federation, tmp_path):
    keys.make_node_key(tmp_path / "key")
    with pytest.raises(Refused, match="it is not registered"):
        client(federation, tmp_path, tmp_path / "key").sign_in()


def test_a_client_is_told_how_far_its_clock_is_off(federation, tmp_path, monkeypatch):
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    monkeypatch.setattr("flwr.supernode.node_auth_http_interceptor.now", lambda: later)
    monkeypatch.setattr("fedstale.flower.federation.client.fleet._now", lambda: later)
    joining = client(federation, tmp_path, federation.folder / "keys" / "client-1")
    with pytest.raises(Refused, match=r"\d+ s ahead of the link's"):  # test_trouble.py compares the number
        joining.sign_in()


def test_a_client_that_was_killed_signs_in_again_at_once(federation, tmp_path):
    """Flower's own would be refused for a minute, because the link believes that it is online."""
    key = federation.folder / "keys" / "client-1"
    first = client(federation, tmp_path, key)
    first.sign_in()
    with pytest.raises(Refused, match="online elsewhere"):
        client(federation, tmp_path / "elsewhere", key).sign_in()
    again = client(federation, tmp_path, key)
    again.sign_in()
    assert again.node.node_id == first.node.node_id
    assert again.receive() is None
    again.close()


def test_keys_are_registered_over_one_connection_without_further_processes(federation, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process is started"))
    opened = []
    monkeypatch.setattr(control, "_connected", lambda s, real=control._connected: opened.append(1) or real(s))
    assert control.register(federation) == 0  # the link knows them already
    assert len(opened) == 1

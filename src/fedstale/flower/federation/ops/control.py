"""Commands to the SuperLink: register clients, start, watch and stop runs."""

import hashlib
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

from fedstale.core import BadInput
from fedstale.flower.federation import adapter
from fedstale.flower.federation.ops import launcher
from fedstale.flower.federation.ops.gate import control_token
from fedstale.flower.federation.settings import Settings
from fedstale.flower.federation.state import audit, roster
from fedstale.lab.runs.store import write


class Refused(BadInput):
    """The SuperLink refused a command, or cannot be reached."""


def configure_flwr(s: Settings) -> None:
    """Let the program `flwr` find this federation's link, and its token, with FLWR_HOME=DIR/flwr."""
    home = s.folder / "flwr"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(home / "config.toml", lambda file: file.write(_connection(s).encode()))
    write(home / "credentials.yaml", partial(_write_credentials, s))


def _connection(s: Settings) -> str:
    link = s.file.link
    trust = f'root-certificates = "{(s.folder / "keys" / "ca.pem").resolve()}"' if link.tls else "insecure = true"
    name = launcher.CONNECTION
    return f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{link.host}:{link.port}"\n{trust}\n'


def _write_credentials(s: Settings, file: IO[bytes]) -> None:
    """The token for commands, as `flwr` keeps the tokens of accounts, for its owner only; JSON is YAML, too."""
    os.fchmod(file.fileno(), 0o600)
    found = {"authn-type": "oidc", "oidc-access-token": control_token(s.folder), "oidc-refresh-token": "none"}
    account = f"flower.account-auth.{s.file.link.host}:{s.file.link.port}"
    coded = {f"{account}.{name}": b64encode(value.encode()).decode() for name, value in found.items()}
    file.write(json.dumps(coded).encode())


class Signed:
    """Puts the token for commands into every request of Flower's client."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: Any, call_next: Any) -> Any:
        """What Flower calls with a request that is about to be sent."""
        context.request.headers["authorization"] = f"Bearer {self.token}"
        return call_next(context)


@contextmanager
def _connected(s: Settings) -> Iterator[Any]:
    """Flower's client of the link's control interface; raises Refused for all that goes wrong with it."""
    import httpx

    from fedstale.flower.federation.ops.keys import certificate

    link = s.file.link
    authority = certificate(s.folder / "keys" / "ca.pem") if link.tls else None
    marks = [adapter.RuntimeVersionHttpInterceptor(component_name="flwr CLI"), Signed(control_token(s.folder))]
    try:
        with adapter.ControlHttpClient.from_server_address(
            f"{link.host}:{link.port}", not link.tls, authority, marks
        ) as client:
            yield client
    except httpx.HTTPStatusError as error:
        raise Refused(f"the link answers {error.response.status_code}: {error.response.text[:500]}") from None
    except httpx.HTTPError as error:
        raise Refused(f"the link at {link.host}:{link.port} cannot be reached: {error}") from None


def register(s: Settings) -> int:
    """Register the keys of the roster with the link, over one connection; returns how many were new."""
    import httpx

    from fedstale.flower.federation.ops.keys import public_pem

    new = 0
    with _connected(s) as client:
        for member in roster.read(s.roster).members:
            pem = public_pem(s.folder / "keys" / f"client-{member.id}.pub")
            try:
                client.RegisterNode(adapter.RegisterNodeRequest(public_key=pem))
                new += 1
            except httpx.HTTPStatusError as error:
                if "already in use" not in error.response.text:  # the link knows it already
                    raise
    return new


def submit(s: Settings, config: Mapping[str, Any] | None = None) -> int:
    """Start the server's app, with this run configuration or for this folder; returns the number of the run."""
    from click import ClickException  # comes with Flower

    audit.note(s.folder, "started code", {"app": str(s.app)})
    try:
        content = adapter.build_fab_from_disk(s.app)
    except (ClickException, ValueError, OSError) as error:
        raise Refused(f"{s.app} is no Flower app that can be packed: {error}") from None
    fab = adapter.fab_to_proto(adapter.Fab(hashlib.sha256(content).hexdigest(), content, {}))
    chosen = adapter.user_config_to_proto(config or {"federation": str(s.folder.resolve())})
    with _connected(s) as client:
        answer = client.StartRun(adapter.StartRunRequest(fab=fab, override_config=chosen))
    if not answer.HasField("run_id"):
        raise Refused(f"the link does not start the run: {answer.note}")
    return int(answer.run_id)


def run_state(s: Settings, run: int) -> tuple[str, str]:
    """The status of a run (pending, starting, running or finished) and how it ended."""
    import httpx

    with _connected(s) as client:
        try:
            found = client.ListRuns(adapter.ListRunsRequest(run_id=run)).run_dict[run].status
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return "finished", "unknown"  # the link's database was made anew
    return found.status, found.sub_status


def halt(s: Settings, run: int) -> None:
    """Stop a run."""
    with _connected(s) as client:
        client.StopRun(adapter.StopRunRequest(run_id=run))


def wait_until_ready(s: Settings, patience: float = 300.0) -> None:
    """Wait until the link answers; raises Refused if it does not within `patience` seconds."""
    configure_flwr(s)
    until = time.monotonic() + patience
    while True:
        try:
            with _connected(s) as client:
                client.ListRuns(adapter.ListRunsRequest(limit=1))
            return
        except Refused:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)

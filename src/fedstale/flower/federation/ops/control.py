"""Commands to the SuperLink: register clients, start, watch and stop runs."""

import hashlib
import json
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedstale.core import BadInput
from fedstale.flower.federation import adapter
from fedstale.flower.federation.ops import processes
from fedstale.flower.federation.ops.gate import control_token
from fedstale.flower.federation.settings import Settings
from fedstale.flower.federation.state import audit, roster
from fedstale.lab.runs.store import write_secret

NAME = "fedstale"  # of the connection, for `flwr`


class Refused(BadInput):
    """The SuperLink refused a command, or cannot be reached."""


def configure_flwr(s: Settings) -> None:
    """Let the program `flwr` find this federation's link, and its token, with FLWR_HOME=DIR/flwr."""
    home, at = s.folder / "flwr", f"{s.file.link.host}:{s.file.link.port}"
    authority = f'root-certificates = "{(s.folder / "keys" / "ca.pem").resolve()}"'
    trust = authority if s.file.link.tls else "insecure = true"
    text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{at}"\n{trust}\n'
    write_secret(home / "config.toml", text.encode())
    found = {"authn-type": "oidc", "oidc-access-token": control_token(s.folder), "oidc-refresh-token": "none"}
    coded = {f"flower.account-auth.{at}.{name}": b64encode(x.encode()).decode() for name, x in found.items()}
    write_secret(home / "credentials.yaml", json.dumps(coded).encode())  # JSON is YAML, too


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


def wait_until_ready(s: Settings, pid: int | None = None, patience: float = 300.0) -> None:
    """Wait until the link answers; raises Refused if it does not in so many seconds, or its process has ended."""
    configure_flwr(s)
    until = time.monotonic() + patience
    while True:
        try:
            with _connected(s) as client:
                client.ListRuns(adapter.ListRunsRequest(limit=1))
            return
        except Refused as why:
            if pid is not None and processes.ended(pid):
                raise Refused("the link ended at once; logs/link.log says why") from None
            if time.monotonic() > until:
                raise Refused(f"{why}, after {patience:g} s; logs/link.log says why") from None
            time.sleep(0.5)

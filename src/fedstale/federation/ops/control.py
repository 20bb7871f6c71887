"""Commands to the SuperLink through Flower's `flwr`: register clients, start, watch and stop runs."""

import json
import subprocess
import time
from base64 import b64encode
from typing import Any

from fedstale.core import BadInput
from fedstale.federation.ops import launcher
from fedstale.federation.ops.gate import control_token
from fedstale.federation.settings import Settings
from fedstale.federation.state import roster
from fedstale.runs.store import write


class Refused(BadInput):
    """The SuperLink refused a command, or cannot be reached."""


def flwr(s: Settings, *arguments: str, patience: float = 60.0) -> dict[str, Any]:
    """Run one `flwr` command against this federation's link and return its JSON answer."""
    home = s.folder / "flwr"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(home / "config.toml", lambda file: file.write(_connection(s).encode()))
    write(home / "credentials.yaml", lambda file: file.write(_credentials(s).encode()))
    command = [str(launcher.BIN / "flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=launcher.environment(home), timeout=patience,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused(f"flwr {arguments[0]} did not end within {patience:g} s") from None
    answer = _json(done.stdout)
    if done.returncode or not answer.get("success", True):
        why = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise Refused(f"flwr {' '.join(arguments[:2])}: {str(why)[-500:]}")
    return answer


def _json(text: str) -> dict[str, Any]:
    start = text.find("{")
    try:
        return dict(json.loads(text[start:])) if start >= 0 else {}
    except ValueError:
        return {}


def _connection(s: Settings) -> str:
    link = s.file.link
    trust = f'root-certificates = "{(s.folder / "keys" / "ca.pem").resolve()}"' if link.tls else "insecure = true"
    name = launcher.CONNECTION
    return f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{link.host}:{link.port}"\n{trust}\n'


def _credentials(s: Settings) -> str:
    """The token for commands, as `flwr` keeps the tokens of accounts; JSON is YAML, too."""
    found = {"authn-type": "oidc", "oidc-access-token": control_token(s.folder), "oidc-refresh-token": "none"}
    account = f"flower.account-auth.{s.file.link.host}:{s.file.link.port}"
    return json.dumps({f"{account}.{name}": b64encode(value.encode()).decode() for name, value in found.items()})


def register(s: Settings) -> int:
    """Register the keys of the roster with the link; returns how many were new."""
    if not s.file.link.tls:
        return 0
    new = 0
    for member in roster.read(s.roster).members:
        public = s.folder / "keys" / f"client-{member.id}.pub"
        try:
            flwr(s, "supernode", "register", str(public), launcher.CONNECTION)
            new += 1
        except Refused as why:
            if not any(word in str(why).lower() for word in ("already", "in use", "exist")):
                raise
    return new


def submit(s: Settings) -> int:
    """Start the server's app; returns the number of the run."""
    where = json.dumps(str(s.folder.resolve()))
    answer = flwr(s, "run", str(s.app), launcher.CONNECTION, "--run-config", f"federation={where}")
    return int(answer["run-id"])


def run_state(s: Settings, run: int) -> tuple[str, str]:
    """The status of a run (pending, starting, running or finished) and how it ended."""
    for found in flwr(s, "list", launcher.CONNECTION).get("runs", []):
        if int(found["run-id"]) == run:
            status, _, ended = str(found["status"]).partition(":")
            return status, ended
    return "finished", "unknown"


def halt(s: Settings, run: int) -> None:
    """Stop a run."""
    flwr(s, "stop", str(run), launcher.CONNECTION)


def wait_until_ready(s: Settings, patience: float = 60.0) -> None:
    """Wait until the link answers; raises Refused if it does not within `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            flwr(s, "list", launcher.CONNECTION)
            return
        except Refused:
            if time.monotonic() > until:
                raise
            time.sleep(1)

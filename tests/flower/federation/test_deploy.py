"""The image, the compose file and the Kubernetes manifests name commands that exist, probes, and a volume."""

import inspect
import shlex
from pathlib import Path

import pytest

from fedstale.cli import federation as cli

yaml = pytest.importorskip("yaml", reason="yaml comes with flwr, which is not installed")
DEPLOY = Path(__file__).parents[3] / "deploy"


def words(text):
    """The commands of `fedstale federation` in a line of a shell."""
    parts = [part.strip().removeprefix("exec ") for part in text.split("&&")]
    return [shlex.split(part)[2:] for part in parts]


def check(command):
    """Refuse a command, or an option of one, that does not exist."""
    known = {info.callback.__name__: info.callback for info in cli.app.registered_commands}
    verb, *rest = command
    assert verb in known, command
    given = [word.removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")]
    assert {*given} <= {*inspect.signature(known[verb]).parameters}, command
    assert "/federation" in rest


def test_the_image_is_made_of_the_wheel_and_runs_as_a_user():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["fedstale", "federation"]' in lines
    assert "USER fedstale" in lines
    assert "VOLUME /federation" in lines
    assert any("fedstale-*.whl" in line and "[flower]" in line for line in lines)


def test_the_compose_file_has_a_server_with_its_state_on_a_volume_and_a_client():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server, client = found["services"]["server"], found["services"]["client"]
    for command in words(*server["command"]):
        check(command)
    check(client["command"])
    assert server["volumes"] == ["state:/federation"]
    assert "state" in found["volumes"]
    assert "/health" in server["healthcheck"]["test"][-1]
    compile(server["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert (server["restart"], client["restart"]) == ("on-failure", "always")


def test_the_manifests_have_one_writer_probes_and_a_volume():
    service, server, client = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert [part["kind"] for part in (service, server, client)] == ["Service", "StatefulSet", "Deployment"]
    (container,) = server["spec"]["template"]["spec"]["containers"]
    for command in words(container["command"][-1]):
        check(command)
    check(client["spec"]["template"]["spec"]["containers"][0]["args"])
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": 9100, "scheme": "HTTPS"}
    assert (
        service["spec"]["clusterIP"] == "None"
    )  # the name is the address of the server itself, which it listens on
    assert service["spec"]["selector"] == server["spec"]["template"]["metadata"]["labels"]
    assert server["spec"]["replicas"] == client["spec"]["replicas"] == 1
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in server["spec"]["volumeClaimTemplates"]]
    assert mounted == dict.fromkeys(claims, "/federation")

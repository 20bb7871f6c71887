"""A federation on separate hosts, whose cables are pulled and put back: `python -m tools.federation_hosts`.

Each host is a network namespace with an address and a folder of its own, on a bridge that is one more namespace. A
client's folder holds what docs/deployment.md says that a client needs, and nothing else. First all train; then the
cable of a client is pulled, and that of the server; then every cable is shaken: with latency and loss where the
kernel has `tc netem`, and with short cuts of the connection. The end must have the bits of a simulation with the
recorded participation. It needs root and `ip`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedstale.cli import federation as cli
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher
from fedstale.flower.federation.state.manifest import committed_round, read_metrics
from tools import federation_chaos as chaos

SERVER, CLIENTS = "server", [f"client-{k}" for k in range(chaos.CLIENTS)]
ADDRESSES = {name: f"10.77.0.{k}" for k, name in enumerate([SERVER, *CLIENTS], 1)}
ABSENT = 60.0  # seconds after which a client without a cable must be known to be absent
BACK = 60.0  # seconds after which a client must be heard again once its cable is back
MARK = f"fs{os.getpid()}-"  # of the namespaces


def refused() -> str | None:
    """Why this machine does not allow network namespaces; None if it does."""
    if shutil.which("ip") is None:
        return "there is no command `ip`"
    try:
        ip("netns", "add", f"{MARK}try")
        ip("netns", "del", f"{MARK}try")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed: {error.stderr.strip()}"
    return None


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """The hosts, each with a cable to a switch."""

    def __enter__(self) -> "Network":
        ip("netns", "add", f"{MARK}switch")
        ip("-n", f"{MARK}switch", "link", "add", "bridge", "type", "bridge")
        ip("-n", f"{MARK}switch", "link", "set", "bridge", "up")
        for name, address in ADDRESSES.items():
            ip("netns", "add", MARK + name)
            ip(
                "link", "add", "eth0", "netns", MARK + name, "type", "veth",
                "peer", "name", name, "netns", f"{MARK}switch",
            )  # fmt: skip
            ip("-n", f"{MARK}switch", "link", "set", name, "master", "bridge", "up")
            ip("-n", MARK + name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", MARK + name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*ADDRESSES, "switch"):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", MARK + name)

    def cable(self, name: str, there: bool) -> None:
        """Pull the cable of a host, or put it back."""
        ip("-n", f"{MARK}switch", "link", "set", name, "up" if there else "down")

    def shake(self, name: str) -> bool:
        """Latency and loss on the way to a host; False if the kernel cannot."""
        rule = ["qdisc", "add", "dev", name, "root", "netem", "delay", "50ms", "20ms", "loss", "2%"]
        done = subprocess.run(["tc", "-n", f"{MARK}switch", *rule], capture_output=True)
        return done.returncode == 0

    def on(self, name: str, *command: str) -> str:
        """What a command prints on a host."""
        run = ["ip", "netns", "exec", MARK + name, sys.executable, *command]
        done = subprocess.run(run, capture_output=True, text=True, timeout=180)
        require(done.returncode == 0, f"{name}: {' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout


class Hosts:
    """A federation of quadratics on separate hosts."""

    def __init__(self, network: Network, folder: Path, rounds: int) -> None:
        self.network, self.folder = network, folder
        host = folder / SERVER
        chaos.write_app(host / "app")
        cli.init(
            host, clients=chaos.CLIENTS, rounds=rounds, deadline=chaos.DEADLINE, host=ADDRESSES[SERVER],
            app=host / "app", tls=True,
        )  # fmt: skip
        self.s = settings.read(host)
        for name in CLIENTS:  # as one would copy it to another machine
            for file in ("federation.toml", "roster.json", "keys/ca.pem", f"keys/{name}"):
                target = folder / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(host / file, target)

    def start(self) -> None:
        """Start the link and training on the server's host, and a client on each of the others."""
        fedstale = ("-m", "fedstale", "federation")
        print(self.network.on(SERVER, *fedstale, "up", str(self.folder / SERVER)), end="")
        for k, name in enumerate(CLIENTS):
            print(self.network.on(name, *fedstale, "join", str(self.folder / name), str(k)), end="")
        print(self.network.on(SERVER, *fedstale, "run", "--detach", str(self.folder / SERVER)), end="")

    def stop(self) -> None:
        for name in ADDRESSES:
            launcher.stop_all(self.s._replace(folder=self.folder / name), patience=3.0)

    def heard(self) -> list[list[int]]:
        """The clients that were heard in each round."""
        return [line["heard"] for line in read_metrics(self.s.state)]

    def until(self, what: str, patience: float, condition: Callable[[], bool]) -> None:
        """Wait for something, and print how long it took."""
        began, t = time.monotonic(), committed_round(self.s.state)
        while not condition():
            waited = time.monotonic() - began
            require(waited < patience, f"{what}: not after {waited:.0f} s; heard: {self.heard()[-5:]}")
            time.sleep(0.25)
        rounds = committed_round(self.s.state) - t
        print(f"{what}: after {time.monotonic() - began:.1f} s, {rounds} rounds", flush=True)

    def rounds(self, what: str, more: int, patience: float = chaos.PATIENT) -> None:
        """Wait for so many rounds in which everybody is heard."""
        t, all_ = committed_round(self.s.state), list(range(len(CLIENTS)))
        self.until(what, patience, lambda: self.heard()[t:].count(all_) >= more)

    def pull(self, name: str, client: int) -> None:
        """Pull the cable of a client until the server knows that it is absent, and put it back."""
        self.network.cable(name, there=False)
        t = committed_round(self.s.state)
        self.until(f"{name} without a cable is absent", ABSENT, lambda: _lacks(self.heard()[t:], client))
        self.network.cable(name, there=True)
        t = committed_round(self.s.state)
        self.until(f"{name} is heard again", BACK, lambda: any(client in heard for heard in self.heard()[t:]))


def _lacks(rounds: list[list[int]], client: int) -> bool:
    return any(client not in heard for heard in rounds)


STRANGER = """
import httpx, ssl, sys
trust = ssl.create_default_context(cafile=sys.argv[2])
print(httpx.post(f"https://{sys.argv[1]}:9100/v1/control/list-runs", verify=trust).status_code)
"""


def play(folder: Path, short: bool) -> None:
    """The whole play, or the part with the cable of one client; raises if anything that must hold does not."""
    with Network() as network:
        hosts = Hosts(network, folder, rounds=10**6)
        try:
            hosts.start()
            hosts.rounds("all train", 2)
            trust = folder / CLIENTS[0] / "keys" / "ca.pem"
            code = network.on(CLIENTS[0], "-c", STRANGER, ADDRESSES[SERVER], str(trust))
            require(code.strip() == "403", f"a command from a client's host must be refused with 403, got {code}")
            hosts.pull(CLIENTS[1], 1)
            if not short:
                disturb(hosts)
            hosts.rounds("all train again", 2)
        finally:
            hosts.stop()
        same = read_metrics(hosts.s.state)[-1]["fingerprint"] == chaos.replayed(hosts.s)
        require(same, "the end is not that of a simulation with the same participation")
        print(f"{len(hosts.heard())} rounds, equal to the simulation: {same}")


def disturb(hosts: Hosts) -> None:
    """Pull the server's cable for 45 s, and shake all cables for ten rounds."""
    network = hosts.network
    network.cable(SERVER, there=False)
    time.sleep(45)
    network.cable(SERVER, there=True)
    hosts.rounds("the server is back after 45 s, and all are heard", 1)
    shaken = [network.shake(name) for name in ADDRESSES]
    print("latency 50 ± 20 ms and loss 2 % each way" if all(shaken) else "this kernel has no tc netem")
    if all(shaken):
        hosts.rounds("all train with latency and loss", 5)
    for k in range(20):  # half a second, again and again, at one host after the other
        name = [*ADDRESSES][k % len(ADDRESSES)]
        network.cable(name, there=False)
        time.sleep(0.5)
        network.cable(name, there=True)
        time.sleep(1.5)
    print("20 cuts of half a second each", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="only the cable of one client")
    chosen = parser.parse_args()
    why = refused()
    require(why is None, f"separate hosts cannot be tried here: {why}")
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder), chosen.short)


if __name__ == "__main__":
    main()

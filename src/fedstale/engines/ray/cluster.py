"""Ray's side: a cluster whose address is configured, or one on this machine that ends when it is left."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedstale.core import BadInput
from fedstale.core.system import cores

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # or the death of a process is printed among the results
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of its own future
}
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its name for: listen on 127.0.0.1 alone
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # a cluster whose program was killed does not come back
}
RETRIES = 3  # of a task whose process or node died
KNOCK = 10.0  # seconds that a cluster has to answer
LOOK = 5.0  # seconds from one look at the tasks to the next
GRACE = 60.0  # seconds that tasks have to end in good order, and a result to travel
LOAD = 600.0  # seconds that the data may take to a node

T = TypeVar("T")


def connect(address: str | None = None, cpus: int | None = None) -> tuple[Any, Callable[[], None]]:
    """The library, connected, and what leaves the cluster again.

    A process that is connected stays so. Else it joins the cluster at `address` or RAY_ADDRESS; without
    either, one with so many CPUs is started here, on the loopback, and ends with the process.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    ray = _library(alone=address == "local")
    if ray.is_initialized():
        return ray, lambda: None
    folder = tempfile.mkdtemp(prefix="ray-") if address == "local" else None
    own = {"num_cpus": cpus or cores(), "_node_ip_address": "127.0.0.1", "include_dashboard": False}
    options = own | {"_temp_dir": folder} if folder else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level="error", **options)
    except (OSError, RuntimeError, ValueError) as error:
        what = "engine ray could not start a cluster here" if folder else "RAY_ADDRESS must be that of a cluster"
        raise BadInput(f"{what}, got {address!r}: {error}") from error
    finally:
        if signal.getsignal(signal.SIGTERM) is not handler:  # Ray would exit, whatever is half done
            signal.signal(signal.SIGTERM, handler)

    def leave() -> None:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    return ray, leave


def _library(alone: bool) -> Any:
    """Ray, told before it is loaded to be quiet, and to keep to this machine if there is no other."""
    for key, value in (QUIET | (ALONE if alone else {})).items():
        os.environ.setdefault(key, value)
    try:
        import ray.exceptions  # not `ray`, which may be a folder of that name
    except ImportError as error:
        raise BadInput('engine ray needs the extra: pip install "fedstale[ray]"') from error
    return ray


def _knock(address: str) -> None:
    """Ray itself would wait for minutes at a door that nobody opens."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), KNOCK).close()


Work = Callable[[T], None]


def spread(
    ray: Any, work: Work[T], items: Sequence[T], gpus: int, again: type[Exception], done: Callable[[], None]
) -> None:
    """Every item a task on one CPU, begun again when its process or node dies or it raises `again`.

    Calls `done` after each. When one fails or the program is interrupted, the others get a SIGINT and the
    time to end.
    """
    options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES, "retry_exceptions": [again]}
    task, place = ray.remote(**options)(_visit), os.getcwd()
    waiting = [task.remote(place, work, item) for item in items]
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=LOOK)
            for one in ready:
                _finish(ray, one)
                done()
    except BaseException:
        for one in waiting:
            ray.cancel(one)
        if waiting:
            ray.wait(waiting, num_returns=len(waiting), timeout=GRACE)
        raise


def _finish(ray: Any, one: Any) -> None:
    try:
        result(ray, one)
    except ray.exceptions.RayError as error:
        raise ChildProcessError(f"a cell died {RETRIES + 1} times: is there enough memory?") from error


def _visit(place: str, work: Callable[[T], None], item: T) -> None:
    """In a process of the cluster: from the same folder, if it has it, and with one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    with contextlib.suppress(OSError):
        os.chdir(place)
    work(item)


def result(ray: Any, ready: Any) -> Any:
    """What a task that is done returned, or the error that it raised itself."""
    try:
        return ray.get(ready, timeout=GRACE)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def fetch(box: list[Any]) -> Any:
    """In a process of the cluster: what is in the object store under the reference in the box."""
    import ray

    return ray.get(box[0], timeout=LOAD)

"""The connection of one client to the SuperLink, over Flower's own Fleet interface.

A call that does not reach the link is repeated for ever, with pauses that grow from half a second to ten. What the
link refuses is said in a sentence that names the remedy: Flower itself only says 401.
"""

import datetime
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message

from fedstale.flower.federation import adapter
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.ops.keys import certificate, private_key

PAUSES = (0.5, 10.0)  # seconds before a call is repeated: at first, and at most
INTERVAL = 15.0  # the link considers a client offline two intervals after its last heartbeat
TIMEOUT = 15.0  # seconds without any sign of the link after which a call is repeated; longer with many clients
BEAT = 5.0  # seconds between heartbeats, so that some may be lost
FEW, LESS = 200, 100  # clients above which each polls more rarely, and beats more rarely: that costs the link more
SLOWEST = 20.0  # times that pauses are longer, at most
LANES = 8  # parts of a message that travel at the same time
KEPT = 75.0  # seconds that a connection without requests stays open
AHEAD, BEHIND = 5.0, 305.0  # seconds that Flower lets a client's clock be wrong


class Refused(Exception):
    """The link does not admit this client; the text says why and what to do."""


class Ended(Exception):
    """Nobody waits for this message any more: its run has ended, or it is gone from the link."""


class Crowd:
    """How many clients the link says it has: with many of them each polls and beats more rarely."""

    def __init__(self) -> None:
        self.clients = 0

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """What Flower calls with a request that is about to be sent."""
        response = call_next(context)
        told = response.headers.get("fedstale-clients", "")
        self.clients = int(told[:9]) if told.isdigit() else self.clients
        return response

    def slower(self, few: int = FEW) -> float:
        """How many times longer a client pauses than one of a federation with few clients."""
        return min(max(self.clients / few, 1.0), SLOWEST)

    def pause(self, seconds: float, few: int = FEW) -> float:
        """The pause of this client, which is not the same as that of the others."""
        return seconds * self.slower(few) * random.uniform(0.8, 1.2)


class Fleet:
    """Signs a client in, keeps it online with heartbeats, and carries its messages."""

    def __init__(self, address: str, authority: Path | None, key: Path, notes: Notes) -> None:
        """`authority` is the certificate that the link's is checked against; None is a link without TLS."""
        private = private_key(key)
        self.address, self.notes, self.public = address, notes, adapter.public_key_to_bytes(private.public_key())
        self.crowd = Crowd()
        self.node, self._over = adapter.Node(), threading.Event()
        self.client = adapter.FleetHttpClient.from_server_address(
            address, authority is None, certificate(authority) if authority else None,
            [
                self.crowd, adapter.RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                adapter.NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )  # fmt: skip
        adapter.stay_connected(self.client, KEPT)
        threading.Thread(target=self._beat, daemon=True).start()

    def sign_in(self) -> None:
        """Come online under the node number of this key; raises Refused."""
        known = self.notes.node
        if known is not None:  # killed or cut off: the link may still consider it online, and would refuse
            with suppress(Refused, Ended):
                beat = self._heartbeat(adapter.Node(node_id=known))
                if self._call(self.client.SendNodeHeartbeat, beat).success:
                    self._signed_in(known)
                    return
        interval = INTERVAL * self.crowd.slower()
        activate = adapter.ActivateNodeRequest(public_key=self.public, heartbeat_interval=interval)
        self._signed_in(int(self._call(self.client.ActivateNode, activate).node_id))

    def _signed_in(self, node: int) -> None:
        self.node = adapter.Node(node_id=node)
        self.notes.signed_in(node)

    def close(self) -> None:
        """Go offline, and say so to the link."""
        self._over.set()
        if self.node.node_id:
            with suppress(httpx.HTTPError, RuntimeError):
                self.client.DeactivateNode(adapter.DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

    def receive(self) -> tuple[Message, Any] | None:
        """The next message for this client, without its content, and the tree of its parts."""
        answer = self._call(self.client.PullMessages, adapter.PullMessagesRequest(node=self.node))
        if not answer.messages_list:
            return None
        return adapter.message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]

    def with_content(self, run: int, tree: Any) -> Message:
        """The message with its content."""
        pull = adapter.make_pull_object_fn_protobuf(partial(self._call, self.client.PullObject), self.node, run)
        parts = [part.object_id for part in adapter.iterate_object_tree(tree)]
        try:
            contents = adapter.pull_objects(
                parts,
                pull,
                initial_backoff=0.05,
                backoff_cap=self.crowd.slower(),
                max_concurrent_pulls=self._lanes(),
            )
        except adapter.ObjectPullError as error:
            raise Ended(str(error)) from None
        name = tree.object_id
        confirm = adapter.ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
        self._call(self.client.ConfirmMessageReceived, confirm)
        message = adapter.inflate_object_from_contents(name, contents)
        adapter.set_message_id(message, name)
        assert isinstance(message, Message), "the link hands out messages"
        return message

    def app(self, run: int) -> tuple[Any, Any]:
        """The run with this number, and its app in Flower's format."""
        asked = adapter.GetRunRequest(node=self.node, run_id=run)
        found = adapter.run_from_proto(self._call(self.client.GetRun, asked).run)
        request = adapter.GetFabRequest(node=self.node, hash_str=found.fab_hash, run_id=run)
        return found, adapter.fab_from_proto(self._call(self.client.GetFab, request).fab)

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, which took so many seconds to make."""
        run = reply.metadata.run_id
        adapter.set_message_id(reply, reply.object_id)
        with adapter.no_object_id_recompute():
            bare = adapter.remove_content_from_message(reply) if reply.has_content() else reply
            answer = self._call(
                self.client.PushMessages,
                adapter.PushMessagesRequest(
                    node=self.node, messages_list=[adapter.message_to_proto(bare)],
                    message_object_trees=[adapter.get_object_tree(reply)], clientapp_runtime_list=[seconds],
                ),
            )  # fmt: skip
            call, session = partial(self._call, self.client.PushObject), answer.session_id
            push = adapter.make_push_object_fn_protobuf(call, self.node, run, session)
            try:
                parts, wanted = adapter.get_all_nested_objects(reply), set(answer.objects_to_push)
                adapter.push_objects(parts, push, object_ids_to_push=wanted, max_concurrent_pushes=self._lanes())
            except adapter.ObjectPushError as error:
                raise Ended(str(error)) from None

    def _lanes(self) -> int:
        """Requests at the same time: each has a connection, which a link with many clients has no time for."""
        return 1 if self.crowd.slower() > 1 else LANES

    def _beat(self) -> None:
        """Heartbeats in a thread of their own, also while the client trains."""
        while not self._over.wait(self.crowd.pause(BEAT, LESS)):
            if self.node.node_id:
                with suppress(httpx.HTTPError, RuntimeError):
                    self.client.SendNodeHeartbeat(self._heartbeat(self.node))

    def _heartbeat(self, node: Any) -> Any:
        return adapter.SendNodeHeartbeatRequest(node=node, heartbeat_interval=INTERVAL * self.crowd.slower())

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """The answer to a request, repeated until the link can be reached; raises Refused or Ended."""
        pause, longest = PAUSES
        while True:
            adapter.time_out_after(self.client, TIMEOUT * self.crowd.slower())
            try:
                answer = method(request)
                self.notes.tell("online" if self.node.node_id else "signing in")
                return answer
            except httpx.TransportError as error:
                self.notes.tell(unreachable(self.address, error))
            except httpx.HTTPStatusError as error:
                code = error.response.status_code
                if code in (401, 412):
                    raise Refused(refusal(error.response)) from None
                if code < 500 and code != 429:
                    raise Ended(f"the link answers {code}: {error.response.text[:200]}") from None
                self.notes.tell(f"the link at {self.address} is in trouble: it answers {code}")
            time.sleep(self.crowd.pause(pause))
            pause = min(2 * pause, longest)


def unreachable(address: str, error: httpx.TransportError) -> str:
    """Why the link cannot be reached, and what to do."""
    text, host = str(error), address.rpartition(":")[0]
    if "CERTIFICATE_VERIFY_FAILED" in text and "mismatch" in text:
        return f"the certificate of the link is not for the name {host}: make it with `init --names {host}`"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "take keys/ca.pem from the server's folder again, unless this is another server"
        return f"the authority in keys/ca.pem has not certified the link at {address}: {fix}"
    if "SSL" in text:
        return f"the link at {address} does not use TLS as `tls` in federation.toml says: {text}"
    return f"the link at {address} cannot be reached ({text or type(error).__name__}); trying again"


def refusal(response: httpx.Response) -> str:
    """Why the link refuses a client, and what to do."""
    if response.status_code == 412:
        fix = "it is not registered (`fedstale federation up` on the server registers the keys of the roster)"
        return f"the link does not admit this key: {fix}, or the same key is online elsewhere"
    ahead = _ahead(response)
    if not 1 - BEHIND < ahead < AHEAD - 1:  # the link tells its time to the second
        wrong = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        allowed = f"{AHEAD:.0f} s ahead and {BEHIND:.0f} s behind are allowed"
        return f"the clock of this machine is {wrong} the link's: set it, {allowed}"
    return "the link does not accept the signature: this private key is not the one that is registered"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _ahead(response: httpx.Response) -> float:
    """How many seconds this machine's clock is ahead of the link's; 0 if the response does not tell."""
    try:
        return (_now() - parsedate_to_datetime(response.headers["date"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0

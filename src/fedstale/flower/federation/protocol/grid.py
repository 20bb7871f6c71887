"""Flower's Grid as the link of the round loop.

It adds what Grid does not have: calls end after a while instead of being repeated for ever, a reply that is
too large is not pulled to its end, and errors are sorted by whether the client or the link caused them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Message

from fedstale.flower.federation import adapter
from fedstale.flower.federation.protocol.link import Arrival, Fault, LinkDown, Order
from fedstale.flower.federation.protocol.messages import kind_of, pack_order, unpack_body
from fedstale.flower.federation.state.roster import key_hash

ROOM = 1 << 20  # bytes of a reply besides its update
PATIENCE = 20.0  # seconds that a call to the SuperLink is repeated
UPLOAD = 60.0  # seconds without another part after which a reply that was announced is given up
GROUP = 100  # orders that are given up in one call
OBJECTS = 10_000  # parts of a reply
Code = adapter.ErrorCode
REASONS = {
    Code.LOAD_CLIENT_APP_EXCEPTION: (Fault.rejected, "the client's app does not load"),
    Code.CLIENT_APP_RAISED_EXCEPTION: (Fault.rejected, "the client's app raised an exception"),
    Code.MOD_FAILED_PRECONDITION: (Fault.rejected, "the client's app raised an exception"),
    Code.INVALID_FAB: (Fault.rejected, "the client does not trust the app"),
    Code.CLIENT_APP_CRASHED: (Fault.absent, "the client's app crashed"),
    Code.MESSAGE_UNAVAILABLE: (Fault.absent, "the message expired"),
    Code.REPLY_MESSAGE_UNAVAILABLE: (Fault.absent, "the reply expired"),
    Code.NODE_UNAVAILABLE: (Fault.absent, "offline"),
}


class TooLarge(Exception):
    """More bytes than a reply may have."""


@dataclass
class Announced:
    """A reply of which the link knows the parts; they may still be on their way."""

    handle: str  # of the order
    name: str
    parts: list[str]
    missing: list[str]  # when it was looked for last
    since: float  # when a part came last


class GridLink:
    """A Grid as a Link; nodes are known by the keys that they sign with. `size` is that of an update, in bytes."""

    def __init__(self, grid: Any, size: int = 0) -> None:
        self.grid, self.size = grid, size
        self.left: list[str] = []  # orders that were given up before they were answered
        self.coming: list[Announced] = []
        adapter.give_up_after(grid, PATIENCE)

    def online(self) -> Mapping[int, str]:
        with _reaching():
            return {node.node_id: key_hash(node.public_key) for node in self.grid.get_nodes()}

    def send(self, orders: Sequence[Order], ttl: float) -> Sequence[str | None]:
        messages = [Message(pack_order(o), o.node, kind_of(o), ttl=ttl, group_id=str(o.t)) for o in orders]
        with _reaching():
            return list(self.grid.push_messages(messages))

    def pull(self, messages: Sequence[str]) -> Sequence[Arrival]:
        with _reaching():
            return [self._arrival(*found) for found in self._pull(messages)]

    def forget(self, messages: Sequence[str]) -> None:
        """Delete orders that were not answered in time; if an answer may still come, after a later exchange."""
        gone, done = [reply for reply in self.coming if reply.handle in {*messages}], set[str]()
        self.coming = [reply for reply in self.coming if reply not in gone]
        self.left += [handle for handle in messages if handle not in {reply.handle for reply in gone}]
        with suppress(LinkDown), _reaching():
            for reply in gone:
                self._delete(reply.name, reply.handle)
            for k in range(0, len(self.left), GROUP):
                some = self.left[k : k + GROUP]
                answer = adapter.runtime(self.grid).PullMessages(adapter.PullAppMessagesRequest(message_ids=some))
                for proto in answer.messages_list:
                    self._delete(proto.metadata.message_id, proto.metadata.reply_to_message_id)
                    done.add(proto.metadata.reply_to_message_id)
        self.left = [handle for handle in self.left if handle not in done]

    def _delete(self, *names: str) -> None:
        """Let the link delete the content of messages, which it keeps until it is told that they were received."""
        node, run = self.grid.node, self.grid.run.run_id
        for name in names:
            received = adapter.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
            adapter.runtime(self.grid).ConfirmMessageReceived(received)

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _arrival(self, handle: str, message: Message | None, trouble: str) -> Arrival:
        if message is None:
            return Arrival(handle, None, None, Fault.rejected if trouble == "too large" else Fault.absent, trouble)
        if message.has_error():
            fault, reason = REASONS.get(message.error.code, (Fault.rejected, "unknown error"))
            return Arrival(handle, None, None, fault, reason)
        return Arrival(handle, message.metadata.src_node_id, unpack_body(message.content))

    def _pull(self, handles: Sequence[str]) -> list[tuple[str, Message | None, str]]:
        """Grid.pull_messages with limits of size and time: (handle, message or None, what went wrong).

        It does not wait for the parts of a reply: those that are not there are looked for in the next call.
        """
        asked, known = set(handles), {reply.handle for reply in self.coming}
        if new := [handle for handle in handles if handle not in known]:  # Flower tells of a reply once
            answer = adapter.runtime(self.grid).PullMessages(adapter.PullAppMessagesRequest(message_ids=new))
            for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                parts, said = [part.object_id for part in adapter.iterate_object_tree(tree)], proto.metadata
                self.coming.append(Announced(said.reply_to_message_id, said.message_id, parts, [], self.now()))
        found = list[tuple[str, Message | None, str]]()
        for reply in [reply for reply in self.coming if reply.handle in asked]:
            if (ended := self._whole(reply)) is None:
                continue
            message, trouble = ended
            self.coming.remove(reply)
            found.append((reply.handle, message, trouble))
            usual = message is not None and not message.has_error()  # its order was received and deleted
            self._delete(*([reply.name] if usual else [reply.name, reply.handle]))
        return found

    def _whole(self, reply: Announced) -> tuple[Message | None, str] | None:
        """A reply, or None and what is wrong with it; nothing while parts of it may still come."""
        client, node, run = adapter.runtime(self.grid), self.grid.node, self.grid.run.run_id
        pull = adapter.make_pull_object_fn_protobuf(client.PullObject, node, run)
        try:
            if len(reply.parts) > OBJECTS:
                raise TooLarge
            if still := [part for part in reply.missing if not _there(part, pull)]:
                reply.since = reply.since if len(still) == len(reply.missing) else self.now()
                reply.missing = still
                return None if self.now() - reply.since < UPLOAD else (None, "the reply is not complete")
            reply.missing = list(reply.parts)  # unless all are there now
            contents = adapter.pull_objects(reply.parts, _limited(pull, self.size + ROOM), max_tries_per_object=1)
            message = adapter.inflate_object_from_contents(reply.name, contents)
            return (message, "") if isinstance(message, Message) else (None, "malformed")
        except adapter.ObjectPullError:
            return None if self.now() - reply.since < UPLOAD else (None, "the reply is not complete")
        except TooLarge:
            return None, "too large"
        except (httpx.HTTPError, OSError):
            raise
        except Exception:  # whatever a hostile reply makes the decoder do
            return None, "malformed"


def _there(part: str, pull: Callable[[str], bytes]) -> bool:
    """Whether a part of a reply has come; it is pulled again with the rest, so that the memory does not fill."""
    try:
        pull(part)
    except adapter.ObjectUnavailableError:
        return False
    return True


def _limited(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    left = [most]

    def limited(name: str) -> bytes:
        content = pull(name) if left[0] >= 0 else b""
        left[0] -= len(content)
        if left[0] < 0:
            raise TooLarge
        return content

    return limited


@contextmanager
def _reaching() -> Any:
    """Turn an error on the way to the SuperLink into LinkDown, an infrastructure failure."""
    try:
        yield
    except (httpx.HTTPError, OSError) as error:
        raise LinkDown(f"the link failed: {type(error).__name__}: {error}") from error

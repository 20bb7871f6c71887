"""The checks that a client's reply must pass before it counts; whatever does not pass is refused with a reason."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Message, RecordDict

from fedstale.core import Array, Ids
from fedstale.flower.arrays import Layout, narrow, wide
from fedstale.flower.federation.protocol.arrays import Values
from fedstale.simulate import Diverged

log = logging.getLogger("flwr")  # what Flower prints
LARGEST = 2.0**53  # of a weight: whole numbers are exact up to here


class Sent(NamedTuple):
    """What an update was trained on."""

    age: int  # in steps; 0: the parameters of now
    params: Array  # (d,)


class Asked(NamedTuple):
    """The clients of the round that is under way."""

    nodes: Mapping[int, int]  # node → position of those that train
    messages: Mapping[int, Message]  # node → what it was sent; the grid gives it its id
    idle: Ids  # positions of those that the rule left out
    sent: Mapping[int, Sent] = {}  # position → what it was sent; empty if all were sent the model of now

    def position(self, reply: Message) -> int:
        """The client that this replies to; raises ValueError if its sender was not asked for it."""
        node = reply.metadata.src_node_id
        if node not in self.nodes:
            raise ValueError("was not asked")
        sent = self.messages[node].metadata.message_id
        if sent and sent != reply.metadata.reply_to_message_id:
            raise ValueError("replies to a message of another client")
        return self.nodes[node]


class Keys(NamedTuple):
    """The names of the metrics in which a client tells what the rule needs."""

    weight: str  # usually the number of training samples; every reply must have it
    loss: str
    steps: str


class Checked(NamedTuple):
    """The content of a sound reply."""

    content: RecordDict
    values: Mapping[str, Values]  # of all arrays
    params: Array  # (d,)
    weight: float
    loss: float  # NaN if it was not told
    steps: float  # of local training; NaN if they were not told


def sound(
    replies: Iterable[Message], asked: Asked, layout: Layout, keys: Keys
) -> tuple[dict[int, Checked], dict[str, str]]:
    """Position → reply that can be used, and sender → why it was refused."""
    found: dict[int, Checked] = {}
    refused: dict[str, str] = {}
    for message in replies:
        try:
            if message.has_error():  # of a client, or of the grid, if a reply got lost
                raise ValueError(f"error {message.error.code}: {str(message.error.reason)[:200]}")
            position = asked.position(message)
            if position in found:
                raise ValueError("answered twice; the first reply stands")
            found[position] = _checked(message, layout, keys)
        except ValueError as reason:
            refused[str(message.metadata.src_node_id)] = str(reason)
    senders = {position: str(node) for node, position in asked.nodes.items()}
    odd = _unlike({position: reply.content for position, reply in found.items()})
    refused |= {senders[position]: reason for position, reason in odd.items()}
    return {k: found[k] for k in sorted(found) if k not in odd}, refused


def unweighted(replies: Sequence[Message], key: str) -> bool:
    """Whether most replies tell no weight, so that all count the same: they are given the weight 1."""
    told = [next(iter(m.content.metric_records.values()), None) for m in replies if not m.has_error()]
    metrics = [record for record in told if record is not None]
    if 2 * sum(key in record for record in metrics) >= len(metrics):
        return False
    for record in metrics:
        record[key] = 1.0
    return True


def with_metrics(replies: Iterable[Message], weight: str) -> list[Message]:
    """The replies whose metrics can be averaged, and those with errors; logs the others."""
    kept, errors, refused = {}, [], {}
    for k, message in enumerate(replies):
        try:
            if message.has_error():
                errors.append(message)
            else:
                _weight(message.content, weight)
                kept[k] = message
        except ValueError as reason:
            refused[k] = (message, str(reason))
    refused |= {k: (kept.pop(k), why) for k, why in _unlike({k: m.content for k, m in kept.items()}).items()}
    for message, why in refused.values():
        log.warning("evaluation: the reply of node %s is refused: %s", message.metadata.src_node_id, why)
    return [*kept.values(), *errors]


def _checked(message: Message, layout: Layout, keys: Keys) -> Checked:
    content = message.content
    weight = _weight(content, keys.weight)
    if len(content.array_records) != 1:
        raise ValueError(f"a reply must have one ArrayRecord, got {len(content.array_records)}")
    (arrays,) = content.array_records.values()
    values = layout.told(arrays)
    for s in layout.buffers:
        try:
            narrow(wide(values[s.name]), s)
        except Diverged:
            raise ValueError(f"array {s.name!r} is not finite") from None
    (metrics,) = content.metric_records.values()
    loss, steps = (_number(metrics.get(key)) for key in (keys.loss, keys.steps))
    return Checked(content, values, layout.flat(values), weight, loss, steps if steps >= 1 else math.nan)


def _number(found: object) -> float:
    """The number that was told, or NaN."""
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else math.nan


def _weight(content: RecordDict, key: str) -> float:
    """The weight of a reply in averages; raises ValueError if it has none that can be used."""
    if len(content.metric_records) != 1:
        raise ValueError(f"a reply must have one MetricRecord, got {len(content.metric_records)}")
    (metrics,) = content.metric_records.values()
    if key not in metrics:
        raise ValueError(f"the metrics have no {key!r}")
    found = metrics[key]
    if not isinstance(found, int | float) or not 0 < found <= LARGEST:
        raise ValueError(f"{key!r} must be a number above 0, got {str(found)[:40]}")
    return float(found)


def _unlike(contents: Mapping[int, RecordDict]) -> dict[int, str]:
    """The replies whose metrics have other names or lengths than those of most: they cannot be averaged."""
    forms = {k: _form(content) for k, content in contents.items()}
    most = max(Counter(forms.values()).items(), key=lambda item: item[1], default=((), 0))[0]
    names = str([name for name, _ in most[1:]])[:200]
    return {k: f"its metrics are not those of most replies, {names}" for k, form in forms.items() if form != most}


def _form(content: RecordDict) -> tuple[tuple[str, int], ...]:
    """The name of the record, then those of its metrics, each with the length of its list, or -1 for a number."""
    ((record, metrics),) = content.metric_records.items()
    lengths = ((name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items())
    return ((record, 0), *sorted(lengths))

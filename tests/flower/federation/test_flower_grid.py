"""Orders and replies through Flower's own records, against a Grid in this process."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from tests.flower.federation.parts import TASK, N, made, simulated, simulated_task, table

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedstale.core import Clients, Local
from fedstale.flower.federation import settings
from fedstale.flower.federation.client.app import client_app, task_app
from fedstale.flower.federation.client.training import OneClient, train_on_order
from fedstale.flower.federation.protocol import grid, messages
from fedstale.flower.federation.protocol.arrays import NUMPY
from fedstale.flower.federation.protocol.link import Body, Fault, LinkDown, Order, check
from fedstale.flower.federation.server import app as server_app
from fedstale.flower.federation.server.rounds import Server
from fedstale.flower.federation.state import roster
from tests.flower.federation import inprocess
from tools import federation_fuzz as fuzz

ORDER = Order(1001, 1, 4, "token", "run", 1, Local(lr=0.1), TASK.init(0) + np.float32(0.1))


def context(client):
    return Context(
        run_id=1, node_id=1000 + client, node_config={"client": client}, state=RecordDict(), run_config={}
    )


class FakeGrid:
    """What HttpGrid is to the link: messages go to ClientApps at once, replies wait as objects."""

    def __init__(self, there, change=lambda reply: reply):
        self.there, self.change, self.replies, self.objects = list(there), change, {}, {}
        self.app = task_app(lambda c: (TASK, int(c.node_config["client"])))
        self._retry_invoker, self.node, self.run = SimpleNamespace(max_time=None), None, SimpleNamespace(run_id=1)
        self._runtime_client = SimpleNamespace(
            PullMessages=self._pull, PullObject=self._object,
            ConfirmMessageReceived=lambda request: self.deleted.append(request.message_object_id),
        )  # fmt: skip
        self.deleted, self.asked = [], []

    def get_nodes(self):
        return [SimpleNamespace(node_id=1000 + i, public_key=f"client {i}".encode()) for i in self.there]

    def push_messages(self, orders):
        for message in orders:
            message.metadata.__dict__["_message_id"] = message.object_id
            client = message.metadata.dst_node_id - 1000
            reply = self.change(self.app(message, context(client)))
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            self.replies[message.metadata.message_id] = reply
        return [m.metadata.message_id for m in orders]

    def _pull(self, request):
        self.asked.append(request.message_ids)
        found = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        protos, trees = [], []
        for reply in found:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            protos.append(message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply))
            trees.append(get_object_tree(reply))
        return SimpleNamespace(messages_list=protos, message_object_trees=trees)

    def _object(self, request):
        content = self.objects.get(request.object_id, b"")
        return SimpleNamespace(object_found=True, object_available=bool(content), object_content=content)


@pytest.fixture(autouse=True)
def _fake_requests(monkeypatch):
    for name in ("PullAppMessagesRequest", "ConfirmMessageReceivedRequest"):
        monkeypatch.setattr(grid.adapter, name, SimpleNamespace)
    monkeypatch.setattr(grid.adapter, "make_pull_object_fn_protobuf", _pull_fn)
    monkeypatch.setattr(grid, "UPLOAD", 0.1)
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


def _pull_fn(pull, node, run):
    def fn(name):
        found = pull(SimpleNamespace(object_id=name))
        if not found.object_available:
            raise grid.adapter.ObjectUnavailableError(name)
        return found.object_content

    return fn


def link_to(fake):
    return grid.GridLink(fake, size=4 * TASK.d)


def one(fake):
    link = link_to(fake)
    handles = link.send([ORDER], 60.0)
    (arrival,) = link.pull(handles)
    assert arrival.message == handles[0]
    return arrival


def test_an_order_survives_its_message():
    drifted = ORDER._replace(drift=np.arange(TASK.d, dtype=np.float32))
    for order, kind in ((ORDER, messages.TRAIN), (drifted, messages.TRAIN), (ORDER, messages.LOSS)):
        got = messages.unpack_order(messages.pack_order(order), kind, 1001)
        assert got.train == (kind == messages.TRAIN)
        assert np.array_equal(got.params, order.params)
        assert got.drift is None if order.drift is None else np.array_equal(got.drift, order.drift)
        assert got._replace(params=None, drift=None, train=True) == order._replace(params=None, drift=None)


def test_a_reply_arrives_as_it_was_given():
    arrival = one(FakeGrid(range(N)))
    assert arrival.node == 1001
    given = train_on_order(OneClient(TASK, 1), ORDER)
    assert arrival.body == given._replace(update=Array(*given.update))


def test_the_link_is_told_to_delete_every_reply_and_the_order_of_a_refused_one():
    fake = FakeGrid(range(N))
    link = link_to(fake)
    (arrival,) = link.pull(handles := link.send([ORDER], 60.0))
    assert arrival.body
    assert len(fake.deleted) == 1
    link.size, fake.deleted = -(1 << 20), []  # everything is too large
    (arrival,) = link.pull(handles := link.send([ORDER], 60.0))
    assert arrival.reason == "too large"
    assert len(fake.deleted) == 2
    assert handles[0] in fake.deleted


def test_an_order_that_is_given_up_is_deleted_when_it_is_answered_or_has_expired():
    fake = FakeGrid(range(N))
    link = link_to(fake)
    handles = link.send([ORDER], 60.0)
    reply = fake.replies.pop(handles[0])  # which takes its time
    link.forget(handles)
    assert fake.deleted == []
    fake.replies[handles[0]] = reply
    link.forget([])
    assert handles[0] in fake.deleted
    assert len(fake.deleted) == 2
    link.forget([])
    assert len(fake.deleted) == 2


def test_a_link_that_is_down_when_orders_are_given_up_is_asked_again(monkeypatch):
    fake = FakeGrid(range(N))
    link = link_to(fake)
    handles, pull = link.send([ORDER], 60.0), fake._runtime_client.PullMessages

    def broken(request):
        raise OSError("down")

    fake._runtime_client.PullMessages = broken
    link.forget(handles)
    fake._runtime_client.PullMessages = pull
    link.forget([])
    assert handles[0] in fake.deleted


def test_a_federation_over_flower_messages_has_the_bits_of_a_simulation(tmp_path):
    rows, fake = table(5), FakeGrid(range(N))
    s = Server(made(tmp_path, rounds=5), link_to(fake), lambda: inprocess.roster_of(range(N)), TASK.init)
    play = s.play()
    for row in rows:
        fake.there = np.flatnonzero(row).tolist()
        closed = next(play)
    play.close()
    assert np.array_equal(closed.state.checkpoint.params, simulated(s.settings, rows))


def test_the_key_of_a_node_is_its_identity():
    assert dict(link_to(FakeGrid([2, 5])).online()) == {1002: inprocess.key_of(2), 1005: inprocess.key_of(5)}


@pytest.mark.parametrize(
    ("code", "fault"), [(1, Fault.rejected), (2, Fault.rejected), (5, Fault.absent), (99, Fault.rejected)]
)
def test_an_error_is_told_by_whose_fault_it_is_and_never_in_the_clients_words(code, fault):
    def broken(reply):
        made_ = Message(RecordDict(), dst_node_id=1, message_type="train", ttl=60.0)
        made_.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        made_.metadata.__dict__["_src_node_id"] = 1001
        return Message(Error(code, "<script>"), reply_to=made_)

    arrival = one(FakeGrid(range(N), broken))
    assert (arrival.fault, arrival.body) == (fault, None)
    assert "script" not in arrival.reason


def content_of(reply, content):
    reply.content = content
    return reply


def test_a_reply_that_is_too_large_is_not_even_fetched_whole():
    big = RecordDict({"arrays": ArrayRecord({"update": Array("float32", (1,), NUMPY, bytes(1 << 25))})})
    arrival = one(FakeGrid(range(N), lambda reply: content_of(reply, big)))
    assert (arrival.fault, arrival.reason) == (Fault.rejected, "too large")


def test_the_part_that_is_fetched_last_counts_as_well():
    fetch = grid._limited(lambda name: bytes(10), 15)
    assert fetch("first") == bytes(10)
    with pytest.raises(grid.TooLarge):
        fetch("last")


def test_a_reply_whose_parts_never_come_is_absent():
    fake = FakeGrid(range(N))
    fake._object = lambda request: SimpleNamespace(object_found=True, object_available=False, object_content=b"")
    fake._runtime_client.PullObject = fake._object
    link, clock = link_to(fake), [0.0]
    link.now = lambda: clock[0]
    handles = link.send([ORDER], 60.0)
    for clock[0] in (0.0, grid.UPLOAD / 2):
        assert link.pull(handles) == []
    clock[0] = grid.UPLOAD
    (arrival,) = link.pull(handles)
    assert (arrival.fault, arrival.reason) == (Fault.absent, "the reply is not complete")
    assert link.pull(handles) == []


def test_a_reply_that_is_on_its_way_holds_nobody_up_and_may_take_as_long_as_its_parts_come():
    fake, late = FakeGrid(range(N)), ORDER._replace(node=1002, client=2)
    link, clock, there = link_to(fake), [0.0], set()
    link.now = lambda: clock[0]
    handles = link.send([late, ORDER], 60.0)
    parts = list(get_all_nested_objects(fake.replies[handles[0]]))
    whole = fake._runtime_client.PullObject

    def some(request):
        missing = request.object_id in parts and request.object_id not in there
        return SimpleNamespace(object_found=True, object_available=False) if missing else whole(request)

    fake._runtime_client.PullObject = some
    assert [arrival.message for arrival in link.pull(handles)] == [handles[1]]
    for part in parts[:-1]:
        there.add(part)
        clock[0] += 0.8 * grid.UPLOAD
        assert link.pull(handles[:1]) == []
    there.add(parts[-1])
    (arrival,) = link.pull(handles[:1])
    assert arrival.node == 1002
    assert arrival.body
    assert fake.asked == [handles]  # asked again, Flower says that there is no such message


def test_what_is_on_its_way_to_an_order_that_is_given_up_is_deleted():
    fake = FakeGrid(range(N))
    fake._runtime_client.PullObject = lambda request: SimpleNamespace(object_found=True, object_available=False)
    link = link_to(fake)
    link.now = lambda: 0.0
    handles = link.send([ORDER], 60.0)
    assert link.pull(handles) == []
    (reply,) = link.coming
    link.forget(handles)
    assert (link.coming, link.left) == ([], [])
    assert fake.deleted == [reply.name, handles[0]]
    assert fake.asked == [handles]


def test_garbage_for_objects_is_malformed():
    fake = FakeGrid(range(N))
    fake._runtime_client.PullObject = lambda request: SimpleNamespace(
        object_found=True, object_available=True, object_content=pickle.dumps(fuzz.Bomb())
    )
    arrival = one(fake)
    assert (arrival.body, arrival.reason) == (None, "malformed")
    assert not fuzz.Bomb.opened


def test_a_link_that_does_not_answer_is_down():
    fake = FakeGrid(range(N))
    fake.get_nodes = lambda: (_ for _ in ()).throw(ConnectionRefusedError("no"))
    with pytest.raises(LinkDown, match="ConnectionRefusedError"):
        link_to(fake).online()
    assert fake._retry_invoker.max_time == grid.PATIENCE


def test_two_thousand_odd_records_make_a_body_or_nothing():
    rng, whole = np.random.default_rng(3), messages.pack_body(train_on_order(OneClient(TASK, 1), ORDER))
    assert messages.unpack_body(whole) is not None
    records = [
        ConfigRecord({"t": 1}), ConfigRecord({"t": "x", "client": [1], "token": b"", "run": 2.0}), ConfigRecord(),
        MetricRecord({"loss": 1}), MetricRecord({"loss": [1.0, 2.0]}), MetricRecord(), ArrayRecord(),
        ArrayRecord({"update": Array("O", (1,), "pickle", pickle.dumps(fuzz.Bomb()))}),
        *whole.values(),
    ]  # fmt: skip
    for _ in range(2000):
        names = [["reply", "loss", "arrays", "update", ""][k] for k in rng.integers(0, 5, rng.integers(0, 5))]
        made_ = RecordDict({name: records[int(rng.integers(len(records)))] for name in names})
        body = messages.unpack_body(made_)
        assert body is None or isinstance(body, Body)
    assert not fuzz.Bomb.opened


def test_a_module_and_a_loader_make_a_client_with_the_bits_of_a_simulation():
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    from fedstale.core import Job
    from fedstale.engines import Serial
    from fedstale.flower.federation.server.app import of_module
    from fedstale.tasks.supervised import Supervised

    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(20, 4, generator=draw), torch.randint(3, (20,), generator=draw)) for _ in range(N)]
    make = lambda: torch.nn.Linear(4, 3)  # noqa: E731
    app = client_app(make, lambda c: DataLoader(TensorDataset(*data[c.node_config["client"]]), batch_size=7))
    task, fake = Supervised(make, data), FakeGrid(range(N))
    fake.app, start = app, of_module(make)(5)
    assert np.array_equal(start, task.init(5))
    link = grid.GridLink(fake, size=4 * task.d)
    (arrival,) = link.pull(link.send([ORDER._replace(params=start)], 60.0))
    reply = Serial(task, ORDER.local).train([Job(start, np.array([1]), 1, 4, ORDER.local)])[0]
    assert arrival.body.update.numpy().tobytes() == reply.updates[0].tobytes()
    assert arrival.body.loss == float(reply.losses[0])


def recorded(folder, fake, start, rounds, layout=None):
    """The rounds that a ServerApp of the federation in this folder plays."""
    s = settings.read(folder)
    file = s.file.model_copy(update={"rounds": rounds})
    return list(server_app.record(s._replace(file=file), fake, start, layout))


def test_a_server_app_plays_and_resumes(tmp_path):
    (tmp_path / "federation.toml").write_text('name = "x"\nrounds = 1\n[local]\nlr = 0.05\nsteps = 3\n')
    roster.save(tmp_path / "roster.json", inprocess.roster_of(range(N)))
    start = lambda seed: np.zeros(7, np.float32)  # noqa: E731
    one_, two = (recorded(tmp_path, FakeGrid(range(N)), start, rounds) for rounds in (2, 4))
    assert [[closed.line["round"] for closed in part] for part in (one_, two)] == [[1, 2], [3, 4]]
    end = two[-1].state.checkpoint.params
    assert np.array_equal(end, simulated(settings.read(tmp_path), np.ones((4, N), bool)))
    assert (tmp_path / "trace.csv").exists()


def test_a_model_with_batch_norm_has_the_bits_of_a_simulation(tmp_path):
    """Through of_module, client_app, Flower's records and the export."""
    torch = pytest.importorskip("torch")
    from fedstale.flower.federation.server.app import of_module
    from fedstale.flower.federation.state.backup import read_model
    from fedstale.tasks.supervised import Supervised

    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(20, 4, generator=draw), torch.randint(3, (20,), generator=draw)) for _ in range(N)]
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))  # noqa: E731
    task, fake = Supervised(make, data), FakeGrid(range(N))
    fake.app = client_app(make, lambda c: [data[c.node_config["client"]]])
    params, buffers = of_module(make)(1)
    assert np.array_equal(params, task.init(1))
    assert np.array_equal(buffers, task.initial_buffers)
    (tmp_path / "federation.toml").write_text('name = "x"\nrounds = 1\n[local]\nlr = 0.05\nsteps = 3\n')
    roster.save(tmp_path / "roster.json", inprocess.roster_of(range(N)))
    recorded(tmp_path, fake, of_module(make), 3, of_module(make).layout())
    due = simulated_task(settings.read(tmp_path), np.ones((3, N), bool), task)
    end = task.model(due.params, due.buffers).state_dict()
    t, exported = read_model(tmp_path)
    assert t == 3
    assert exported.keys() == end.keys()
    assert exported["1.num_batches_tracked"] == 9
    for name, value in end.items():
        assert np.array_equal(exported[name], value.numpy()), name
        assert exported[name].dtype == value.numpy().dtype
    assert of_module(make).layout() == task.layout()


@pytest.mark.parametrize("personal", [(), ("0.weight",)])
def test_a_client_evaluates_on_its_test_samples(personal, tmp_path):
    torch = pytest.importorskip("torch")
    from fedstale.flower.federation.server.app import of_module
    from fedstale.tasks.supervised import Supervised

    draw = torch.Generator().manual_seed(0)
    train, held = (
        [(torch.randn(20, 4, generator=draw), torch.randint(3, (20,), generator=draw))] for _ in range(2)
    )
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))  # noqa: E731
    fake, start = FakeGrid(range(N)), of_module(make, personal=personal)(5)
    fake.app = client_app(make, lambda c: train, test=lambda c: held, personal=personal)
    link = grid.GridLink(fake, size=4 * len(start))
    order = ORDER._replace(params=start, train=False, evaluate=True)
    (arrival,) = link.pull(link.send([order], 60.0))
    task = Supervised(make, train, test=held, personal=personal)
    due = (
        task.evaluate(start)
        if not personal
        else task.evaluate(start, None, Clients({0: task.initial_state(ORDER.seed)}))
    )
    got = check(arrival.body, order, np.empty(1, np.float32))
    assert got.loss == pytest.approx(due["loss"], rel=1e-6)
    assert got.update[0] == pytest.approx(due["accuracy"])

"""The client, as in any Flower app: fedstale is not mentioned."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.availability import sometimes
from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()
torch.set_num_threads(1)


def received(message: Message, context: Context):
    """The model that was sent, and this client's data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.node_config
    return net, load_data(int(config["partition-id"]), int(config["num-partitions"]))


@app.train(mods=[sometimes])
def train(message: Message, context: Context) -> Message:
    net, dataset = received(message, context)
    config = message.content["config"]
    loss = train_fn(net, dataset, epochs=1, lr=config["lr"], seed=config["server-round"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, dataset = received(message, context)
    loss, accuracy = test_fn(net, *dataset.tensors)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

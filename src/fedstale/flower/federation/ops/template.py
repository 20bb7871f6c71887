"""The files that `fedstale federation init` writes: federation.toml and a small Flower app to start from."""

import json

FEDERATION = """\
# What is trained and how. Changing anything above [round] begins another federation: use another folder.
name = {name}
rounds = {rounds}
seed = 1
strategy = {strategy}  # a name of `fedstale list recipes`, or "package.module:Name"
server = "sgd"
app = {app}  # the Flower app, from this folder

[local]
lr = 0.1
steps = 5
batch = 32

[round]
deadline = {deadline}  # seconds; an update that comes later is refused
quorum = 1        # a round with fewer good updates is void and tried again
evaluate = 0      # 10: after every tenth round the clients evaluate the model on their test samples

[link]
host = {host}
port = {port}
tls = {tls}

# [health]
# port = 9101  # /health and /metrics of the server, on 127.0.0.1
"""


def federation(
    *, name: str, rounds: int, strategy: str, app: str, deadline: float, host: str, port: int, tls: bool
) -> str:
    """The text of a federation.toml; `strategy` is a name, or an inline table in TOML."""
    rule = strategy if strategy.startswith("{") else json.dumps(strategy)
    text = {key: json.dumps(value) for key, value in {"name": name, "app": app, "host": host, "tls": tls}.items()}
    return FEDERATION.format(strategy=rule, rounds=rounds, deadline=deadline, port=port, **text)


PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "A federation"
license = "Apache-2.0"
dependencies = ["fedstale[flower]"]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "learning.server:app"
clientapp = "learning.client:app"

[tool.flwr.app.config]
federation = ""  # filled in by `fedstale federation run`
"""

MODEL = '''\
"""The model, the same for the server and every client."""

from torch import nn


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
'''

CLIENT = '''\
"""A client: the model and its own data."""

import torch
from learning.model import model
from torch.utils.data import DataLoader, TensorDataset

from fedstale.data import load
from fedstale.flower import client_app


def digits(first):
    """Replace this by your own samples; here each client takes every 100th of the 8 × 8 digits."""
    whole, mine = load("digits"), slice(first, None, 100)
    x = torch.from_numpy(whole.x[mine]).float() / whole.scale
    return DataLoader(TensorDataset(x, torch.from_numpy(whole.y[mine])), batch_size=64)


def data(context):
    """What this client trains on."""
    return digits(first=int(context.node_config["client"]))


def test(context):
    """What this client evaluates the model on, if federation.toml says so."""
    return digits(first=99 - int(context.node_config["client"]))


app = client_app(model, data, test=test)
'''

SERVER = '''\
"""The server: where training starts. The rest is in federation.toml."""

from learning.model import model

from fedstale.flower import of_module, server_app

app = server_app(of_module(model))
'''

APP = {
    "pyproject.toml": PYPROJECT,
    "learning/__init__.py": '"""A Flower app."""\n',
    "learning/model.py": MODEL,
    "learning/client.py": CLIENT,
    "learning/server.py": SERVER,
}

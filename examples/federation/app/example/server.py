"""The server: where training starts. The rest is in federation.toml."""

from example.task import model
from fedstale.flower import of_module, server_app

app = server_app(of_module(model))

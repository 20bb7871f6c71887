"""A client: the model and its own samples."""

from torch.utils.data import DataLoader, TensorDataset

from example.task import model, samples
from fedstale.flower import client_app


def data(context):
    return DataLoader(TensorDataset(*samples(int(context.node_config["client"]))), batch_size=64)


app = client_app(model, data)

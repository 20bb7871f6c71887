"""Your own PyTorch model and data: two algorithms compared, with stored runs, a table, a picture and a report."""

import torch
from torch import nn

import fedstale as fs


class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)


def client(shares, samples=60):  # yours: one pair (inputs, targets) per client
    y = torch.multinomial(torch.tensor(shares), samples, replacement=True)
    return torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])[y] + torch.randn(samples, 2), y


if __name__ == "__main__":  # engines may start processes, which read this file again
    torch.manual_seed(0)
    train, test = ([client([0.5, 0.4, 0.1])] * 6 + [client([0.1, 0.1, 0.8])] * 6 for _ in range(2))
    task = fs.Supervised(Net, train, test)
    who, local = fs.TwoGroups(p_min=0.1), fs.Local(lr=0.1, batch=16)
    rules = ["fedavg", "auto"]
    found = fs.compare(task, rules, who, rounds=40, seeds=(1, 2), local=local, name="own-model", resume=True)
    found.table()  # then: fedstale report runs
    torch.save(task.model(found.runs[-1].params()).state_dict(), "model.pt")

"""Arrays of scikit-learn: hospitals that see tumours of different size; the ones with large tumours come rarely.

Needs `pip install scikit-learn`.
"""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import fedstale as fs

HOSPITALS = 10


def model():
    return nn.Linear(30, 2)  # logistic regression


def recall(outputs, targets):
    """The share of the malignant tumours that are found; not defined where a hospital has none."""
    return recall_score(targets, outputs.argmax(1), zero_division=np.nan)


if __name__ == "__main__":  # engines may start processes, which read this file again
    table = load_breast_cancer(as_frame=False)
    x, y = table.data, 1 - table.target  # malignant is 1
    size = x[:, list(table.feature_names).index("mean radius")]  # the column that tells the clients apart
    hospital = np.searchsorted(np.quantile(size, np.linspace(0, 1, HOSPITALS + 1)[1:-1]), size)  # (samples,)
    x = torch.tensor(StandardScaler().fit_transform(x), dtype=torch.float32)

    clients = []
    for i in range(HOSPITALS):
        rows = train_test_split(np.flatnonzero(hospital == i), test_size=0.3, random_state=0)
        clients.append([(x[r], torch.tensor(y[r])) for r in rows])
    train, test = zip(*clients, strict=True)

    task = fs.Supervised(model, train, test, metrics={"recall": recall})
    settings: dict[str, Any] = {"rounds": 100, "seeds": (1, 2, 3), "local": fs.Local(lr=0.05, steps=5, batch=16)}
    found = fs.compare(task, ["fedavg", "auto"], fs.TwoGroups(p_min=0.1), **settings, name="hospitals")
    found.table()  # then: fedstale report runs
    for run in found.runs[:2]:
        accuracy = task.per_client(run.params())["accuracy"]
        print(f"{run.path.name:20} frequent {accuracy[:5].mean():.3f}   rare {accuracy[5:].mean():.3f}")

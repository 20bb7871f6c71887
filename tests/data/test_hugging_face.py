"""Clients from a Hugging Face dataset, with the real packages."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.core import BadInput
from fedstale.engines.processes.pool import Pool
from fedstale.tasks.checksum import describe_task

REASON = "{} is not installed; `make test-examples` runs these with the extra `hf`"
datasets = pytest.importorskip("datasets", reason=REASON.format("datasets"))
pytestmark = pytest.mark.filterwarnings("default")  # of the other packages
RNG = np.random.default_rng(0)
X, Y, writers = RNG.normal(size=(90, 5)).astype("float32"), RNG.integers(0, 3, 90), RNG.integers(0, 4, 90)


def table(x=X, **more):
    columns = {"pixels": x, "label": Y, "writer": [f"w{i}" for i in writers], "mask": (x > 0).astype("int64")}
    return datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()} | more)


def linear():
    return nn.Linear(5, 3)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, pixels, mask):
        return self.out(pixels * mask)


def last(task, engine=fs.Serial):
    with np.errstate(all="raise"):
        *_, end = fs.simulate(engine(task, fs.Local(lr=0.1)), fs.FedAvg(), fs.Bernoulli(0.7), rounds=4, seed=1)
    return end.params


def test_every_value_of_a_column_is_a_client_and_trains_as_tensors_do():
    clients = fs.data.from_hf(table(), "writer", inputs="pixels", target="label")
    pairs = [(X[writers == i], Y[writers == i]) for i in range(4)]
    (whole,) = fs.data.from_hf(table(), None, inputs="pixels", target="label")
    assert [len(mine) for mine in clients] == [len(y) for _, y in pairs]
    task = fs.Supervised(linear, clients, central_test=whole)
    plain = fs.Supervised(linear, pairs, central_test=(X, Y))
    assert np.array_equal(last(task), last(plain))
    assert task.evaluate(task.init(0)) == pytest.approx(plain.evaluate(plain.init(0)))


def test_several_columns_are_passed_by_keyword():
    clients = fs.data.from_hf(table(), "writer", inputs=["pixels", "mask"], target="label")
    rows = [writers == i for i in range(4)]
    pairs = [({"pixels": X[mine], "mask": (X[mine] > 0).astype("int64")}, Y[mine]) for mine in rows]
    assert np.array_equal(last(fs.Supervised(Masked, clients)), last(fs.Supervised(Masked, pairs)))


def test_processes_get_the_table_once():
    clients = fs.data.from_hf(table(), "writer", inputs="pixels", target="label")
    assert len(pickle.dumps(clients)) < 1.2 * len(pickle.dumps(clients[:1]))
    task = fs.Supervised(linear, clients)
    with Pool(task, fs.Local(lr=0.1), workers=2) as pool:
        assert np.array_equal(last(task, lambda *_: pool), last(task))


def test_a_transform_of_the_dataset_is_kept():
    doubled = table().with_transform(
        lambda rows: {"pixels": 2 * torch.tensor(rows["pixels"]), "label": rows["label"]}
    )
    clients = fs.data.from_hf(doubled, "writer", inputs="pixels", target="label")
    pairs = [(2 * X[writers == i], Y[writers == i]) for i in range(4)]
    assert np.array_equal(last(fs.Supervised(linear, clients)), last(fs.Supervised(linear, pairs)))


def test_other_rows_are_another_task():
    def content(x):
        task = fs.Supervised(linear, fs.data.from_hf(table(x), "writer", inputs="pixels", target="label"))
        return describe_task(task)[0]["content"]

    assert content(X) == content(X.copy())
    assert content(X) != content(X + np.float32(0.1))


def test_partitioners_of_flower_are_accepted():
    partitioner = pytest.importorskip("flwr_datasets.partitioner", reason=REASON.format("flwr-datasets"))
    whole, labels = table(), partitioner.NaturalIdPartitioner(partition_by="label")
    iid = fs.data.from_hf(whole, partitioner.IidPartitioner(num_partitions=6), inputs="pixels", target="label")
    assert [len(mine) for mine in iid] == [15] * 6
    clients = fs.data.from_hf(whole, labels, inputs="pixels", target="label")
    assert [{int(y) for _, y in mine.__getitems__([*range(len(mine))])} for mine in clients] == [{0}, {1}, {2}]
    again = fs.data.from_hf(whole, labels, inputs="pixels", target="label")
    assert [len(mine) for mine in again] == [len(mine) for mine in clients], "it has its dataset already"
    last(fs.Supervised(linear, iid))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dataset": {"train": [1]}}, 'dataset must be one split, such as .*"train".*, got dict'),
        ({"partition_by": "writr"}, "partition_by: column 'writr' is unknown; did you mean 'writer'"),
        ({"partition_by": 7}, "partition_by must be a column or a partitioner of flwr-datasets, got 7"),
        ({"inputs": ["pixels", "msk"]}, "column 'msk' is unknown; did you mean 'mask'"),
        ({"target": "labels"}, "column 'labels' is unknown; did you mean 'label'"),
    ],
)
def test_what_cannot_be_divided_is_refused(change, sentence):
    given = {"dataset": table(), "partition_by": "writer", "inputs": "pixels", "target": "label"} | change
    with pytest.raises(BadInput, match=sentence):
        fs.data.from_hf(given.pop("dataset"), given.pop("partition_by"), **given)


def test_words_are_no_inputs_and_no_rows_are_no_clients():
    with pytest.raises(BadInput, match="samples must be numbers, got str"):
        fs.Supervised(linear, fs.data.from_hf(table(), "writer", inputs="writer", target="label"))
    with pytest.raises(BadInput, match="dataset must have rows, got none"):
        fs.data.from_hf(table().select([]), "writer", inputs="pixels", target="label")

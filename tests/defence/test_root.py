"""A few labelled samples at the server tell an update from its opposite, from the first one on."""

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.core import BadInput
from fedstale.defence import Defence
from fedstale.defence.root import agreement
from fedstale.lab import schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from tests.lab.test_defence import RAW as QUADRATIC

N, D = 8, 12
DRAW = np.random.default_rng(5)
LABELS = np.arange(24) % 4
X = (np.eye(4, D)[LABELS] + 0.1 * DRAW.standard_normal((24, D))).astype(np.float32)
GRADIENTS = DRAW.standard_normal((4, 50))


def linear():
    return torch.nn.Linear(D, 4)


def task():
    """Eight clients with one label each, the same at i and i + 4."""
    rows = [np.flatnonzero(np.equal(LABELS, i % 4)) for i in range(N)]
    return fs.Supervised(linear, [(X[k], LABELS[k]) for k in rows], central_test=(X, LABELS))


def runs(liars, defence, rounds=12):
    """Four clients are always there, four in one round out of five."""
    engine = fs.engine("serial", task(), fs.Local(lr=0.5, steps=2, batch=4))
    return [*fs.simulate(engine, fs.FedStale(0.5), fs.TwoGroups(p_min=0.2), rounds=rounds, seed=2,
                         estimator=fs.Intervals(), defence=defence, liars=liars)]  # fmt: skip


def lies(found, clients):
    """Which updates of these clients were used, and how many of the others were refused."""
    used = [(s.t, i) for s in found for i in s.clients.tolist() if i in clients]
    return used, sum(i not in clients for s in found for i in s.refused.tolist())


def test_a_mixture_of_labels_explains_an_update_and_not_its_opposite():
    noise = DRAW.standard_normal((3, 50))
    updates = np.stack([-GRADIENTS[0], -GRADIENTS[1] - 3 * GRADIENTS[2], -GRADIENTS[3]]) + 0.3 * noise
    found = agreement(GRADIENTS, updates.astype(np.float32))
    assert found.min() > 0.5
    np.testing.assert_allclose(agreement(GRADIENTS, -updates.astype(np.float32)), -found)
    np.testing.assert_allclose(agreement(GRADIENTS, 1e30 * updates), found)


def test_zeros_and_labels_that_are_learned_say_nothing():
    zeros = np.zeros((1, 50), np.float32)
    assert agreement(GRADIENTS, zeros).tolist() == agreement(0 * GRADIENTS, zeros + 1).tolist() == [0]


def test_root_has_the_gradient_of_each_label():
    root, w = fs.tasks.Root(linear, X, LABELS), task().init(3)
    found = root(w)
    assert (repr(root), found.shape) == ("Root(24 samples, 4 labels)", (4, task().d))
    model = task().model(w)
    mine = torch.from_numpy(X[LABELS == 2])
    torch.nn.functional.cross_entropy(model(mine), torch.full((len(mine),), 2)).backward()
    np.testing.assert_allclose(found[2], np.concatenate([p.grad.flatten() for p in model.parameters()]), atol=1e-6)
    with pytest.raises(BadInput, match="root samples are for a model of 52 parameters, got one of 3"):
        root(w[:3])


def test_targets_that_are_no_classes_are_one_label():
    root = fs.tasks.Root(lambda: torch.nn.Linear(D, 1), X, X[:, :1], loss=torch.nn.MSELoss())
    assert root(np.zeros(D + 1, np.float32)).shape == (1, D + 1)


@pytest.mark.parametrize("clients", [(0, 1), (6, 7)])
def test_liars_with_root_data_are_refused_from_their_first_update_on(clients):
    liars = fs.defence.Liars(clients, -1.0)
    used, wrong = lies(runs(liars, Defence(root=12)), clients)
    assert (used, wrong) == ([], 0)
    used, _ = lies(runs(liars, Defence()), clients)
    assert used  # its own past is not enough


def test_without_liars_nobody_is_refused():
    plain, rooted = runs(None, None), runs(None, Defence(root=12))
    assert [lies(found, ())[1] for found in (plain, rooted)] == [0, 0]
    assert fs.evaluate(task(), rooted[-1])["accuracy"] == 1


def judged(root, norm):
    """What the update of client 3 is multiplied by, and why it is refused; the others have norm 1."""
    defence, ones = Defence(root=root), np.ones(4, np.float32)
    updates = np.array([[1, 0]] * 3 + [[0, norm]], np.float32)
    r = fs.core.Round(
        1, np.zeros(2, np.float32), np.arange(4), updates, np.ones((4, 1), bool), 0 * ones, ones / 4, ones
    )
    verdict = defence.judge(defence.init(4, 2), r, False)
    return float(verdict.scales[3]), verdict.reasons[3]


def test_an_update_that_is_too_long_and_explained_is_shortened():
    def root(w):
        return -np.eye(2)

    assert judged(root, 20.0) == (pytest.approx(1 / 20), "")
    for wrong in ((root, 200.0), (root, -20.0), (None, 20.0)):
        assert "out of proportion" in judged(*wrong)[1]


def test_a_file_gives_a_number_of_samples_or_names_a_function(tmp_path):
    raw = {
        "name": "rooted", "rounds": 3, "algorithms": ["fedavg"], "data": {"dataset": "digits", "clients": 5},
        "model": "linear", "local": {"lr": 0.05, "steps": 2, "batch": 100}, "defence": {"root": 20},
        "liars": {"clients": [0]}, "participation": {"kind": "bernoulli", "p": 1.0},
    }  # fmt: skip
    experiment = schema.check(raw)
    (planned,) = plan(experiment, tmp_path)
    for _ in execute(experiment, [planned]):
        pass
    assert planned.config["defence"] == {"root": 20}
    assert [line["refused"] for line in planned.folder.metrics()][1:] == [1, 1]
    named = schema.check(QUADRATIC | {"defence": {"root": f"{__name__}:linear"}})
    assert named.defence == {"root": f"{__name__}:linear"}


@pytest.mark.parametrize(
    ("root", "sentence"),
    [
        (0, "root must be at least 1 sample, got 0"),
        (1.5, "root must be a function, a whole number or a text, got 1.5"),
        ("fedstale:missing", "root 'fedstale:missing' cannot be imported"),
        ("fedstale:__doc__", "root must be a function from parameters to gradients, got 'fedstale:__doc__'"),
    ],
)
def test_what_is_no_root_is_refused_before_any_work(root, sentence):
    with pytest.raises(BadInput, match=sentence):
        Defence(root=root)


def test_a_root_that_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="at least one sample for each of 4 labels, got 3"):
        runs(None, Defence(root=3))
    with pytest.raises(BadInput, match=r"must return finite gradients \(labels, 52\), got .* of shape \(2,\)"):
        runs(None, Defence(root=lambda w: w[:2]))
    quadratic, wanted = fs.Quadratic([[1.0], [2.0]]), "needs a task with samples, such as Supervised, got <"
    with pytest.raises(BadInput, match=f"defence.root = 5 {wanted[:35]}"):
        [*fs.simulate(fs.engine("serial", quadratic, fs.Local(lr=0.1)), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1,
                      defence=Defence(root=5))]  # fmt: skip
    with pytest.raises(BadInput, match=r"a stored run needs a defence.root that a file can name"):
        fs.compare(task(), ["fedavg"], fs.Bernoulli(1.0), rounds=1, local=fs.Local(lr=1), defence=Defence(root=abs))


def test_a_root_with_one_sample_of_a_label_is_refused_where_the_model_needs_two():
    def normed():
        return torch.nn.Sequential(torch.nn.Linear(D, 4), torch.nn.BatchNorm1d(4))

    with pytest.raises(
        BadInput, match=r"^a root must have two samples of each label for this model, got one of \[3\]$"
    ):
        fs.tasks.Root(normed, X[:7], LABELS[:7])
    assert fs.tasks.Root(normed, X[:8], LABELS[:8])
    assert fs.tasks.Root(linear, X[:7], LABELS[:7])

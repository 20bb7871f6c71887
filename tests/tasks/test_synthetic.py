import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.tasks.models import MLP
from fedstale.tasks.split import by_samples
from fedstale.tasks.synthetic import Synthetic, synthetic


def test_the_task_and_its_settings():
    task = synthetic(6, 0.5, 0.5, seed=0, max_samples=80, ridge=0.1, weights=by_samples)
    assert (task.n, task.d, task.ridge) == (6, 610, 0.1)
    sizes = task.train.sizes + task.test.sizes
    assert sizes.min() >= 50
    assert sizes.max() == 80
    assert np.allclose(task.test.sizes / sizes, 0.2, atol=0.01)
    assert np.allclose(task.weights, task.train.sizes / task.train.sizes.sum())
    small = synthetic(2, 0, 0, seed=0, dimension=5, classes=3, model=MLP(hidden=(4,)))
    assert small.d == 5 * 4 + 4 + 4 * 3 + 3


def test_the_data_of_a_client_depend_on_seed_and_client_alone():
    small, large, other = synthetic(2, 1, 1, seed=0), synthetic(5, 1, 1, seed=0), synthetic(2, 1, 1, seed=1)
    for mine, same, new in ((small.train, large.train, other.train), (small.test, large.test, other.test)):
        rows = mine.offsets[2]
        assert np.array_equal(mine.offsets, same.offsets[:3])
        assert np.array_equal(mine.x, same.x[:rows])
        assert np.array_equal(mine.y, same.y[:rows])
        assert not np.array_equal(mine.x[:5], new.x[:5])
    assert not np.array_equal(Synthetic(1, 1).samples(0, 0)[0][:5], Synthetic(1, 1).samples(1, 0)[0][:5])


def test_sizes_are_lognormal_plus_50():
    logs = np.log([len(Synthetic(0, 0, dimension=1).samples(i, 0)[1]) - 50 + 0.5 for i in range(400)])
    assert abs(np.median(logs) - 4) < 4 * 1.25 * 2 / 20  # deviation of a median: 1.25 σ / √400
    spread = np.percentile(logs, 84.13) - np.percentile(logs, 50)
    assert abs(spread - 2) < 4 * 0.15  # deviation of the difference of the two order statistics


def test_the_variance_of_feature_j_is_j_to_the_minus_1_2():
    tall = [Synthetic(0, 0).samples(i, 0)[0] for i in range(40)]
    x = max(tall, key=len)
    j = np.arange(1, 61)
    error = np.sqrt(2 / len(x))  # relative deviation of a variance of Gaussians
    assert len(x) > 1000
    assert np.abs(x.var(axis=0) / j**-1.2 - 1).max() < 4 * error


def test_delta_moves_the_inputs_of_a_whole_client():
    def centers(delta):
        return np.array([Synthetic(0, delta, max_samples=50).samples(i, 0)[0].mean() for i in range(300)])

    assert abs(centers(0).std() - np.sqrt(1 / 60)) < 0.02  # v ~ N(0, 1) averaged over 60 features
    assert abs(centers(2.0).std() - np.sqrt(4 + 1 / 60)) < 4 * 2 / np.sqrt(2 * 300)


def test_labels_are_those_of_a_linear_model_of_the_client():
    """A plane separates the two classes of a client, and not those of another client."""
    source = Synthetic(1, 0, dimension=4, classes=2, max_samples=2000)
    w = separator(*source.samples(0, seed=0))
    assert errors(w, *source.samples(0, seed=0)) == 0
    assert errors(w, *source.samples(1, seed=0)) > 0.05


def test_iid_clients_share_the_model_and_with_delta_0_the_inputs():
    source = Synthetic(1, 0, dimension=4, classes=2, max_samples=2000, iid=True)
    drawn = [source.samples(i, seed=0) for i in range(8)]
    x, y = (np.concatenate(part) for part in zip(*drawn, strict=True))
    assert errors(separator(x, y), x, y) < 0.01  # one plane for all
    means = np.array([mine.mean(axis=0) / mine.std(axis=0) * np.sqrt(len(mine)) for mine, _ in drawn])
    assert np.abs(means).max() < 4
    assert not np.array_equal(drawn[0][0][:5], drawn[1][0][:5])
    moved, _ = Synthetic(1, 5, dimension=4, classes=2, iid=True).samples(0, seed=0)
    assert np.ptp(moved.mean(axis=0)) < 4 * np.sqrt(2 / len(moved)) < abs(moved.mean())


def test_gamma_changes_no_label():
    one, other = (Synthetic(gamma, 1).samples(3, seed=0) for gamma in (0, 3))
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])
    assert len(np.unique(one[1])) > 1


def errors(w, x, y):
    return ((np.c_[x, np.ones(len(x))] @ w > 0) != (y == 1)).mean()


def separator(x, y):
    """Perceptron: ends at a separating plane where there is one."""
    x, sign, w = np.c_[x, np.ones(len(x))], np.where(y == 1, 1.0, -1.0), np.zeros(x.shape[1] + 1)
    for _ in range(20_000):
        wrong = np.flatnonzero(sign * (x @ w) <= 0)
        if not len(wrong):
            break
        w += sign[wrong[0]] * x[wrong[0]]
    return w


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"gamma": -1}, "gamma must be at least 0, got -1"),
        ({"delta": -1}, "delta must be at least 0, got -1"),
        ({"test_share": 1}, "test_share must be above 0 and below 1, got 1"),
        ({"max_samples": 1}, "max_samples must be at least 2, got 1"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        synthetic(**{"n": 2, "gamma": 1, "delta": 1, "seed": 0, **change})

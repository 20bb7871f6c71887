from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.data import IID, ByWriter, Dataset, Dirichlet, LabelSwap, Majority, federate, load
from fedstale.data.federated import set_aside


def numbered(count: int, writers: np.ndarray | None = None) -> Dataset:
    """Images of four pixels that spell the sample's own number; its label is the last digit."""
    numbers = np.arange(count, dtype=np.uint32)
    x = numbers.view(np.uint8).reshape(count, 1, 2, 2)
    return Dataset("numbered", x, np.arange(count) % 10, count, 10, (0.5,), (0.5,), 255.0, writers)


def numbers(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1, 4).view(np.uint32)[:, 0]


class Own:
    """A user's rule, which inherits nothing."""

    def __init__(self, *lists: Sequence[int]) -> None:
        self.lists = [np.array(mine, np.int64) for mine in lists]

    def split(self, labels, n, rng):
        return self.lists


class Noted:
    """A swap that only notes what it could have drawn."""

    def __init__(self) -> None:
        self.draws: list[int] = []

    def apply(self, y, clients, rng):
        self.draws.append(int(rng.integers(1 << 40)))
        return y


def test_the_setting_of_the_figures_gives_500_training_samples_a_client():
    fed = federate(numbered(70_000), IID(), 24, seed=0, fraction=0.2, test_share=1 / 7)
    assert fed.train_sizes.tolist() == [500] * 24
    assert fed.test_sizes.sum() == 2000
    assert len(fed.y) == 12_000


def test_each_sample_is_at_one_place_with_its_label():
    fed = federate(numbered(1000), Dirichlet(1.0), 7, seed=3, test_share=0.3)
    assert fed.n == 7
    rows = [numbers(half[0]) for i in range(7) for half in (fed.train(i), fed.test(i))]
    labels = [half[1] for i in range(7) for half in (fed.train(i), fed.test(i))]
    assert sorted(np.concatenate(rows)) == list(range(1000))
    assert (np.concatenate(rows) % 10 == np.concatenate(labels)).all()
    assert [len(fed.train(i)[1]) for i in range(7)] == fed.train_sizes.tolist()
    assert [len(fed.test(i)[1]) for i in range(7)] == fed.test_sizes.tolist()
    assert (fed.train_offsets[-1], fed.test_offsets[-1]) == (len(fed.y), len(fed.test_y))
    assert (fed.name, fed.classes, fed.mean, fed.std, fed.scale) == ("numbered", 10, (0.5,), (0.5,), 255.0)
    assert (fed.x.dtype, fed.y.dtype, fed.train_offsets.dtype) == (np.uint8, np.int64, np.int64)


def test_clients_hold_what_the_partition_says():
    fed = federate(numbered(2000), Majority(0.0), 20, seed=0)
    assert all(set(fed.train(i)[1]) | set(fed.test(i)[1]) == {i // 2} for i in range(20))


def test_the_seed_decides_everything():
    data = numbered(300)
    one, same, other = (federate(data, IID(), 5, seed=seed, swap=LabelSwap(0.5)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_who_gets_what_what_is_tested_and_what_is_swapped_differ_between_seeds():
    data = numbered(300)
    a, b = (federate(data, IID(), 2, seed=seed) for seed in (1, 2))
    of_first = [set(numbers(np.concatenate([fed.train(0)[0], fed.test(0)[0]])).tolist()) for fed in (a, b)]
    assert of_first[0] != of_first[1]
    fixed, noted = Own(range(150), range(150, 300)), Noted()  # the same samples whatever the seed
    a, b = (federate(data, fixed, 2, seed=seed, swap=noted) for seed in (1, 2))
    assert set(numbers(a.test(0)[0])) != set(numbers(b.test(0)[0]))
    assert len(set(noted.draws)) == 4  # training and test data of two seeds


def test_the_test_samples_are_drawn_at_random():
    fed = federate(numbered(1000), IID(), 1, seed=0, test_share=0.5)
    assert 400 < numbers(fed.test_x).mean() < 600
    assert sorted(numbers(fed.test_x)) not in ([*range(500)], [*range(500, 1000)])


def test_a_larger_fraction_extends_a_smaller_one():
    data = numbered(1000)
    small, large = (federate(data, IID(), 4, seed=0, fraction=f) for f in (0.1, 0.3))
    pools = [set(numbers(np.concatenate([fed.x, fed.test_x])).tolist()) for fed in (small, large)]
    assert [len(pool) for pool in pools] == [100, 300]
    assert pools[0] < pools[1]
    assert max(pools[0]) > 500  # from all over the pool


def test_a_swap_holds_in_training_and_in_test_data():
    fed = federate(numbered(4000), IID(), 4, seed=0, test_share=0.25, swap=LabelSwap(0.5, (3, 7)))
    for i in range(4):
        for x, y in (fed.train(i), fed.test(i)):
            true = numbers(x) % 10
            changed = true != y
            assert set(true[changed].tolist()) <= {3, 7}
            expected = sum(round(0.5 * (true == label).sum()) for label in (3, 7)) if i >= 2 else 0
            assert changed.sum() == expected
    assert fed.test_sizes.tolist() == [250] * 4


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_held_out_counts(sizes, share):
    counts = set_aside(np.array(sizes), share)
    for size, count in zip(sizes, counts, strict=True):
        assert 0 <= count <= max(size - 1, 0)
        assert count >= min(1, max(size - 1, 0))
        assert abs(count - share * size) < 1 + 1e-9 or count in (1, size - 1)
    if all(1 <= share * size <= size - 2 for size in sizes):
        assert counts.sum() == round(share * sum(sizes))


def test_empty_clients_are_told():
    data = numbered(100)
    with pytest.warns(UserWarning, match=r"^\d+ of 40 clients have no samples: (\d+, ){4}\d+ and \d+ more$"):
        fed = federate(data, Dirichlet(1e-6), 40, seed=0)
    assert (fed.train_sizes == 0).sum() == (fed.test_sizes == 0).sum() >= 30
    assert len(fed.y) + len(fed.test_y) == 100


def test_clients_without_a_test_sample_are_told():
    with pytest.warns(UserWarning, match=r"^2 of 3 clients have one sample, hence none for testing: 1, 2$"):
        fed = federate(numbered(4), IID(), 3, seed=0)
    assert (fed.train_sizes.tolist(), fed.test_sizes.tolist()) == ([1, 1, 1], [1, 0, 0])


def test_by_writer_goes_by_the_writers_of_the_pool():
    writers = np.arange(600) // 100 + 40
    fed = federate(numbered(600, writers), ByWriter(), 4, seed=0, fraction=0.5)
    for i in range(4):
        mine = numbers(np.concatenate([fed.train(i)[0], fed.test(i)[0]]))
        assert len(np.unique(writers[mine])) == 1
        assert 30 < len(mine) < 70


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": 101}, "101 clients need at least as many samples, got 100"),
        ({"n": 101, "partition": Own()}, "101 clients need at least as many samples, got 100"),
        (
            {"partition": "dirichlet"},
            r"partition must be an object such as fs.data.Dirichlet\(0.5\), got 'dirichlet'",
        ),
        ({"partition": IID}, "partition must be an object such as .*, got <class"),
        ({"dataset": "digits"}, r"dataset must be a Dataset, such as fs.data.load\(.digits.\), got 'digits'"),
        ({"n": 0}, "the number of clients must be at least 1, got 0"),
        ({"n": 60, "fraction": 0.5}, "60 clients need at least as many samples, got 50"),
        ({"fraction": 0.0}, "fraction must be above 0 and at most 1, got 0.0"),
        ({"fraction": 1.1}, "fraction must be"),
        ({"test_share": 0.0}, "test_share must be above 0 and below 1, got 0.0"),
        ({"test_share": 1.0}, "test_share must be"),
        ({"partition": ByWriter()}, "with writers, such as mnist-writers, got numbered"),
        ({"partition": Own([0, 1])}, "a list for each of 2 clients, got 1"),
        ({"partition": Own([0, 1], [1, 2])}, "a sample to one client, got several"),
        ({"partition": Own([0, 1], [100, 2])}, "indices from 0 to 99"),
        ({"partition": Own([0, 1], [-1, 2])}, "indices from 0 to 99"),
    ],
)
def test_what_cannot_be_divided_is_refused(given, says):
    settings = {"dataset": numbered(100), "partition": IID(), "n": 2, "seed": 0} | given
    with pytest.raises(BadInput, match=says):
        federate(**settings)


def test_clients_and_datasets_are_printed_in_one_line():
    assert repr(numbered(100)) == "Dataset('numbered', x=uint8[100, 1, 2, 2], n_train=100)"
    assert repr(federate(numbered(100), IID(), 4, seed=0)) == "Federated('numbered', n=4, 80 training samples)"


def test_a_users_own_rule_is_used():
    fed = federate(numbered(100), Own([5, 6, 7], [90, 91]), 2, seed=0)
    assert sorted(numbers(np.concatenate([fed.train(1)[0], fed.test(1)[0]]))) == [90, 91]


@pytest.mark.usefixtures("real_files")
def test_real_writers_as_clients():
    fed = federate(load("mnist-writers"), ByWriter(largest=True), 100, seed=0)
    assert (fed.train_sizes + fed.test_sizes).min() > 100
    assert fed.test_sizes.min() >= 1


def halves(count: int, n_train: int) -> Dataset:
    """Numbered samples, of which those from n_train on are the official test set."""
    return numbered(count)._replace(n_train=n_train)


def test_the_official_test_set_stays_together_and_only_the_training_set_is_divided():
    fed = federate(halves(1000, 700), Dirichlet(1.0), 6, seed=3, test="official")
    assert sorted(numbers(fed.central_test.x)) == list(range(700, 1000))
    assert fed.central_test.offsets.tolist() == [0, 300]
    assert (numbers(fed.central_test.x) % 10 == fed.central_test.y).all()
    assert sorted(numbers(fed.x)) == list(range(700))
    assert fed.test_sizes.tolist() == [0] * 6
    assert fed.validation is None
    assert fed.held_out is None


def test_a_fraction_is_taken_of_the_official_training_and_test_set_together():
    fed, pooled = (
        federate(halves(1000, 700), IID(), 5, seed=1, fraction=0.2, test=t) for t in ("official", "per-client")
    )
    rows = [*numbers(fed.x), *numbers(fed.central_test.x)]
    assert sorted(rows) == sorted([*numbers(pooled.x), *numbers(pooled.test_x)])
    assert 30 < len(fed.central_test.y) < 90
    assert min(numbers(fed.central_test.x)) >= 700 > max(numbers(fed.x))


@pytest.mark.parametrize(
    ("count", "fraction"), [(1000, 1.0), (1001, 0.01)], ids=["none at all", "none in the pool"]
)
def test_a_dataset_without_an_official_test_set_is_refused(count, fraction):
    with pytest.raises(BadInput, match='test = "official" needs a dataset with a test set, numbered has none'):
        federate(halves(count, 1000), IID(), 4, seed=0, fraction=fraction, test="official")


def test_validation_samples_are_taken_from_training_samples_only():
    plain, fed = (federate(numbered(400), Dirichlet(1.0), 5, seed=2, validation=v) for v in (0.0, 0.25))
    assert np.array_equal(fed.test_x, plain.test_x)
    for i in range(5):
        rows = slice(*fed.validation.offsets[i : i + 2])
        mine = [*numbers(fed.train(i)[0]), *numbers(fed.validation.x[rows])]
        assert sorted(mine) == sorted(numbers(plain.train(i)[0]))
    sizes = np.diff(fed.validation.offsets)
    assert (np.abs(sizes - 0.25 * plain.train_sizes) <= 1).all()


def test_clients_that_are_held_out_bring_all_their_samples_and_do_not_train():
    plain = federate(numbered(400), Majority(0.0), 10, seed=2, swap=LabelSwap(1.0))
    fed = federate(numbered(400), Majority(0.0), 10, seed=2, swap=LabelSwap(1.0), held_out=[7, 0])
    whole = [np.concatenate([plain.test(i)[0], plain.train(i)[0]]) for i in (0, 7)]
    labels = [np.concatenate([plain.test(i)[1], plain.train(i)[1]]) for i in (0, 7)]
    assert fed.n == 8
    assert np.array_equal(fed.held_out.x, np.concatenate(whole))
    assert np.array_equal(fed.held_out.y, np.concatenate(labels)), "swapped as they would have been"
    assert fed.held_out.offsets.tolist() == [0, 40, 80]
    for i, was in enumerate([1, 2, 3, 4, 5, 6, 8, 9]):
        assert np.array_equal(fed.train(i)[0], plain.train(was)[0])
        assert np.array_equal(fed.test(i)[0], plain.test(was)[0])


def test_a_share_of_the_clients_is_held_out_at_random():
    drawn = [federate(numbered(400), Majority(0.0), 20, seed=s, held_out=0.1) for s in range(8)]
    assert {fed.n for fed in drawn} == {18}
    assert len({tuple(np.unique(fed.held_out.y)) for fed in drawn}) > 2, "other clients for other seeds"
    assert federate(numbered(40), IID(), 3, seed=0, held_out=0.01).n == 2, "at least one"


def test_clients_without_samples_are_left_out_and_named():
    rule = Own([0, 1, 2], [], [3, 4, 5], [])
    with pytest.warns(UserWarning, match="2 of 4 clients have no samples and are left out: 1, 3"):
        fed = federate(numbered(6), rule, 4, seed=0, drop_empty=True, validation=0.4)
    assert fed.n == 2
    assert sorted([*numbers(fed.train(1)[0]), *numbers(fed.test(1)[0]), *numbers(fed.validation.x[1:])]) == [
        3,
        4,
        5,
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"test": "offical"}, "test 'offical' is unknown; did you mean 'official'"),
        ({"validation": 1.0}, "validation must be at least 0 and below 1, got 1.0"),
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1, or a list of clients, got 1.0"),
        ({"held_out": [4]}, r"held_out must be different clients from 0 to 3, got \[4\]"),
        ({"held_out": [1, 1]}, r"held_out must be different clients"),
        ({"held_out": [0, 1, 2, 3]}, "held_out must leave a client that trains, got 4 of 4"),
    ],
)
def test_settings_of_the_samples_set_aside_are_checked(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        federate(numbered(40), IID(), 4, seed=0, **settings)

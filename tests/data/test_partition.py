import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.data.partition import IID, ByWriter, ClusteredDirichlet, Dirichlet, Majority, Shards

RULES = [
    IID(),
    Dirichlet(0.01),
    Dirichlet(1.0),
    ClusteredDirichlet(0.5, 1),
    Shards(1),
    Shards(3),
    Majority(0.0),
    Majority(0.3),
    ByWriter(),
]
LABELS = np.repeat(np.arange(10), 100)  # (1000,) balanced


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def cases(draw):
    """Labels, some of them absent, and a rule with a number of clients that it can serve."""
    labels = np.array(draw(st.lists(st.integers(0, 6), min_size=1, max_size=60)), np.int64)
    rule, kinds = draw(st.sampled_from(RULES)), len(np.unique(labels))
    low = kinds if isinstance(rule, Majority) else 1
    high = kinds if isinstance(rule, ByWriter) else len(labels)
    if isinstance(rule, Shards):
        high = len(labels) // rule.per_client
    return rule, labels, draw(st.integers(low, max(low, high))), draw(st.integers(0, 9)), high >= low


@given(cases())
def test_every_rule_gives_disjoint_lists_and_all_but_by_writer_use_every_sample(case):
    rule, labels, n, seed, possible = case
    if not possible:
        with pytest.raises(BadInput):
            rule.split(labels, n, rng(seed))
        return
    lists = rule.split(labels, n, rng(seed))
    used = np.concatenate(lists)
    assert len(lists) == n
    assert used.dtype == np.int64
    assert len(np.unique(used)) == len(used)
    if not isinstance(rule, ByWriter):
        assert sorted(used) == list(range(len(labels)))
    again = rule.split(labels, n, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(lists, again, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_another_seed_gives_another_partition(rule):
    a, b = (rule.split(LABELS, 10, rng(seed)) for seed in (0, 1))
    held = any(sorted(x) != sorted(y) for x, y in zip(a, b, strict=True))
    assert held == (rule != Majority(0.0))  # ten labels for ten clients: each holds all of one, in another order
    assert any(x.tolist() != y.tolist() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_an_impossible_number_of_clients_is_refused(rule):
    with pytest.raises(BadInput, match="7 clients need at least as many samples, got 6"):
        rule.split(LABELS[:6], 7, rng())
    with pytest.raises(BadInput, match="at least 1, got 0"):
        rule.split(LABELS, 0, rng())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dirichlet(0.0), "alpha must be above 0 and finite, got 0.0"),
        (lambda: Dirichlet(float("nan")), "alpha must be"),
        (lambda: Dirichlet(float("inf")), "alpha must be"),
        (lambda: ClusteredDirichlet(0.0, 3), "alpha must be above 0 and finite, got 0.0"),
        (lambda: ClusteredDirichlet(1.0, 0), "clusters must be at least 1, got 0"),
        (lambda: Shards(0), "per_client must be at least 1, got 0"),
        (lambda: Majority(1.5), r"others must be in \[0, 1\], got 1.5"),
        (lambda: Majority(-0.1), r"others must be in \[0, 1\], got -0.1"),
    ],
)
def test_settings_are_checked_at_construction(make, says):
    with pytest.raises(BadInput, match=says):
        make()


def test_iid_clients_are_of_one_size_and_mixed():
    lists = IID().split(LABELS, 30, rng())
    assert {len(mine) for mine in lists} == {33, 34}
    assert min(len(np.unique(LABELS[mine])) for mine in lists) >= 8


def test_dirichlet_proportions_have_the_variance_of_the_law():
    n, alpha, each = 4, 0.7, 300
    labels = np.repeat(np.arange(1000), each)
    lists = Dirichlet(alpha).split(labels, n, rng())
    shares = np.array([np.bincount(labels[mine], minlength=1000) for mine in lists]) / each
    spread = (1 / n) * (1 - 1 / n) / (n * alpha + 1)  # Var of a coordinate of Dir(alpha, …)
    noise = ((1 / n) * (1 - 1 / n) - spread) / each  # and of drawing `each` samples
    assert shares.mean() == pytest.approx(1 / n)
    assert shares.var() == pytest.approx(spread + noise, rel=0.05)


def test_dirichlet_takes_any_alpha():
    one_each = Dirichlet(1e-9).split(LABELS, 5, rng())
    assert all(len(mine) % 100 == 0 for mine in one_each)  # a label goes to one client
    even = Dirichlet(1e9).split(LABELS, 5, rng())
    assert all(170 < len(mine) < 230 for mine in even)


def test_clusters_differ_and_their_clients_are_alike():
    lists = ClusteredDirichlet(1e-9, 5).split(LABELS, 15, rng())  # a label goes to one cluster
    held = [set(np.unique(LABELS[mine]).tolist()) for mine in lists]
    clusters = [set().union(*held[k : k + 3]) for k in range(0, 15, 3)]
    assert sum(map(len, clusters)) == len(set().union(*clusters)) == 10
    for k in range(0, 15, 3):
        assert held[k] == held[k + 1] == held[k + 2]
        assert max(map(len, lists[k : k + 3])) - min(map(len, lists[k : k + 3])) <= 1
    with pytest.raises(BadInput, match="5 clusters need as many clients, got 4"):
        ClusteredDirichlet(1.0, 5).split(LABELS, 4, rng())


def test_shards_give_a_client_few_labels_and_equal_sizes():
    lists = Shards(2).split(LABELS, 10, rng())
    assert {len(mine) for mine in lists} == {100}
    assert max(len(np.unique(LABELS[mine])) for mine in lists) == 2
    with pytest.raises(BadInput, match="2000 shards need as many samples, got 1000"):
        Shards(4).split(LABELS, 500, rng())


def test_majority_label_and_the_share_of_the_others():
    labels = np.repeat(np.arange(10), 700)
    lists = Majority(0.05).split(labels, 50, rng())
    own = [int((labels[mine] == i // 5).sum()) for i, mine in enumerate(lists)]
    assert own == [133] * 50  # 95 % of 700, over five clients
    away = np.concatenate([labels[mine][labels[mine] != i // 5] for i, mine in enumerate(lists)])
    assert np.bincount(away).tolist() == [35] * 10  # exactly 5 % of each label
    assert {len(mine) for mine in lists} <= set(range(133 + 3, 133 + 12))


def test_majority_needs_a_client_per_label():
    with pytest.raises(BadInput, match="a client for each of the 10 labels, got n = 9"):
        Majority().split(LABELS, 9, rng())


def test_a_writer_is_a_client():
    writers = np.repeat([7, 3, 5, 9], [10, 40, 30, 20])
    lists = ByWriter().split(writers, 3, rng())
    held = [np.unique(writers[mine]).tolist() for mine in lists]
    assert all(len(who) == 1 for who in held)
    assert all(len(mine) == (writers == who[0]).sum() for mine, who in zip(lists, held, strict=True))
    seen = {tuple(int(writers[mine[0]]) for mine in ByWriter().split(writers, 2, rng(s))) for s in range(60)}
    assert len(seen) == 12  # every ordered pair of four people
    with pytest.raises(BadInput, match="n <= 4, got 5"):
        ByWriter().split(writers, 5, rng())


def test_the_largest_writers_are_taken_and_numbered_at_random():
    writers = np.repeat([7, 3, 5, 9], [10, 40, 30, 20])
    seen = {
        tuple(int(writers[mine[0]]) for mine in ByWriter(largest=True).split(writers, 2, rng(s))) for s in range(20)
    }
    assert seen == {(3, 5), (5, 3)}


def test_rules_are_values():
    assert Dirichlet(0.5) == pickle.loads(pickle.dumps(Dirichlet(0.5))) != Dirichlet(0.4)
    assert repr(Shards(3)) == "Shards(per_client=3)"
    assert repr(ByWriter()) == "ByWriter(largest=False)"


def test_dirichlet_is_drawn_again_until_every_client_has_enough():
    labels = np.arange(600) % 10
    plain, enough = (Dirichlet(0.2, m).split(labels, 8, stream(3)) for m in (0, 30))
    assert min(map(len, plain)) < 30 <= min(map(len, enough))
    assert sorted(np.concatenate(enough)) == list(range(600))
    first = Dirichlet(0.2, min(map(len, plain))).split(labels, 8, stream(3))
    assert all(map(np.array_equal, first, plain)), "a first draw that has enough is the one without a minimum"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (
            Dirichlet(0.01, 10),
            "each of 20 clients 10 samples .*: in 1000 draws, some client had at most [0-9]; take",
        ),
        (Dirichlet(1.0, 31), r"each of 20 clients 31 samples \(min_samples\): there are 600"),
    ],
)
def test_a_minimum_that_dirichlet_does_not_reach_is_refused(rule, sentence):
    with pytest.raises(BadInput, match=sentence):
        rule.split(np.arange(600) % 10, 20, stream(0))


def test_a_negative_minimum_is_refused():
    with pytest.raises(BadInput, match="min_samples must be at least 0, got -1"):
        Dirichlet(1.0, -1)

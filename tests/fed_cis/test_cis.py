"""The tree's rates, the weightings and cooperative inference, against cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.data.partition import Shares, by_layer
from fedstale.fed_cis import (
    DATA_SHARES,
    MIXES,
    SEVEN_NODES,
    SEVENTEEN_NODES,
    Balanced,
    Equal,
    Exits,
    FlopsProportional,
    Given,
    ServingRate,
    Tree,
    everywhere,
    layered,
    normalised_entropy,
    own,
    serve,
    served_mean,
)

# The thesis' figure 5.2: nodes 0, 1 and 2 below node 3, everybody asked from outside. The rates are ours.
FOUR = Tree(parents=[3, 3, 3, -1], exits=[1, 1, 1, 2], arrivals=[10, 6, 4, 5], capacity=[3, 8, 4, 100])


def test_the_four_node_example():
    flows = FOUR.flows()
    assert flows.transferred.tolist() == [3, 6, 4, 0]  # min(3, 10), min(8, 6), min(4, 4); a root has no parent
    assert flows.incoming.tolist() == [10, 6, 4, 18]  # 5 + 3 + 6 + 4
    assert flows.served.tolist() == [7, 0, 0, 18]
    assert FOUR.rates().tolist() == [7, 18]
    assert FOUR.rates(3).tolist() == [7, 18, 0]


def test_requests_climb_through_all_levels_whatever_the_numbering():
    chain = Tree(parents=[-1, 0, 1], exits=[3, 2, 1], arrivals=[0, 1, 10], capacity=[0, 5, 8])
    assert chain.flows().transferred.tolist() == [0, 5, 8]
    assert chain.rates().tolist() == [2, 4, 5]
    assert chain.order == [2, 1, 0]


def test_several_roots_serve_their_own_requests():
    alone = Tree(parents=[-1, -1], exits=[1, 1], arrivals=[2, 3], capacity=[1, np.inf])
    assert alone.flows().served.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parents": [3, 3, 0, 2]}, "without a cycle, got one through node 0"),
        ({"parents": [0, 3, 3, -1]}, "without a cycle, got one through node 0"),
        ({"parents": [3, 3, 4, -1]}, "a node from 0 to 3, or -1 for a root, got 4 for node 2"),
        ({"parents": [3, 3, -2, -1]}, "got -2 for node 2"),
        ({"exits": [1, 3, 1, 2]}, "at least as deep as its children's, got exit 2 above exit 3 of node 1"),
        ({"exits": [0, 1, 1, 2]}, "exits must count from 1, got 0"),
        ({"exits": [1.5, 1, 1, 2]}, "exits must be a list of whole numbers"),
        ({"arrivals": [10, -6, 4, 5]}, "arrivals must be a list of rates of at least 0"),
        ({"arrivals": [10, float("nan"), 4, 5]}, "arrivals must be a list of rates of at least 0"),
        ({"arrivals": [0, 0, 0, 0]}, "not all 0"),
        ({"arrivals": [np.inf, 0, 0, 0]}, "arrivals must be finite"),
        ({"capacity": [3, -8, 4, 100]}, "capacity must be a list of rates of at least 0"),
        ({"capacity": [3, 8, 4]}, "must have a value for each node, got \\[4, 4, 4, 3\\]"),
    ],
)
def test_an_impossible_tree_is_refused_in_a_sentence(change, sentence):
    settings = {
        "parents": [3, 3, 3, -1],
        "exits": [1, 1, 1, 2],
        "arrivals": [10, 6, 4, 5],
        "capacity": [3, 8, 4, 100],
    }
    with pytest.raises(BadInput, match=sentence):
        Tree(**settings | change)


def test_a_tree_is_a_part():
    again = Tree([3, 3, 3, -1], [1, 1, 1, 2], [10, 6, 4, 5], [3, 8, 4, 100])
    assert again == FOUR
    assert hash(again) == hash(FOUR)
    assert Tree([3, 3, 3, -1], [1, 1, 1, 2], [10, 6, 4, 6], [3, 8, 4, 100]) != FOUR


@pytest.mark.parametrize("widths", [SEVEN_NODES, SEVENTEEN_NODES, (5, 3, 2)])
@pytest.mark.parametrize("mix", [*MIXES, (1, 0, 0), (0, 0, 1), (0, 1, 0)])
def test_layers_serve_the_mix_they_were_asked_for(widths, mix):
    tree = layered(widths, mix)
    assert tree.rates() == pytest.approx(np.array(mix) / sum(mix))
    assert np.bincount(np.asarray(tree.exits)).tolist() == [0, *widths]
    assert (np.asarray(tree.arrivals) > 0).sum() == widths[0]


def test_the_seven_node_tree():
    tree = layered(SEVEN_NODES, (80, 15, 5))
    assert np.asarray(tree.parents).tolist() == [4, 4, 5, 5, 6, 6, -1]
    assert np.asarray(tree.capacity) == pytest.approx([0.05] * 4 + [0.025] * 2 + [0])  # 20 % of ¼, 5 % of ½


@pytest.mark.parametrize(
    ("widths", "mix"), [((4, 5), (1, 1)), ((), ()), ((2, 1), (1, 1, 1)), ((2, 1), (-1, 2)), ((2, 0), (1, 1))]
)
def test_impossible_layers_are_refused(widths, mix):
    with pytest.raises(BadInput, match=r"widths|mix"):
        layered(widths, mix)


# Weightings


def never():
    raise AssertionError("nobody asked for this")


def test_the_weightings_by_hand():
    rates = np.array([8.0, 1.5, 0.5])
    assert Equal().weights(Exits(rates, never, never)) == pytest.approx([1 / 3] * 3)
    assert ServingRate().weights(Exits(rates, never, never)) == pytest.approx([0.8, 0.15, 0.05])
    flops = FlopsProportional().weights(Exits(rates, lambda: np.array([1.0, 3.0, 4.0]), never))
    assert flops == pytest.approx([1 / 8, 3 / 8, 1 / 2])
    # variances 4, 2, 1: inverses ¼, ½, 1, that is 1/7, 2/7, 4/7
    balanced = Balanced().weights(Exits(rates, never, lambda: np.array([4.0, 2.0, 1.0])))
    assert balanced == pytest.approx([(0.8 + 1 / 7) / 2, (0.15 + 2 / 7) / 2, (0.05 + 4 / 7) / 2])
    alone = Balanced(share=1.0).weights(Exits(rates, never, lambda: np.array([4.0, 2.0, 1.0])))
    assert alone == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert Given([3, 0, 1]).weights(Exits(rates, never, never)) == pytest.approx([0.75, 0, 0.25])
    with pytest.raises(BadInput, match="weights must be 3 numbers of at least 0"):
        Given([3, 1]).weights(Exits(rates, never, never))


def test_no_variance_cannot_be_inverted():
    with pytest.raises(BadInput, match="gradient variances must be above 0"):
        Balanced().weights(Exits(np.ones(2), never, lambda: np.array([0.0, 1.0])))


# Inference


def test_entropy_is_between_certain_and_ignorant():
    logits = np.array([[0.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0], [np.log(3), 0.0, -1000.0, -1000.0]])
    p = np.array([0.75, 0.25])
    assert normalised_entropy(logits) == pytest.approx([1, 0, -(p * np.log(p)).sum() / np.log(4)])


def test_each_node_serves_its_easiest_share_and_forwards_the_rest():
    # one leaf below one root; 4 requests a second, of which 1.5 can be forwarded
    tree = Tree(parents=[1, -1], exits=[1, 2], arrivals=[4, 0], capacity=[1.5, 0])
    requests = own(tree, np.array([4, 0]))
    difficulty = [[0.9, 0.1, 0.5, 0.2], [0, 0, 0, 0]]
    served = serve(tree, difficulty, requests)
    assert served.tolist() == [[0, 1, 0.5, 1], [1, 0, 0.5, 0]]
    hits = [[1, 1, 0, 0], [0, 1, 1, 1]]
    assert served_mean(tree, served, hits) == pytest.approx((1 + 0.5) / 4)


def test_a_parent_ranks_by_its_own_exit_what_its_children_forward():
    # two leaves forward the harder half of their two requests; the middle serves one of the two it gets
    tree = Tree(parents=[2, 2, 3, -1], exits=[1, 1, 2, 3], arrivals=[2, 2, 0, 0], capacity=[1, 1, 1, 0])
    difficulty = [[0.1, 0.2, 0.4, 0.3], [0.9, 0.8, 0.1, 0.0], [0, 0, 0, 0]]
    served = serve(tree, difficulty, own(tree, np.array([2, 2, 0, 0])))
    assert served.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]]


def test_requests_are_about_own_samples_or_everybodys():
    sizes = np.array([2, 1, 1, 0])
    tree = Tree([3, 3, 3, -1], [1, 1, 1, 2], [10, 6, 4, 0], [3, 8, 4, 0])
    assert own(tree, sizes).tolist() == [[5, 5, 0, 0], [0, 0, 6, 0], [0, 0, 0, 4], [0, 0, 0, 0]]
    assert everywhere(tree, sizes).tolist() == [[2.5] * 4, [1.5] * 4, [1] * 4, [0] * 4]
    with pytest.raises(BadInput, match="must have test samples, got none of nodes \\[3\\]"):
        own(FOUR, sizes)
    with pytest.raises(BadInput, match="must be about test samples"):
        everywhere(tree, np.zeros(4, np.int64))


def test_requests_that_are_not_the_trees_are_refused():
    with pytest.raises(BadInput, match="must add up to the arrivals"):
        serve(FOUR, np.zeros((2, 4)), np.ones((4, 4)))


@given(st.integers(0, 2**32 - 1), st.sampled_from([*MIXES, (1, 0, 1), (0, 0, 1)]), st.booleans())
def test_nothing_is_lost_and_every_node_serves_its_rate(seed, mix, shared):
    rng = np.random.default_rng(seed)
    tree, sizes = layered(SEVEN_NODES, mix), rng.integers(1, 5, 7)
    requests = (everywhere if shared else own)(tree, sizes)
    served = serve(tree, rng.random((3, sizes.sum())), requests)
    assert served.min() >= 0
    assert served.sum(axis=0) == pytest.approx(requests.sum(axis=0), abs=1e-12)
    assert served.sum(axis=1) == pytest.approx(tree.flows().served, abs=1e-12)


# Who holds what


def test_a_layers_share_is_divided_among_its_nodes():
    shares = by_layer(SEVEN_NODES, DATA_SHARES["highly-biased"])
    split = shares.split(np.zeros(1000, np.int64), 7, np.random.default_rng(0))
    sizes = [len(mine) for mine in split]
    assert sum(sizes) == 1000
    assert len(np.unique(np.concatenate(split))) == 1000
    assert [sum(sizes[:4]), sum(sizes[4:6]), sizes[6]] == [34, 199, 767]
    assert max(sizes[:4]) - min(sizes[:4]) <= 1
    assert all(sum(shares) == pytest.approx(100) for shares in DATA_SHARES.values())


def test_wrong_shares_are_refused():
    with pytest.raises(BadInput, match="shares must be numbers of at least 0"):
        Shares([1, -1])
    with pytest.raises(BadInput, match="3 clients need 3 shares, got 2"):
        Shares([1, 1]).split(np.zeros(9, np.int64), 3, np.random.default_rng(0))

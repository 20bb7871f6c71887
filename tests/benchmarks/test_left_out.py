"""Who is left out: the counts of a run, by groups of neighbours."""

import left_out


def test_the_counts_are_means_over_the_rounds_and_absent_clients_count_in_the_last() -> None:
    lines = [
        {"heard": [0, 1], "excluded": [3]},
        {"heard": [0], "not_selected": [1, 2], "excluded": [1, 2, 3]},
    ]
    often, seldom = left_out.counted(lines, clients=4, groups=2)
    assert often == {"group": 0, "there": 2.0, "left_out": 0.5, "left_out_of_all": 0.5, "first": 1}
    assert seldom == {"group": 1, "there": 0.5, "left_out": 0.5, "left_out_of_all": 1.5, "first": 2}


def test_a_group_that_never_comes_has_no_first_round() -> None:
    assert [found["first"] for found in left_out.counted([{"heard": [0]}], clients=2, groups=2)] == [1, None]

"""Neighbouring algorithms differ in colour, dash and marker."""

import itertools

import pytest
from matplotlib.figure import Figure

from fedstale.view.page.markup import SHAPES, sample
from fedstale.view.plots.palette import COLOURS, SYMBOLS, look, looks


def test_eight_algorithms_look_different_even_without_colour() -> None:
    looks = [look(k) for k in range(8)]
    assert len({x.colour for x in looks}) == len(COLOURS) == 8
    assert len({(x.dash, x.symbol) for x in looks}) == 8


def test_colours_differ_in_lightness_or_hue_for_everyone() -> None:
    """Okabe and Ito's set: no two are closer than 40 of 255 in every channel."""
    values = [tuple(int(c[k : k + 2], 16) for k in (1, 3, 5)) for c in COLOURS]
    for a, b in itertools.combinations(values, 2):
        assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > 40


@pytest.mark.parametrize("k", range(9))
def test_a_look_is_understood_by_matplotlib_and_by_the_page(k: int) -> None:
    axes = Figure().add_subplot()
    (line,) = axes.plot([0, 1], [0, 1], marker=look(k).marker, **look(k).line)
    assert line.get_color() == look(k).colour
    assert line.is_dashed() == bool(look(k).dash)
    assert set(SHAPES) == set(SYMBOLS)
    assert look(k).colour in sample(look(k), line=True)


def test_an_algorithm_has_the_same_look_in_every_company() -> None:
    alone = looks(["FedAvg"])["FedAvg"]
    for others in (["MIFA", "auto"], ["FedStale β=0.5", "Unbiased FedAvg"], ["FedVARP", "my rule"]):
        assert looks([*others, "FedAvg"])["FedAvg"] == alone
    known = looks(["FedAvg", "auto", "FedStale β=0.5", "Unbiased FedAvg", "MIFA", "fedau", "FedVARP", "SCAFFOLD"])
    assert len({x.colour for x in known.values()}) == 8
    assert looks(["my rule"]) == {"my rule": looks(["auto", "my rule"])["my rule"]}


def test_no_two_algorithms_of_a_picture_look_alike() -> None:
    labels = [f"FedStale β={b}" for b in range(6)] + ["FedAvg", "auto"] + [f"rule {k}" for k in range(8)]
    assert len({x.colour for x in looks(labels[:8]).values()}) == 8
    assert len({*looks(labels).values()}) == 16
    assert list(looks(labels)) == labels

"""Day and night: the sine, the time zones, the average."""

from itertools import islice

import numpy as np
import pytest

from fedstale.core import BadInput, Mask, Participation
from fedstale.core.rng import stream
from fedstale.participation.diurnal import Diurnal
from fedstale.testing import check_participation


def first_rows(participation: Participation, rounds: int, n: int, seed: int = 0) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(seed, "participation")), rounds)))


def test_the_share_of_each_hour_follows_the_sine() -> None:
    """Days × clients coins for each hour and cluster: within 5 √(p(1-p)/coins)."""
    mean, amplitude, day, days, n = 0.4, 0.3, 8, 50, 400
    rows = first_rows(Diurnal(mean, amplitude, day, clusters=2), day * days, n)
    shares = rows.reshape(days, day, 2, n // 2).mean(axis=(0, 3))
    for hour in range(day):
        for cluster in range(2):
            p = mean + amplitude * np.sin(2 * np.pi * (hour / day - cluster / 2))
            assert abs(shares[hour, cluster] - p) < 5 * np.sqrt(p * (1 - p) / (days * n // 2))


def test_every_next_cluster_is_later() -> None:
    """Certain at noon, impossible at midnight: with 4 zones and 4 rounds a day, noon moves on by one."""
    kinds = list(Diurnal(0.5, 0.5, rounds_per_day=4, clusters=4).kinds(4))
    noon = [int(np.argmax(kind.p)) for kind in kinds]
    assert noon == [3, 0, 1, 2]
    assert all(kind.p.max() == 1 and kind.p.min() == 0 for kind in kinds)


@pytest.mark.parametrize("part", [Diurnal(), Diurnal(0.5, 0.5, 2, 3), Diurnal(0.3, 0.3, 7, 2, [1, 1, 0, 0, 1, 0])])
def test_the_battery(part: Diurnal) -> None:
    check_participation(part)
    day = [kind.share * kind.p[kind.group] for kind in part.kinds(6)]
    np.testing.assert_allclose(np.sum(day, axis=0), part.probs(6), rtol=1e-6)


def test_a_longer_horizon_extends_a_shorter_one() -> None:
    np.testing.assert_array_equal(first_rows(Diurnal(), 5, 9), first_rows(Diurnal(), 60, 9)[:5])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mean": 0.1, "amplitude": 0.2}, r"mean ± amplitude must stay in \[0, 1\], got 0.1 ± 0.2"),
        ({"mean": 0.9, "amplitude": 0.2}, r"mean ± amplitude must stay in \[0, 1\], got 0.9 ± 0.2"),
        ({"mean": float("nan")}, r"mean ± amplitude must stay in \[0, 1\], got nan"),
        ({"amplitude": -0.1}, "amplitude must be at least 0, got -0.1"),
        ({"rounds_per_day": 1}, "rounds_per_day must be at least 2, got 1"),
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"clusters": 2, "members": [2]}, "members must be one group number in 0 … 1 per client"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Diurnal(**settings)  # type: ignore[arg-type]

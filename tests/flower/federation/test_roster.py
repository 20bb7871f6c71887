"""Who belongs to the federation."""

import json

import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.state import roster
from tests.flower.federation.inprocess import key_of, roster_of


def test_a_roster_survives_its_file(tmp_path):
    made = roster_of([0, 1]).joined(key_of(7), "seven", 2.0)
    roster.save(tmp_path / "r.json", made)
    assert roster.read(tmp_path / "r.json") == made
    assert made.weights.tolist() == [0.25, 0.25, 0.5]


def test_numbers_are_never_given_twice():
    made = roster_of([0, 1, 2]).left(2).joined(key_of(9))
    assert made.ids.tolist() == [0, 1, 3]
    assert made.version == 3


def test_a_key_has_one_client():
    with pytest.raises(BadInput, match="this key is client 1 already"):
        roster_of([0, 1]).joined(key_of(1))
    with pytest.raises(BadInput, match="no client 4"):
        roster_of([0]).left(4)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [{"id": 0, "key": "short"}]},
        {"clients": [{"id": 0, "key": key_of(0)}, {"id": 0, "key": key_of(1)}]},
        {"clients": [{"id": 0, "key": key_of(0)}, {"id": 1, "key": key_of(0)}]},
        {"clients": [{"id": 0, "key": key_of(0), "weight": -1.0}]},
        {"clients": [{"id": 0, "key": key_of(0), "color": "red"}]},
        {"clients": [{"id": 5, "key": key_of(0)}]},
        {"clients": 3},
        {"format": 2},
    ],
    ids=str,
)
def test_a_file_that_is_no_roster_is_refused(tmp_path, change):
    good = {"format": 1, "version": 1, "next": 2, "clients": [{"id": 0, "key": key_of(0)}]}
    (tmp_path / "r.json").write_text(json.dumps(good))
    roster.read(tmp_path / "r.json")
    (tmp_path / "r.json").write_text(json.dumps(good | change))
    with pytest.raises(BadInput):
        roster.read(tmp_path / "r.json")

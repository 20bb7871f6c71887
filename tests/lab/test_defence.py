"""A defence and liars in an experiment's file."""

import pytest

from fedstale.core import BadInput
from fedstale.lab import schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.spec import make_section, settings_in

RAW = {
    "name": "attacked", "rounds": 12, "algorithms": ["fedstale"], "data": {"dataset": "quadratic", "clients": 10},
    "local": {"lr": 0.05}, "participation": {"kind": "bernoulli", "p": 1.0}, "evaluate_every": 12,
}  # fmt: skip
LIE = {"clients": [0, 1], "factor": -15}


def finished(folder, **more):
    """The last evaluation, and how many updates were refused."""
    experiment = schema.check(RAW | more)
    (planned,) = plan(experiment, folder)
    for _ in execute(experiment, [planned]):
        pass
    lines = planned.folder.metrics()
    return planned, lines[-1], sum(line["refused"] for line in lines)


def test_a_file_turns_the_defence_on(tmp_path):
    plain, alone, none = finished(tmp_path)
    _, attacked, _ = finished(tmp_path, liars=LIE)
    planned, defended, refused = finished(tmp_path, liars=LIE, defence=True)
    assert (none, refused) == (0, 24)
    assert alone["distance"] < defended["distance"] < 0.6 < attacked["distance"]  # the optimum of eight clients
    assert planned.config["defence"] is True
    assert not {"defence", "liars"} & plain.config.keys()  # the key of a run without them is as it was


def test_settings_are_checked_before_any_work():
    for more, sentence in (
        ({"defence": {"loud": 0.5}}, "defence: loud must be above 1, got 0.5"),
        ({"defence": {"lod": 5}}, "defence setting 'lod' is unknown; did you mean 'loud'"),
        ({"defence": "maybe"}, "defence must be true or false or a table, got 'maybe'"),
        ({"liars": {"factor": 2}}, r"liars \(Liars\) needs clients"),
    ):
        with pytest.raises(BadInput, match=sentence):
            schema.check(RAW | more)


def test_parts_are_told_as_a_file_has_them():
    for given in ({}, {"loud": 9.0, "influence": None}):
        assert settings_in(make_section("defence", given)) == given
    assert settings_in(make_section("liars", LIE)) == LIE
    assert make_section("defence", False) is make_section("liars", None) is None

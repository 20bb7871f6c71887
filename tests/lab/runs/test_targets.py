"""Rounds, megabytes and hours to a target: the experiment's own, or where plain averaging ends."""

from typing import Any

from fedstale.lab.runs.verdict import reached, target


def lines(values: list[float | None], name: str = "accuracy", **more: Any) -> list[dict[str, Any]]:
    known = [{} if v is None else {name: v} for v in values]
    return [{"round": t, "bytes_up": 1e6, "bytes_down": 2e6} | of | more for t, of in enumerate(known, 1)]


def test_the_target_is_the_experiments_or_where_plain_averaging_ends() -> None:
    runs = {"auto": [lines([0.5, 0.9])], "FedAvg": [lines([0.2, 0.4]), lines([0.4, 0.6])]}
    found = target({}, runs)
    assert found is not None
    assert (round(found.value, 6), found.text) == (0.4, "40.00 %, where FedAvg ends")
    own = target({"target": 0.9}, runs)
    assert own is not None
    assert own.text == "90.00 %"
    assert target({}, {"auto": runs["auto"]}) is None  # of one algorithm alone it says nothing
    assert target({}, {}) is None


def test_the_main_metric_is_the_one_that_is_to_be_reached() -> None:
    runs = {label: [[x | {"iou": 0.3} for x in lines([0.5])]] for label in ("fedavg", "auto")}
    for config in ({"main": "iou"}, {"main": "iou", "target": 0.7}):
        found = target(config, runs)
        assert found is not None
        assert found.metric.name == "iou"


def test_when_it_is_reached_counts_what_was_sent_until_then() -> None:
    aim = target({"target": 0.5}, {"a": [lines([0.6])]})
    assert aim is not None
    seeds = [lines([0.1, None, 0.5, 0.9], seconds=7200), lines([0.1, 0.1, 0.1, 0.1, 0.6], seconds=3600)]
    found = reached(seeds, aim)
    assert (found.rounds.text, found.megabytes.text) == ("4 ± 1.4", "12 ± 4.2")
    assert found.hours is not None
    assert found.hours.mean == 1.5
    some = reached([lines([0.6]), lines([0.1, 0.2])], aim)
    assert (some.rounds.text, some.hours) == ("1 (1 of 2 seeds)", None)
    assert reached([lines([0.1])], aim).rounds.text == "never"


def test_of_a_loss_less_is_better() -> None:
    aim = target({"target": 1.0}, {"a": [lines([2.0], "objective")]})
    assert aim is not None
    assert reached([lines([3.0, 0.9, 0.5], "objective")], aim).rounds.mean == 2

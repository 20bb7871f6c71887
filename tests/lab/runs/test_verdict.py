"""The sentence on top of a report."""

from pathlib import Path
from typing import Any

from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.query import Group, Run
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.runs.verdict import Halves, left_behind, verdict


def group(label: str, *accuracies: float) -> Group:
    def run(seed: int, value: float) -> Run:
        result: dict[str, Any] = {"accuracy": dict.fromkeys(("final", "last10", "best"), value)}
        return Run(RunFolder(Path("nowhere")), {"label": label, "seed": seed, "rounds": 400}, result)

    return Group(label, [run(k, a) for k, a in enumerate(accuracies)], [])


def test_it_says_who_is_left_behind_and_which_cannot_be_told_apart() -> None:
    groups = [group("fedavg", 0.80, 0.81, 0.80), group("auto", 0.95, 0.96, 0.95), group("mifa", 0.955, 0.95, 0.955)]
    served = {"fedavg": Halves(0.97, 0.82), "auto": Halves(0.97, 0.97), "mifa": None}
    assert verdict(groups, served, 12) == (
        "fedavg leaves the 12 clients that come rarely 15 points behind auto (82 % and 97 % test accuracy). "
        "auto and mifa cannot be told apart by test accuracy after 400 rounds and 3 seeds; fedavg is behind."
    )


def test_one_that_is_best_is_called_so() -> None:
    groups = [group("fedavg", 0.80, 0.81), group("auto", 0.95, 0.96)]
    assert verdict(groups, {}, 0) == (
        "auto has the best test accuracy after 400 rounds, 95.50 %, beyond chance over 2 seeds."
    )


def test_runs_that_stopped_early_are_not_said_to_have_played_all_their_rounds() -> None:
    groups = [group("fedavg", 0.80, 0.81), group("auto", 0.95, 0.96)]
    for k, played in enumerate((400, 310)):
        for run in groups[k].runs:
            assert run.result is not None
            run.result["rounds"] = played
    assert "best test accuracy where each stopped, after at most 400 rounds, 95.50 %" in verdict(groups, {}, 0)
    for run in groups[0].runs:
        assert run.result is not None
        run.result["rounds"] = 310
    assert "best test accuracy after 310 rounds, 95.50 %" in verdict(groups, {}, 0)


def test_one_seed_proves_nothing_and_one_algorithm_says_nothing() -> None:
    assert verdict([group("fedavg", 0.8), group("auto", 0.9)], {}, 0).endswith("may be chance: add seeds.")
    assert verdict([group("auto", 0.9, 0.8)], {}, 0) == ""


def test_clients_that_fare_alike_are_not_called_left_behind() -> None:
    served = {"fedavg": Halves(0.9, 0.895), "auto": Halves(0.9, 0.9)}
    text = verdict([group("fedavg", 0.9, 0.9), group("auto", 0.9, 0.9)], served, 3)
    assert text.startswith("The 3 clients that come rarely fare alike with all algorithms, at about 90 %.")


def test_of_a_loss_less_is_better_and_other_scores_have_no_points() -> None:
    served = {"fedavg": Halves(0.9, 3.0, metric("loss")), "auto": Halves(0.9, 2.5, metric("loss"))}
    assert left_behind(served, 3) == (
        "fedavg leaves the 3 clients that come rarely 0.5 behind auto (3 and 2.5 test loss)."
    )
    for label in served:  # nobody has learnt anything of them
        served[label] = Halves(0.9, 0.0, metric("iou"))
    assert left_behind(served, 3).endswith("fare alike with all algorithms, at about 0 iou.")
    served = {"auto": Halves(0.9, 2.5, metric("loss"))}
    served["fedavg"] = Halves(0.9, 2.51, metric("loss"))
    assert left_behind(served, 3).endswith("fare alike with all algorithms, at about 2.5 test loss.")
    served["fedavg"] = Halves(900.0, 1234.0, metric("loss"))
    assert "1230 behind auto (1230 and 2.5 test loss)" in left_behind(served, 3)
    assert left_behind(served | {"mifa": Halves(0.9, 0.8)}, 3) == ""  # scores of two kinds

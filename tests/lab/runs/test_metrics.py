"""One home for metrics: name, label, unit and direction, and their order."""

import re
from pathlib import Path

import pytest

from fedstale.lab.recorder import summary
from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric, metric
from fedstale.view.terminal import runs as results


def test_the_main_metric_of_a_result_is_the_first_that_is_shown() -> None:
    assert [m.name for m in metrics.evaluated({"loss": 1, "objective": 1, "accuracy": 1})] == [
        "accuracy", "objective", "loss",
    ]  # fmt: skip
    assert metrics.shown({"objective", "distance", "w1"})[0].name == "distance"
    assert metrics.shown({"accuracy", "objective"}, {"objective"})[0].name == "objective"  # that all have
    assert metrics.shown() == metrics.shown({"loss"}) == []


def test_numbers_as_they_are_shown() -> None:
    assert metric("accuracy").text(0.93414, 0.002) == "93.41 ± 0.20 %"
    assert metric("accuracy").text(0.93414) == "93.41 %"
    assert metric("objective").text(0.123456, 0.0021) == "0.1235 ± 0.002"
    assert metric("objective").text(None) == metric("accuracy").text(float("nan")) == "–"
    assert (metric("accuracy").axis, metric("loss").axis) == ("test accuracy (%)", "test loss")


def test_a_title_changes_no_symbol() -> None:
    """σ_g² as a capital would be another thing."""
    assert [m.name for m in metrics.METRICS if m.title[0] != m.label[0] and not m.label[0].isascii()] == []
    assert metric("diversity").title == "How the clients' gradients differ, σ_g²"


def test_direction() -> None:
    assert metric("accuracy").best([0.1, 0.9]) == 0.9
    assert metric("objective").best([0.1, 0.9]) == 0.1
    assert metric("accuracy").score(0.5) == 0.5
    assert metric("loss").score(0.5) == -0.5
    assert metric("f1").best([0.1, 0.9]) == metric("my_metric").best([0.1, 0.9]) == 0.9
    assert metric("mse").best([0.1, 0.9]) == 0.1
    assert metric("my_metric").label == "my metric"
    assert [m.name for m in metrics.shown({"objective", "mse"})] == ["mse", "objective"]


def test_numbers_of_unknown_name_are_shown_last_and_those_that_are_no_metrics_are_not() -> None:
    line = {"round": 3, "train_loss": 1.0, "beta": 0.5, "coverage": 0.2, "objective": 1.0, "accuracy_exit_1": 0.3}
    assert [m.name for m in metrics.shown(line)] == ["objective", "coverage"]
    result = {"coverage": {}, "gap_error": {}, "rounds": 3, "fingerprint": "f", "rounds_per_second": 1.0}
    assert [m.name for m in metrics.evaluated(result, {"gap_error": {}})] == ["gap_error"]
    assert metric("gap_error").best([0.1, 0.9]) == metric("proxy_loss").best([0.1, 0.9]) == 0.1


def test_an_exit_has_the_direction_of_its_metric() -> None:
    lines = [{"round": t, "accuracy_exit_2": a, "variance_exit_1": a} for t, a in ((1, 0.9), (2, 0.5))]
    found = summary(lines)
    assert found["accuracy_exit_2"]["best"] == 0.9
    assert found["variance_exit_1"]["best"] == 0.5
    assert metric("accuracy_exit_2").label == "test accuracy, exit 2"


def test_a_new_metric_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    recall = Metric("rarity", "recall of rare classes", higher_is_better=True, percent=True)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, recall))
    lines = [{"round": t, "accuracy": 0.5, "rarity": 0.1 * t} for t in (1, 2, 3)]
    result = summary(lines) | {"rounds_per_second": 1.0}
    assert result["rarity"]["best"] == pytest.approx(0.3)
    rows = results.summary({"fedavg": [result]})
    assert rows[0]["rarity_final"] == pytest.approx(0.3)
    table = results.table(rows, "title")
    assert [str(c.header) for c in table.columns] == ["algorithm", "final", "last 10", "best", "rarity", "rounds/s"]
    assert [*table.columns[4].cells] == ["30.00 %"]


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("accuracy", 0.9), ("distance", 0.1), ("objective", 0.1), ("loss", 0.1), ("validation_loss", 0.1),
        ("validation_accuracy", 0.9), ("held_out_loss", 0.1), ("held_out_accuracy", 0.9), ("held_out_mse", 0.1),
        ("validation_own", 0.9),
    ],
)  # fmt: skip
def test_more_is_better_of_an_accuracy_and_less_of_a_loss(name: str, best: float) -> None:
    assert metric(name).best([0.1, 0.9]) == best
    assert metric(name).score(best) > metric(name).score(0.5)


def test_scores_of_other_samples_have_labels_and_only_held_out_accuracy_is_shown() -> None:
    assert metric("validation_mse") == metric("mse")._replace(name="validation_mse", label="validation mse")
    assert metric("held_out_accuracy").text(0.5) == metric("validation_accuracy").text(0.5) == "50.00 %"
    names = ["validation_accuracy", "validation_loss", "held_out_loss", "held_out_accuracy", "accuracy"]
    assert [m.name for m in metrics.shown(names)] == ["accuracy", "held_out_accuracy"]


def test_titles_are_spelled_as_the_field_does() -> None:
    names = ("iou", "validation_iou", "miou", "iou_exit_2", "accuracy", "held_out_my_score")
    titles = ["IoU", "Validation IoU", "mIoU", "IoU, exit 2", "Test accuracy", "Held-out my score"]
    assert [metric(name).title for name in names] == titles


def test_every_sentence_has_percentages_in_one_format() -> None:
    """`5.0 %`, by `percent`; Python's own `.1%` writes `5.0%`. Plotly's templates know no other."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(metrics.__file__).parents[2].rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<!%)(?<!%\{)\{[^{}]*:\.\d%\}", line)
    ]
    assert found == []

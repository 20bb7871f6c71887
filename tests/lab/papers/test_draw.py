"""What a drawing shows of rows made by hand."""

from pathlib import Path

from fedstale.lab.papers.draw import curves
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.store import RunFolder


def row(panel: str, p: float, accuracy: float) -> Row:
    place = {"panel": panel, "p": p}
    return Row(
        place, "Serving rate", {}, {}, 1, 10, False, {"accuracy_last10": accuracy}, RunFolder(Path("nowhere"))
    )


def test_a_panel_of_one_point_is_a_line_in_the_panel_that_its_name_begins_with() -> None:
    rows = [row(panel, p, 0.5 + p) for panel in ("A", "B", "A, own") for p in (0.0, 0.2)]
    picture = curves.over([*rows, row("A, Equal", 0.0, 0.25)], {"axes": {"p": "p"}})
    above, below, own, legend = picture.axes
    assert [axes.get_title() for axes in (above, below, own)] == ["A", "B", "A, own"]
    (level,) = (line for line in above.lines if line.get_label() == "Equal")
    assert list(level.get_ydata()) == [25, 25]
    assert {text.get_text() for text in legend.get_legend().get_texts()} == {"Serving rate", "Equal"}  # type: ignore[union-attr]

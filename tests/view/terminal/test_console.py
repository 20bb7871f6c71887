import json
import math

import pytest

from fedstale.core import BadInput
from fedstale.view.terminal import runs as results
from fedstale.view.terminal.console import print_json, print_table, screen, seeds_override, table, text_of


def test_cells() -> None:
    assert [text_of(v) for v in (None, 0.123456, 12345, "x")] == ["", "0.1235", "12345", "x"]


def test_a_table_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "[a]", "final_value": 0.5}, {"name": "b", "final_value": None}], "things")
    text = capsys.readouterr().out
    assert [word for word in ("things", "final value", "[a]", "0.5", "b") if word not in text] == []
    screen().print(table(["algorithm", "seed"], [["fedstale [red]", "1"]], "of [a]", [0]))
    text = capsys.readouterr().out
    assert "fedstale [red]" in text
    assert "of [a]" in text
    print_table([])
    assert "nothing yet" in capsys.readouterr().out


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [math.inf, 1.5], "b": {"c": math.nan}})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": [None, 1.5], "b": {"c": None}}


def test_seeds_are_whole_numbers() -> None:
    assert seeds_override("1, 2,3") == ["seeds=[1, 2, 3]"]
    assert seeds_override(None) == []
    with pytest.raises(BadInput, match="--seeds must differ from each other, got 1,1"):
        seeds_override("1,1")
    for nonsense in ("a,b", "-1", "1;2", "", "1,"):
        with pytest.raises(BadInput, match="--seeds must be whole numbers of at least 0, such as 1,2,3, got"):
            seeds_override(nonsense)


def test_brackets_in_labels_settings_and_titles_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"algorithm": "a [b]"}], "of [c]")
    row = {"algorithm": "d [e]", "seeds": 1, "loss_final": 1.0, "rounds_per_second": None, "p": ["f", "g"]}
    screen().print(results.table([row], "of [h]", ["p"]))
    said = capsys.readouterr().out
    assert all(text in said for text in ("a [b]", "of [c]", "d [e]", "of [h]", "[f, g]"))

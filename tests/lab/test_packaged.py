"""The experiment files that come with the package, and those that a user names."""

from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.lab.build import find


def test_a_mistyped_file_is_answered_with_the_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="experiment 'wards' is unknown; known: demo"):
        find("wards")
    (tmp_path / "wards.toml").touch()
    with pytest.raises(BadInput, match=r"there is no file wards.tml; did you mean wards.toml\?"):
        find("wards.tml")

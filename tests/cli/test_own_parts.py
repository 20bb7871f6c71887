"""`fedstale --no-own-parts` imports no code that a file names."""

import pytest

from fedstale.core.parts import NO_OWN_PARTS
from tests.cli.commands import fedstale

FILE = """
rounds = 2
algorithms = [{algorithm}]
data = {{ dataset = {dataset}, clients = 4 }}
local = {{ lr = 0.05, steps = 2{train} }}
participation = {{ kind = {kind}, p_min = 0.5 }}
"""
PLAIN = {"algorithm": '"fedavg"', "dataset": '"quadratic"', "train": "", "kind": '"two-groups"'}


@pytest.mark.parametrize(
    "own",
    [
        {"algorithm": '"mine:Rule"'},
        {"dataset": '"mine:load"'},
        {"train": ', train = "mine:loop"'},
        {"kind": '"mine:Who"'},
    ],
)
def test_a_file_that_names_code_is_refused_before_it_is_imported(tmp_path, monkeypatch, own):
    monkeypatch.setenv(NO_OWN_PARTS, "")  # what the command sets is undone with it
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "e.toml").write_text(FILE.format(**PLAIN | own))
    done = fedstale("--no-own-parts", "run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "is code, which --no-own-parts refuses to import" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_file_of_known_parts_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(NO_OWN_PARTS, "")
    (tmp_path / "e.toml").write_text(FILE.format(**PLAIN))
    assert fedstale("--no-own-parts", "run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "runs")).returncode == 0

"""Logs of presence with names and times."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.participation.log import is_log
from fedstale.participation.trace import matched


def written(folder: Path, text: str) -> Path:
    path = folder / "presence.csv"
    path.write_text(text)
    return path


def test_a_client_is_there_in_the_round_of_its_timestamp(tmp_path: Path) -> None:
    path = written(
        tmp_path, "hospital,timestamp\nBonn,2026-01-03T10:00\nAachen,2026-01-01\nBonn,2026-01-01T23:59Z\n"
    )
    log = fs.Log(path)
    assert log.names == ("Aachen", "Bonn")
    np.testing.assert_array_equal(log.recording(2), [[1, 1], [0, 0], [0, 1]])
    np.testing.assert_allclose(log.probs(2), [1 / 3, 2 / 3])


def test_a_session_covers_every_round_that_it_touches_but_not_the_one_it_ends_with(tmp_path: Path) -> None:
    text = (
        "device_id,start_time,end_time\na,2026-01-01T01:00,2026-01-01T03:00\nb,2026-01-01T02:30,2026-01-01T02:40\n"
    )
    np.testing.assert_array_equal(fs.Log(written(tmp_path, text), round="1h").recording(), [[1, 0], [1, 1]])


def test_counts_of_a_day_in_long_and_wide_form(tmp_path: Path) -> None:
    long = "client,date,count\na,2026-01-01,3\nb,2026-01-01,0\nb,2026-01-02,1\na,2026-01-02,0\n"
    wide = "date,a,b\n2026-01-01,3,0\n2026-01-02,,1\n"
    expected = [[1, 0], [0, 1]]
    np.testing.assert_array_equal(fs.Log(written(tmp_path, long)).recording(), expected)
    trace = fs.Trace(written(tmp_path, wide))
    np.testing.assert_array_equal(trace.recording(), expected)
    assert trace.names == ("a", "b")


def test_a_list_of_entries_and_seconds(tmp_path: Path) -> None:
    log = fs.Log([("b", 0.0), ("a", 3600, 3 * 3600)], round="1h")
    np.testing.assert_array_equal(log.recording(), [[0, 1], [1, 0], [1, 0]])
    assert fs.Log(log.log, "1h") == log


def test_an_array_of_entries_is_read_as_their_list() -> None:
    entries = np.empty(2, object)
    entries[:] = [("b", 0.0), ("a", 3600, 3 * 3600)]
    assert fs.Log(entries, round="1h") == fs.Log(list(entries), round="1h")


def test_rounds_of_a_day_begin_at_midnight_and_those_of_six_hours_at_six() -> None:
    late, early = "2026-01-01T13:00", "2026-01-02T05:00"
    assert len(fs.Log([("a", late), ("a", early)]).recording()) == 2
    assert len(fs.Log([("a", late), ("a", early)], round="6h").recording()) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,timestamp\na,yesterday\n", "line 2: a time must be such as 2026-03-01, .* got 'yesterday'"),
        ("client,timestamp\na\n", "line 2: 1 entries, the first line has 2"),
        ("client,from,to\na,2026-01-02,2026-01-01\n", "line 2: a leaves before it comes"),
        ("client,date,count\na,2026-01-02,many\n", "the count must be a number of at least 0, got 'many'"),
        ("client,date,count\na,2026-01-02,-3\n", "line 2: the count must be a number of at least 0, got '-3'"),
        ("client,timestamp\n,2026-01-02\n", "line 2: the entry names no client"),
        ("client,timestamp\n", "must have at least one entry, got none"),
        ("client,timestamp\na,01/02/2026\n", "got '01/02/2026': is the day or the month first\\?"),
        ("client,timestamp\na,2026-01-02 08:30 CET\n", "a time must be such as .* got '2026-01-02 08:30 CET'"),
        ("a,2026-01-01\na,2026-01-02\n", "must begin with a line that names its columns, got a, 2026-01-01"),
        ("who,what\na,b\n", "must have columns for a client and a timestamp, .* got who, what"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(fs.BadInput, match=sentence):
        fs.Log(written(tmp_path, text))


@pytest.mark.parametrize("log", [0.5, np.array(0.5)], ids=repr)
def test_a_number_is_no_log(log: Any) -> None:
    with pytest.raises(fs.BadInput, match=r"log must be a file, or a list of \(client, time\) .*, got .*0\.5"):
        fs.Log(log)


def test_a_round_must_be_a_time_and_not_too_short() -> None:
    with pytest.raises(fs.BadInput, match='round must be a time such as "1d", "6h"'):
        fs.Log([("a", 0)], round="daily")
    with pytest.raises(fs.BadInput, match=r"round = '1s' makes .* take a longer one"):
        fs.Log([("a", 0), ("a", 1e9)], round="1s")


def test_the_column_of_the_clients_may_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, "clinic,time\nBonn,2026-01-01\n")
    assert fs.Log(path, client="clinic").names == ("Bonn",)
    with pytest.raises(fs.BadInput, match="column 'clinics' is unknown; did you mean 'clinic'"):
        fs.Log(path, client="clinics")


def test_columns_with_other_names_are_known_by_what_they_hold(tmp_path: Path) -> None:
    log = fs.Log(
        written(tmp_path, "Klinik;von;bis\nKöln;01.03.2026 08:30;02.03.2026 09:00\nBonn;2026-03-03;3.3.2026\n")
    )
    assert log.names == ("Bonn", "Köln")
    assert log.recording().tolist() == [[False, True], [False, True], [True, False]]
    assert is_log(["Klinik", "Zeitpunkt"], ["Köln", "01.03.2026"])
    assert is_log(["Klinik", "Zeitpunkt"], ["Köln", "03/01/2026 08:00"])
    assert is_log(["Klinik", "Zeitpunkt"], ["Köln", "2026-01-03 08:00 CET"])
    assert not is_log(["Tag", "Köln", "Bonn"], ["01.03.2026", "1", "0"])


def test_a_log_is_known_by_its_header() -> None:
    assert is_log(["hospital_id", "Timestamp\n"])
    assert is_log(["client", "from", "to"])
    assert not is_log(["device", "variant", "t_s", "state"])
    assert not is_log(["Berlin", "Bonn"])


def test_recordings_are_matched_by_name(tmp_path: Path) -> None:
    log = fs.Log([("b", 0), ("a", 86400), ("c", 0)])
    two = fs.Log([("b", 0), ("a", 86400)])
    np.testing.assert_array_equal(matched(two, ("b", "a")).rows(2, np.random.default_rng(0)).__next__(), [1, 0])
    with pytest.warns(UserWarning, match="recorded clients without data are left out: c"):
        assert matched(log, ("b", "a")).names == ("b", "a")  # type: ignore[attr-defined]
    with pytest.raises(fs.BadInput, match=r"1 of 2 clients of the data are not in .*: d; it has a instead"):
        matched(two, ("b", "d"))
    sampled = matched(fs.participation.Sampling(two, 1), ("b", "a"))
    assert sampled.base.names == ("b", "a")  # type: ignore[attr-defined]
    assert matched(two, ()) is two


def test_a_client_of_the_data_that_was_never_recorded_never_comes(tmp_path: Path) -> None:
    table = fs.Trace(written(tmp_path, "Aachen,Bonn,Ulm\n1,0,1\n0,1,1\n"))
    for recording in (fs.Log([("Aachen", 0), ("Bonn", 86400), ("Ulm", 0), ("Ulm", 86400)]), table):
        with pytest.warns(UserWarning, match="Ulm") as told:
            found = matched(recording, ("Trier", "Bonn", "Aachen"))
        np.testing.assert_array_equal(found.recording(3), [[0, 0, 1], [0, 1, 0]])  # type: ignore[attr-defined]
        assert [str(w.message) for w in told] == [
            "clients of the data that were never recorded never come: Trier; name them alike if one is Ulm",
            "recorded clients without data are left out: Ulm",
        ]
        for name in ("BONN", "ulm", "Ullm"):  # rather a client of the recording, written otherwise
            with pytest.raises(fs.BadInput, match=f"not in the recorded participation: {name}; .* name them alike"):
                matched(recording, (name, "Bonn", "Aachen"))


def test_the_header_of_a_table_names_clients_and_a_plain_count_does_not(tmp_path: Path) -> None:
    trace = fs.Trace(written(tmp_path, "Bonn,Aachen\n1,0\n1,0\n"))
    np.testing.assert_array_equal(matched(trace, ("Aachen", "Bonn")).recording(2), [[0, 1], [0, 1]])  # type: ignore[attr-defined]
    assert fs.Trace(written(tmp_path, ",0,1\n0,1,0\n")).names == ()


def test_a_simulation_matches_the_task_by_name() -> None:
    import torch

    clients = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))] * 2
    task = fs.Supervised(lambda: torch.nn.Linear(2, 2), clients, names=["b", "a"])
    engine = fs.engine("serial", task, fs.Local(lr=0.1))
    log = fs.Log([("b", 0), ("a", 86400)])
    heard = [s.clients.tolist() for s in fs.simulate(engine, fs.FedAvg(), log, rounds=2, seed=1)]
    assert heard == [[0], [1]]

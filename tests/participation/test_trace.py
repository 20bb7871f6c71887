"""Traces: what is in the table is what happens, and what is wrong with a table is said."""

import gzip
import lzma
import pickle
import zipfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstale.core import BadInput, Mask
from fedstale.core.rng import stream
from fedstale.participation.sampling import Sampling
from fedstale.participation.trace import Trace, recorded_kinds

TABLE = np.array([[1, 0, 1], [0, 0, 1]], bool)  # two rounds of three clients


def replayed(trace: Trace, n: int, rounds: int) -> Mask:
    return np.array(list(islice(trace.rows(n, stream(0)), rounds)))


@given(
    hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5)), st.integers(1, 15), st.booleans()
)
def test_rows_are_replayed_and_start_again(table: Mask, rounds: int, turned: bool) -> None:
    T, n = table.shape
    trace = Trace(table.T if turned else table, clients_first=turned)
    wanted = [table[t % T] for t in range(rounds)]
    np.testing.assert_array_equal(replayed(trace, n, rounds), wanted)
    np.testing.assert_allclose(trace.probs(n), [sum(map(int, column)) / T for column in table.T], rtol=1e-6)


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5)), st.integers(1, 3))
def test_marginals_under_sampling_are_exact(table: Mask, size: int) -> None:
    """Of those in a row each is among the `size` chosen with chance min(1, size / how many they are)."""
    wanted = np.mean([row * min(1, size / max(row.sum(), 1)) for row in table], axis=0)
    sampling = Sampling(Trace(table, clients_first=False), size)
    np.testing.assert_allclose(sampling.probs(table.shape[1]), wanted, rtol=1e-5, atol=1e-7)
    listed = sum(kind.share * kind.p[kind.group] for kind in recorded_kinds(table))
    np.testing.assert_allclose(listed, table.mean(axis=0), atol=1e-12)


def test_the_side_that_fits_is_the_clients() -> None:
    np.testing.assert_array_equal(replayed(Trace(TABLE), 3, 2), TABLE)
    np.testing.assert_array_equal(replayed(Trace(TABLE), 2, 3), TABLE.T)
    square = np.array([[1, 1], [0, 1]])
    np.testing.assert_array_equal(replayed(Trace(square), 2, 2), square)
    np.testing.assert_array_equal(replayed(Trace(square, clients_first=True), 2, 2), square.T)


def test_a_table_that_looks_transposed_is_questioned(tmp_path: Path) -> None:
    file, square = tmp_path / "wide.npy", tmp_path / "square.npy"
    np.save(file, TABLE)
    np.save(square, TABLE[:, :2])
    with pytest.warns(
        UserWarning, match="^the trace is read as 2 rounds of 3 clients; if its rows are clients, set"
    ):
        assert Trace(file).recording().shape == (2, 3)
    with pytest.warns(UserWarning, match="^the trace is read as 2 rounds of 2 clients"):
        Trace(square).probs(2)
    assert Trace(square, clients_first=False).probs(2).shape == (2,)
    assert Trace(file).probs(3).shape == (3,)  # with as many clients as columns there is no question
    assert Trace(TABLE).recording().shape == (2, 3)  # nor of a table that was made here
    assert Trace(file, clients_first=True).recording().shape == (3, 2)
    (tmp_path / "named.csv").write_text("anna,ben,cleo\n1,0,1\n")
    assert Trace(tmp_path / "named.csv").recording().shape == (1, 3)  # the header names the clients


def test_no_side_fits() -> None:
    with pytest.raises(BadInput, match="the trace is 2 × 3, which has no side of 4 clients"):
        Trace(TABLE).probs(4)
    with pytest.raises(BadInput, match="2 × 3 with clients_first=True, which has no side of 3 clients"):
        next(Trace(TABLE, clients_first=True).rows(3, stream(0)))
    with pytest.raises(BadInput, match="2 × 3 with clients_first=False, which has no side of 2 clients"):
        Trace(TABLE, clients_first=False).probs(2)
    with pytest.raises(BadInput, match="clients_first must be true or false, got 'rounds'"):
        Trace(TABLE, "rounds")


def written(folder: Path, kind: str) -> Path:
    """TABLE as a file of this kind."""
    path, text = folder / f"trace{kind.split()[0]}", "1,0,1\n0,0,1\n"
    texts = {
        ".csv": text,
        ".csv header": f"ann,bob,eve\n{text}",
        ".csv mark": f"\ufeff{text}".replace("\n", "\r\n"),
        ".csv floats": "1.0,0.0,1e0\n\n0.0, 0.0 ,1.0\n",
        ".csv words": "True,False,true\nfalse,False,True\n",
        ".csv pandas": ",ann,bob,eve\n0,1,0,1\n1,0,0,1\n",
        ".csv numbers": ",0,1,2\n0,True,False,True\n1,False,False,True\n",
        ".csv rounds": "round,ann,bob,eve\n1,1,0,1\n2,0,0,1\n",
        ".csv quoted": '"a, b","c","d"\n"1","0","1"\n"0","0","1"\n',
    }
    if kind in texts:
        path.write_text(texts[kind], encoding="utf-8", newline="")
    elif kind == ".csv.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif kind == ".csv.xz":
        path.write_bytes(lzma.compress(text.encode()))
    elif kind == ".npy":
        np.save(path, TABLE.astype(np.uint8))
    else:
        np.savez_compressed(path, trace=TABLE)
    return path


KINDS = [
    ".csv pandas",
    ".csv numbers",
    ".csv rounds",
    ".csv",
    ".csv header",
    ".csv mark",
    ".csv floats",
    ".csv words",
    ".csv quoted",
    ".csv.gz",
    ".csv.xz",
]


@pytest.mark.parametrize("kind", [*KINDS, ".npy", ".npz"])
@pytest.mark.parametrize("as_text", [True, False])
def test_files(tmp_path: Path, kind: str, as_text: bool) -> None:
    path = written(tmp_path, kind)
    trace = Trace(str(path) if as_text else path)
    assert trace == Trace(TABLE)
    assert hash(trace) == hash(Trace(TABLE))
    assert pickle.loads(pickle.dumps(trace)) == trace
    assert trace.matrix.dtype == np.bool_


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,0\n1,2\n", r"bad\.csv, line 2, column 2: must be 0 or 1, got '2'"),
        ("a,b\n1,0\n1,x\n", "line 3, column 2: must be 0 or 1, got 'x'"),
        ("1,0\n,1\n", "line 2, column 1: must be 0 or 1, got ''"),
        ("nan,0\n0,1\n", "line 1, column 1: must be 0 or 1, got 'nan'"),
        ("1,0.5\n0,1\n", "line 1, column 2: must be 0 or 1, got '0.5'"),
        ("1,0\n1,0,1\n", "line 2: 3 entries, the rows before have 2"),
        ("1,0\n\n1\n", "line 3: 1 entries, the rows before have 2"),
        ("", "has no rounds in it"),
        ("ann,bob\n", "has no rounds in it"),
        ("0,1\n\0,1\n", r"line 2, column 1: must be 0 or 1, got '\\x00'|cannot be read"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=sentence) as caught:
        Trace(path)
    assert "bad.csv" in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    def refused(name: str, content: bytes | None, sentence: str) -> None:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadInput, match=sentence):
            Trace(path)

    refused("missing.csv", None, r"missing\.csv cannot be read: .*No such file")
    refused("missing.npy", None, r"missing\.npy cannot be read: .*No such file")
    refused("trace.parquet", b"x", r"must end in \.csv, .* or \.npz, got .*trace\.parquet")
    refused("not.npy", b"hello", "cannot be read")
    refused("empty.npy", b"", "cannot be read")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3000000, 3000000), }"
    claims = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    refused("claims.npy", claims, "it claims 72000000000000 bytes and has")
    refused("broken.npy", claims.replace(b"'shape'", b"'shapo'"), "cannot be read")
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as file:
        file.writestr("a.npy", claims)
    refused("claims.npz", None, "it claims 72000000000000 bytes and has")
    refused("not.npz", b"PK\x03\x04 not a zip", "cannot be read")
    refused("not.csv.gz", b"hello", "cannot be read")
    refused("not.csv.xz", b"hello", "cannot be read")
    refused("cut.csv.gz", gzip.compress(b"1,0\n" * 99)[:-9], "cannot be read")
    with pytest.warns(UserWarning, match="not in UTF-8"):
        refused("latin.csv", b"1,\xe9\n", "column 2: must be 0 or 1, got 'é'")
    np.savez(tmp_path / "two.npz", a=TABLE, b=TABLE)
    refused("two.npz", None, r"must hold one array, got 2: \['a', 'b'\]")
    np.save(tmp_path / "objects.npy", np.array([[1, None]]), allow_pickle=True)
    refused("objects.npy", None, "cannot be read")
    np.save(tmp_path / "flat.npy", np.ones(3))
    refused("flat.npy", None, r"2-D table of 0 and 1, got shape \(3,\)")


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        ([1, 0], r"2-D table of 0 and 1, got shape \(2,\)"),
        (np.ones((2, 2, 2)), r"got shape \(2, 2, 2\)"),
        ([[1, 0], [1]], "2-D table of 0 and 1, got no table"),
        ([[]], r"at least one round and one client, got shape \(1, 0\)"),
        ([[0, 1], [2, 1]], r"got 2 in row 1, column 0 \(counted from 0\)"),
        ([[0, 1], [1, float("nan")]], "got nan in row 1, column 1"),
        ([[0, 1], [1, 0.5]], "got 0.5 in row 1, column 1"),
        ([["0", "1"]], "must hold 0 and 1, got entries of type"),
        (None, r"got shape \(\)"),
    ],
)
def test_bad_tables(matrix: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Trace(matrix)


def test_the_table_is_the_traces_own() -> None:
    given = TABLE.copy()
    trace = Trace(given)
    given[:] = False
    np.testing.assert_array_equal(trace.matrix, TABLE)
    with pytest.raises(ValueError, match="read-only"):
        trace.matrix[0, 0] = False
    row = next(trace.rows(3, stream(0)))
    row[:] = False  # a reader may use the row it was given
    np.testing.assert_array_equal(next(trace.rows(3, stream(0))), TABLE[0])

"""Made-up patients of two hospitals, and what becomes of their values."""

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.data.datasets import hospitals
from fedstale.data.files import official

ONE = b"60,1,4,140,200,0,1,150,1,2.0,2,?,?,3\n50,0,1,120,0,?,0,170,0,0.0,?,?,?,0\n"
TWO = b"40,1,2,?,300,1,2,130,0,1.0,1,0,3,0\n"


def test_numbers_are_scaled_and_what_is_missing_has_the_mean() -> None:
    found = hospitals([ONE, TWO])
    assert found.x.shape == (3, 15)
    assert found.x[:, 0] == pytest.approx(np.array([1, 0, -1]) / np.sqrt(2 / 3), rel=1e-6)  # age
    assert found.x[:, 1] == pytest.approx([1, -1, 0])  # trestbps, of which the third is missing
    assert found.x[:, 2] == pytest.approx([-1, 0, 1])  # chol, where 0 stands for missing
    assert found.x[:, 8:12].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]  # cp
    assert found.x[:, 12:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]  # restecg
    assert np.isfinite(found.x).all()


def test_a_client_is_a_hospital_and_the_label_is_whether_there_is_disease() -> None:
    found = hospitals([ONE, TWO])
    assert found.y.tolist() == [1, 0, 0]
    assert found.writers is not None
    assert found.writers.tolist() == [0, 0, 1]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(BadInput, match="must have 14 values, got 3"):
        hospitals([b"1,2,3\n"])


def test_the_four_tables_are_found_one_by_one() -> None:
    names = [official(f"heart-{name}")[0].remote.path for name in ("cleveland", "hungarian", "switzerland", "va")]
    assert names[0] == "heart-disease/processed.cleveland.data"
    assert len({*names}) == 4

"""Heart disease in four hospitals as a tabular task: has a patient the disease? A client is a hospital."""

from collections.abc import Sequence

import numpy as np

from fedstale.core import Floats, require
from fedstale.data.formats import Samples

COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca",
           "thal", "num")  # fmt: skip
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak", "sex", "fbs", "exang")
KINDS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}  # columns of categories
NEVER_ZERO = ("trestbps", "chol")  # 0 stands for a value that was not measured


def hospitals(contents: Sequence[bytes]) -> Samples:
    """Patients x (M, 15) with y = 1 where the disease was found, from one table for each hospital.

    Numbers have mean 0 and deviation 1 over all patients, and what is missing has the mean. Categories have a
    column each. slope, ca and thal are left out: outside Cleveland they are missing for most patients.
    """
    tables = [_table(content) for content in contents]
    whole = np.concatenate(tables)
    column = {name: whole[:, k] for k, name in enumerate(COLUMNS)}
    for name in NEVER_ZERO:
        column[name] = np.where(column[name] == 0, np.nan, column[name])
    scaled = [(v - np.nanmean(v)) / np.nanstd(v) for v in (column[name] for name in NUMBERS)]
    marked = [column[name] == kind for name, kinds in KINDS.items() for kind in kinds]
    x = np.nan_to_num(np.stack([*scaled, *marked], axis=1)).astype(np.float32)
    owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return Samples(x, (column["num"] > 0).astype(np.int64), len(x), owners)


def _table(content: bytes) -> Floats:
    """(patients, 14) of a file with commas, in which ? is missing."""
    rows = [line.split(",") for line in content.decode().split("\n") if line]
    wrong = next((len(row) for row in rows if len(row) != len(COLUMNS)), None)
    require(wrong is None, f"a patient must have {len(COLUMNS)} values, got {wrong}")
    return np.array([[np.nan if value == "?" else float(value) for value in row] for row in rows])

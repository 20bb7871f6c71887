import gzip

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.data import DATASETS, datasets, load
from fedstale.data.files import official, read

REAL = {  # shape, training samples, first label of the training and of the test set
    "mnist": ((70_000, 1, 28, 28), 60_000, 5, 7),
    "fashion-mnist": ((70_000, 1, 28, 28), 60_000, 9, 9),
    "cifar-10": ((60_000, 3, 32, 32), 50_000, 6, 3),
    "cifar-100": ((60_000, 3, 32, 32), 50_000, 19, 49),
}


def moments(x: np.ndarray, scale: float) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, by counting pixel values."""
    values = np.arange(256) / scale
    counts = [np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]
    means = [float(np.average(values, weights=count)) for count in counts]
    pairs = zip(counts, means, strict=True)
    return means, [float(np.average((values - m) ** 2, weights=count) ** 0.5) for count, m in pairs]


@pytest.mark.parametrize(("name", "near"), [("minst", "mnist"), ("cifar10", "cifar-10"), ("digit", "digits")])
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(BadInput, match=f"dataset '{name}' is unknown; did you mean '{near}'"):
        load(name)


def test_digits_need_no_file(monkeypatch):
    monkeypatch.delenv("FEDSTALE_DATA", raising=False)
    monkeypatch.setattr("fedstale.data.files.download", None)
    digits = load("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.uint8
    assert digits.x.max() == digits.scale == 16
    assert digits.n_train == 1797
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    mean, std = moments(digits.x, digits.scale)
    assert (digits.mean, digits.std) == (pytest.approx(mean, abs=5e-5), pytest.approx(std, abs=5e-5))


def test_every_entry_is_described_in_one_line():
    images = ["digits", "mnist", "mnist-writers", "fashion-mnist", "cifar-10", "cifar-100"]
    assert list(DATASETS) == [*images, "shakespeare", "heart-disease"]
    assert all(10 < len(entry.about) < 100 and "\n" not in entry.about for entry in DATASETS.values())


def test_torchvision_layouts_are_known():
    assert all("MNIST/raw" in file.folders for file in official("mnist"))
    assert all("FashionMNIST/raw" in file.folders for file in official("fashion-mnist"))
    assert official("mnist")[0].remote.path == "mnist/train-images-idx3-ubyte.gz"
    assert {file.remote.path for file in official("cifar-10")} == {"cifar-10-binary.tar.gz"}


def test_a_file_that_is_not_the_official_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.parent.mkdir()
    for file in official("mnist"):
        (path.parent / f"{file.name}.gz").write_bytes(gzip.compress(b"short"))
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path))
    with pytest.raises(BadInput, match=f"{path} must hold .* 47040016 bytes .* got 5 bytes"):
        load("mnist")


@pytest.mark.usefixtures("real_files")
@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    shape, n_train, first, first_test = REAL[name]
    data = load(name)
    assert data.x.shape == shape
    assert (data.x.dtype, data.y.dtype) == (np.uint8, np.int64)
    assert (data.name, data.n_train, data.scale, data.writers) == (name, n_train, 255, None)
    assert (data.y[0], data.y[n_train]) == (first, first_test)
    assert np.unique(data.y).tolist() == list(range(data.classes))
    mean, std = moments(data.x[:n_train], data.scale)
    assert (data.mean, data.std) == (pytest.approx(mean, abs=6e-5), pytest.approx(std, abs=6e-5))


@pytest.mark.usefixtures("real_files")
def test_real_writers():
    data = load("mnist-writers")
    assert data.writers is not None
    assert data.writers.shape == data.y.shape
    train, test = np.unique(data.writers[:60_000]), np.unique(data.writers[60_000:])
    assert (len(train), len(test), len(np.intersect1d(train, test))) == (539, 297, 0)
    tables = [datasets.idx(content) for content in read(official("qmnist-labels"))]
    assert np.concatenate([tables[0][:, 0], tables[1][:10_000, 0]]).tolist() == data.y.tolist()


def test_smaller_images_are_means_of_squares():
    digits = load("digits")
    small = digits.at_resolution(4)
    assert small.x.shape == (1797, 1, 4, 4)
    assert small.x.dtype == np.float32
    assert small.x[5, 0, 1, 2] == digits.x[5, 0, 2:4, 4:6].mean()
    assert small.x.mean() == pytest.approx(digits.x.mean())
    np.testing.assert_array_equal(digits.at_resolution(8).x, digits.x)
    wide = digits._replace(x=digits.x[:, :, :4])
    assert wide.at_resolution(2).x.shape == (1797, 1, 2, 4)


@pytest.mark.parametrize("height", [3, 16, 0, -4])
def test_a_resolution_that_does_not_divide_the_image_is_refused(height):
    with pytest.raises(BadInput, match=rf"divide the 8 × 8 pixels of digits: one of \[8, 4, 2, 1\], got {height}"):
        load("digits").at_resolution(height)
    rows = load("digits")._replace(name="rows", x=np.zeros((1797, 64)))
    with pytest.raises(BadInput, match=r"resolution needs images \(C, H, W\), got inputs \(64,\) of rows"):
        rows.at_resolution(4)

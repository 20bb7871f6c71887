"""Which files each dataset is made of, with their checksums and mirrors."""

from fedstale.data.download import Remote
from fedstale.data.files import Official

IDX_NAMES = (
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
)
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_MIRRORS = (
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
QMNIST_MIRRORS = (
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
    "https://github.com/facebookresearch/qmnist/raw/master/",
)
CIFAR_MIRROR = "https://www.cs.toronto.edu/~kriz/"


Texts = tuple[str, ...]


def _gz(name: str, size: int, md5: str, packed: str, folders: Texts, mirrors: Texts) -> Official:
    """A file that is published alone, as a .gz with the md5 `packed`."""
    remote = Remote(f"{folders[0]}/{name}.gz", packed, tuple(f"{mirror}{name}.gz" for mirror in mirrors))
    return Official(name, size, md5, folders, remote)


def _idx(md5s: tuple[tuple[str, str], ...], folders: Texts, mirrors: Texts) -> tuple[Official, ...]:
    """The four files of MNIST or of a dataset in its form, with the md5 of each, unpacked and packed."""
    named = zip(IDX_NAMES, md5s, strict=True)
    return tuple(_gz(name, size, *md5, folders, mirrors) for (name, size), md5 in named)


MNIST = _idx(
    (
        ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    ("mnist", "MNIST/raw"),
    MNIST_MIRRORS,
)

FASHION_MNIST = _idx(
    (
        ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
        ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
        ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    ("fashion-mnist", "FashionMNIST/raw"),
    FASHION_MIRRORS,
)

QMNIST_LABELS = tuple(
    _gz(f"qmnist-{half}-labels-idx2-int", 1_920_012, md5, packed, ("qmnist", "QMNIST/raw"), QMNIST_MIRRORS)
    for half, md5, packed in (
        ("train", "1d43300e7f41ddcbf7fd006cbe865af9", "0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("test", "5e00709fb0090091f3afc51d204ad83c", "5b5b05890a5e13444e108efe57b788aa"),
    )
)


def _cifar(archive: str, packed: str, folder: str, files: tuple[tuple[str, int, str], ...]) -> tuple[Official, ...]:
    """Files that are published together, in one archive with the md5 `packed`."""
    remote = Remote(archive, packed, (CIFAR_MIRROR + archive,))
    return tuple(Official(name, size, md5, (folder,), remote) for name, size, md5 in files)


CIFAR_10 = _cifar(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    (
        ("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
)

CIFAR_100 = _cifar(
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    (
        ("train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"),
        ("test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898"),
    ),
)

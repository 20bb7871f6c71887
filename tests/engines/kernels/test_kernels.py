"""Compiled modules are used only where they agree with numpy."""

import warnings
from collections.abc import Iterator

import pytest

from fedstale.engines import kernels
from fedstale.engines.kernels import load

CASES = [("linear",), ("convolutional",), ("dense",), ("rows", "float32"), ("rows", "float16"), ("rows", "int8")]
needs_numba = pytest.mark.skipif(load("linear") is None, reason="numba is not installed")
every_case = pytest.mark.parametrize("case", CASES, ids=" ".join)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    load.cache_clear()


@needs_numba
@every_case
def test_every_module_agrees_with_numpy_and_is_loaded_once(case: tuple[str, ...]) -> None:
    load.cache_clear()
    module = load(*case)
    assert module is not None
    assert load(*case) is module


@needs_numba
@pytest.mark.parametrize(
    ("case", "broken"),
    [
        (("linear",), "draw"),
        (("linear",), "outputs"),
        (("convolutional",), "_outputs"),
        (("dense",), "_train"),
        *((case, "update") for case in CASES[3:]),
    ],
)
def test_a_module_that_computes_something_else_is_left_alone(
    case: tuple[str, ...], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(*case)
    whole = vars(module)[broken]
    load.cache_clear()

    def other(*arrays: object) -> object:
        result = whole(*arrays)
        for array in (result, *arrays[:1], *arrays[3:4], *arrays[15:17], *arrays[20:21]):
            if hasattr(array, "dtype") and array.dtype.kind in "fi" and array.flags.writeable:
                array += 3
        return result

    monkeypatch.setattr(module, broken, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(*case) is None


@pytest.mark.parametrize("error", [ImportError, RuntimeError, SystemError, TypeError])
def test_a_module_that_cannot_be_compiled_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error("no")

    load.cache_clear()
    monkeypatch.setattr(kernels, "import_module", fail)
    assert load("rows", "int8") is None

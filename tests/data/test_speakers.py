"""A play of our own, cut into windows."""

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.data.datasets import WINDOW, speakers
from fedstale.data.files import official

PLAY = "ANN:\nthe quick brown fox jumps over\n\nBEN:\nit ran.\n\nBEN:\n\nANN:\nthe lazy dog sleeps all day long\n"


def test_a_sample_is_a_window_of_a_speaker_and_the_character_that_follows() -> None:
    alphabet = sorted({*PLAY})
    found = speakers([PLAY.encode()])
    said = "the quick brown fox jumps over\nthe lazy dog sleeps all day long"
    read = ["".join(alphabet[k] for k in row) for row in found.x]
    assert read == [said[k : k + WINDOW] for k in (0, 21, 42)], "what is shorter than a window is left out"
    assert [alphabet[k] for k in found.y] == [said[20], said[41], said[62]]
    assert found.writers is not None
    assert found.writers.tolist() == [0, 0, 0]
    assert (found.n_train, found.x.dtype) == (3, np.int64)


def test_a_text_that_is_no_play_is_refused() -> None:
    with pytest.raises(BadInput, match="below a name with a colon, got 'once upon a time'"):
        speakers([b"once upon a time\nthere was"])


def test_the_published_file_is_plain_text() -> None:
    (file,) = official("shakespeare")
    assert file.remote.urls[0].endswith("/tinyshakespeare/input.txt")
    assert file.md5 == file.remote.md5

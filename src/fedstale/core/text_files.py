"""Text files as servers and spreadsheets write them: packing, encoding and the separator of columns are guessed."""

import bz2
import codecs
import csv
import gzip
import lzma
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any
from unicodedata import normalize

OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SEPARATORS = ",;\t|"
COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")  # 63,5


def open_text(path: Path) -> IO[str]:
    """A text file, also one that is packed as .gz, .bz2 or .xz; in UTF-8, UTF-16 or else Windows-1252."""
    opened = OPEN.get(path.suffix, open)
    file: IO[str] = opened(path, "rt", newline="", encoding=_encoding(path, opened))
    return file


def _encoding(path: Path, opened: Callable[..., Any]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with opened(path, "rb") as file:
        piece = file.read(1 << 20)
        if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            while piece:
                decoder.decode(piece)
                piece = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            told = f"{path.name} is not in UTF-8 and is read as Windows-1252 (Western European)"
            warnings.warn(told, stacklevel=1)  # of this line, so that it is shown once
            return "cp1252"
    return "utf-8-sig"


def csv_lines(file: IO[str]) -> Any:
    """The lines of a table as `csv.reader` gives them, cut at what the first line has most of, or says: `sep=;`.

    Letters with marks are one character each, however they were typed, so that a name is the same in two files.
    """
    first = re.sub(r'"[^"]*"', "", file.readline())
    file.seek(0)
    said = re.fullmatch(r"sep=(.)\s*", first)
    separator = said[1] if said else max(SEPARATORS, key=first.count)
    lines = csv.reader(map(partial(normalize, "NFC"), file), delimiter=separator)
    if said:
        next(lines)
    return lines


def with_points(cells: list[str], separator: str) -> list[str]:
    """Numbers with decimal commas as numbers with points, unless commas separate the columns."""
    if separator == ",":
        return cells
    return [cell.replace(",", ".") if COMMA.fullmatch(cell) else cell for cell in cells]
